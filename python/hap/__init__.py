"""Trains ordinary PyTorch modules on unequal devices, by the fastest distributed program that computes the same."""

from hap import errors
from hap.checkpoint.full import export_safetensors, full_state_dict
from hap.checkpoint.load import load
from hap.checkpoint.save import save
from hap.cluster import Cluster, Device, Link
from hap.planning.api import plan
from hap.planning.plan import Plan
from hap.planning.simulated import SimulatedStep, simulate
from hap.profiling import profile
from hap.rules.register import register_rule, unregister_rule
from hap.runtime.check import CheckResult, check
from hap.runtime.clipping import clip_grad_norm_
from hap.runtime.parallelize import parallelize
from hap.runtime.sampler import DistributedSampler
from hap.runtime.sharded_tensor import ShardedTensor
from hap.trace import trace

__all__ = [
    "CheckResult",
    "Cluster",
    "Device",
    "DistributedSampler",
    "Link",
    "Plan",
    "ShardedTensor",
    "SimulatedStep",
    "check",
    "clip_grad_norm_",
    "errors",
    "export_safetensors",
    "full_state_dict",
    "load",
    "parallelize",
    "plan",
    "profile",
    "register_rule",
    "save",
    "simulate",
    "trace",
    "unregister_rule",
]

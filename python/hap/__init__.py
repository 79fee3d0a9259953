"""Trains ordinary PyTorch modules on unequal devices, by the fastest distributed program that computes the same.

``import hap`` imports nothing large, torch included: each name brings what it needs when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from hap import errors
from hap.trace import trace

if TYPE_CHECKING:
    from hap.checkpoint.full import export_safetensors, full_state_dict
    from hap.checkpoint.load import load
    from hap.checkpoint.save import save
    from hap.cluster import Cluster, Device, Link
    from hap.planning.api import plan
    from hap.planning.plan import Plan
    from hap.planning.shares import write_linear_program
    from hap.planning.simulated import SimulatedStep, simulate
    from hap.profiling import profile
    from hap.rules.register import register_rule, unregister_rule
    from hap.runtime.check import CheckResult, check
    from hap.runtime.clipping import clip_grad_norm_
    from hap.runtime.parallelize import parallelize
    from hap.runtime.sampler import DistributedSampler
    from hap.runtime.sharded_tensor import ShardedTensor

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
    "write_linear_program",
]

# What type checkers read above, for __getattr__.
_MODULES = {
    "hap.checkpoint.full": ("export_safetensors", "full_state_dict"),
    "hap.checkpoint.load": ("load",),
    "hap.checkpoint.save": ("save",),
    "hap.cluster": ("Cluster", "Device", "Link"),
    "hap.planning.api": ("plan",),
    "hap.planning.plan": ("Plan",),
    "hap.planning.shares": ("write_linear_program",),
    "hap.planning.simulated": ("SimulatedStep", "simulate"),
    "hap.profiling": ("profile",),
    "hap.rules.register": ("register_rule", "unregister_rule"),
    "hap.runtime.check": ("CheckResult", "check"),
    "hap.runtime.clipping": ("clip_grad_norm_",),
    "hap.runtime.parallelize": ("parallelize",),
    "hap.runtime.sampler": ("DistributedSampler",),
    "hap.runtime.sharded_tensor": ("ShardedTensor",),
}
_ORIGINS = {name: module for module, names in _MODULES.items() for name in names}
_PACKAGES = ("balance", "checkpoint", "cluster", "operators", "planning", "profiling", "rules", "runtime")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _PACKAGES:
            return import_module(f"hap.{name}")
        if name not in _ORIGINS:
            raise AttributeError(f'module "hap" has no attribute "{name}"')
        found = globals()[name] = getattr(import_module(_ORIGINS[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

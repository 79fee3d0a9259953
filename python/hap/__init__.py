"""Trains ordinary PyTorch modules on unequal devices, by the fastest distributed program that computes the same."""

from hap import errors
from hap.cluster import Cluster, Device, Link
from hap.planning.api import plan
from hap.planning.plan import Plan
from hap.trace import trace

__all__ = ["Cluster", "Device", "Link", "Plan", "errors", "plan", "trace"]

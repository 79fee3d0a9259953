"""The machines at hand: devices, the links between them, and the table of known accelerators."""

from hap.cluster.accelerators import ACCELERATORS
from hap.cluster.cluster import Cluster
from hap.cluster.device import Device
from hap.cluster.link import COLLECTIVES, DEFAULT_LINK, CollectiveCost, Link

__all__ = ["ACCELERATORS", "COLLECTIVES", "DEFAULT_LINK", "Cluster", "CollectiveCost", "Device", "Link"]

"""The machines at hand: devices, the links between them, and the tables of known accelerators and links."""

from hap.cluster.accelerators import ACCELERATORS
from hap.cluster.cluster import Cluster
from hap.cluster.device import FAMILIES, Device
from hap.cluster.link import COLLECTIVES, LINKS, CollectiveCost, Link

__all__ = ["ACCELERATORS", "COLLECTIVES", "FAMILIES", "LINKS", "Cluster", "CollectiveCost", "Device", "Link"]

"""Links between devices, and measured collectives."""

from __future__ import annotations

from dataclasses import dataclass

from hap.cluster.figures import not_negative, positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link between the members of a cluster: sending takes ``latency + bytes / bandwidth`` seconds.

    Attributes:
        bandwidth: bytes per second of each member, each way.
        latency: seconds until the first byte arrives.

    Raises:
        ClusterError: the bandwidth is not a finite number above 0, or the latency not one of at least 0.
    """

    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bandwidth", positive(self.bandwidth, "Link: bandwidth"))
        object.__setattr__(self, "latency", not_negative(self.latency, "Link: latency"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCost:
    """Measured cost of one collective over the whole cluster: ``latency + bytes / bandwidth`` seconds.

    Attributes:
        latency: seconds for nothing.
        bandwidth: bytes per second, of the bytes that the slowest rank moves.

    Raises:
        ClusterError: the bandwidth is not a finite number above 0, or the latency not one of at least 0.
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "latency", not_negative(self.latency, "CollectiveCost: latency"))
        object.__setattr__(self, "bandwidth", positive(self.bandwidth, "CollectiveCost: bandwidth"))


DEFAULT_LINK = Link(bandwidth=1.25e9, latency=5e-5)
"""Assumed where no link is given: 10 Gbit/s Ethernet."""

COLLECTIVES = (
    "all_gather/exchange",
    "all_gather/grouped",
    "all_gather/padded",
    "all_reduce/builtin",
    "all_to_all/exchange",
    "reduce_scatter/exchange",
    "reduce_scatter/grouped",
    "reduce_scatter/padded",
)
"""Every collective with its implementation, as programs and cluster files name them."""

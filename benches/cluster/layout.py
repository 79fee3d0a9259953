"""What a cluster file asks of the machine: hosts with links, and a share of a processor for each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import hap

# A processor also carries the network and whoever watches: so much of it is given to devices.
FULL = 0.9


@dataclass(frozen=True, slots=True)
class Host:
    """Devices on one network interface.

    Attributes:
        ranks: of its devices.
        bandwidth: bytes per second of its link to the others, each way.
    """

    ranks: tuple[int, ...]
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Share:
    """A part, above 0, of the time of one processor."""

    processor: int
    part: float


def hosts(cluster: hap.Cluster) -> tuple[Host, ...]:
    """Each member of the cluster as a host.

    Raises:
        ValueError: a member holds clusters itself: only one level of links can be emulated.
    """
    found, first = [], 0
    for position, member in enumerate(cluster.members):
        inside = getattr(member, "members", (member,))
        if any(hasattr(inner, "members") for inner in inside):
            raise ValueError(f"member {position} of the cluster holds clusters; expected devices, or hosts of devices")
        count = len(inside)
        found.append(Host(tuple(range(first, first + count)), cluster.link.bandwidth))
        first += count
    return tuple(found)


def shares(speeds: Sequence[float], processors: Sequence[int]) -> list[Share]:
    """A processor for each device and a share of it in proportion to its speed, as large as can be had at once.

    The largest are placed first, each where the least is placed yet.
    """
    loads = dict.fromkeys(processors, 0.0)
    places = {}
    for rank in sorted(range(len(speeds)), key=lambda rank: (-speeds[rank], rank)):
        places[rank] = min(processors, key=lambda processor: loads[processor])
        loads[places[rank]] += speeds[rank]
    scale = FULL / max(loads.values())
    return [Share(places[rank], speed * scale) for rank, speed in enumerate(speeds)]

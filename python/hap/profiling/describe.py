"""From what the ranks of a job have measured to a cluster."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Sequence

import msgspec

from hap.cluster import Cluster, CollectiveCost, Device, Link
from hap.cluster.accelerators import recognised_name
from hap.cluster.device import MEMORY, Points
from hap.profiling import operands
from hap.profiling.fingerprint import fingerprint
from hap.profiling.fit import Line
from hap.profiling.free import free_memory, reserve
from hap.profiling.hosts import EXCHANGE, hosts_of
from hap.profiling.machine import Machine

_log = logging.getLogger("hap")

# Ranks on equal hardware whose times differ by less are equal.
NOISE = 1.15


class Measured(msgspec.Struct, frozen=True):
    """What one rank has measured.

    Attributes:
        machine: its hardware.
        points: the times of its operators by name.
        inside: the exchange among the ranks of its host, where the job has several hosts and this one several ranks.
    """

    machine: Machine
    points: dict[str, Points]
    inside: Line | None = None


def describe(
    everybody: Sequence[Measured], lines: dict[str, Line], disturbed: tuple[float, float] = (0.0, 0.0)
) -> Cluster:
    """The cluster that these measurements describe: a tree of hosts where there are several, in the order of ranks.

    Args:
        everybody: what each rank has measured, by rank.
        lines: the collectives of all ranks together, by name; none of a single rank.
        disturbed: interference and contention.
    """
    mark = fingerprint([measured.machine for measured in everybody])
    everybody = alike(everybody)
    free = free_memory([each.machine for each in everybody], [each.points for each in everybody])
    devices = [_device(measured, memory) for measured, memory in zip(everybody, free, strict=True)]
    if not lines:
        return Cluster(devices, link=Link(bandwidth=1e12, latency=0.0), fingerprint=mark)
    costs = {
        name: CollectiveCost(latency=line.latency, bandwidth=line.rate, error=line.error)
        for name, line in lines.items()
    }
    members, behind = _members(everybody, devices)
    ranks, exchange = len(everybody), lines[EXCHANGE]
    # The ranks of a host share its link for all that they exchange with others.
    sharing = max(count * (ranks - count) for count in behind) / (ranks - 1)
    link = Link(bandwidth=exchange.rate * sharing, latency=exchange.latency / (ranks - 1))
    # Collectives of programs are waited for at the first use of their results.
    interfering, contending = disturbed
    return Cluster(
        members,
        link=link,
        overlap=1.0,
        interference=interfering,
        contention=contending,
        collectives=costs,
        fingerprint=mark,
    )


def _members(everybody: Sequence[Measured], devices: Sequence[Device]) -> tuple[list[Device | Cluster], list[int]]:
    """What the outermost link joins, hosts of several ranks as clusters, and how many ranks each is."""
    names = [measured.machine.host for measured in everybody]
    hosts = hosts_of(names)
    if not hosts and len({*names}) > 1:
        _log.info("the ranks of some hosts are among those of others: a flat list of devices is made of all hosts")
    members = list[Device | Cluster]()
    for ranks in hosts or [(rank,) for rank in range(len(devices))]:
        first, *others = ranks
        if not others:
            members.append(devices[first])
            continue
        exchange = everybody[first].inside
        assert exchange is not None, "the ranks of a host measure their exchange"
        link = Link(bandwidth=exchange.rate, latency=exchange.latency / len(others))
        members.append(Cluster([devices[rank] for rank in ranks], link=link))
    return members, [len(ranks) for ranks in hosts] or [1]


def alike(everybody: Sequence[Measured]) -> list[Measured]:
    """Ranks on equal hardware that are as fast, but for noise, have the same times: their means.

    Else no two devices would be equal, and equal ones would get unequal work. Ranks on equal hardware of which one is
    throttled are not as fast.
    """
    found = list(everybody)
    kinds: dict[tuple[object, ...], list[int]] = {}
    for rank, measured in enumerate(everybody):
        hardware = measured.machine
        kinds.setdefault((hardware.name, hardware.memory, hardware.threads), []).append(rank)
    for ranks in kinds.values():
        times = {rank: _common_times(everybody[rank], [everybody[other] for other in ranks]) for rank in ranks}
        classes: list[list[int]] = []
        for rank in sorted(ranks, key=lambda rank: times[rank]):
            if classes and times[rank] <= NOISE * times[classes[-1][0]]:
                classes[-1].append(rank)
            else:
                classes.append([rank])
        for members in classes:
            points = _means([everybody[rank].points for rank in members])
            for rank in members:
                found[rank] = msgspec.structs.replace(everybody[rank], points=points)
    return found


def _common_times(measured: Measured, others: Sequence[Measured]) -> float:
    """The geometric mean of a rank's times at the amounts that all have measured."""
    total = 0.0
    for name, points in measured.points.items():
        shared = set.intersection(*({amount for amount, _ in other.points[name]} for other in others))
        total += statistics.fmean(math.log(seconds) for amount, seconds in points if amount in shared)
    return math.exp(total / len(measured.points))


def _means(lists: Sequence[dict[str, Points]]) -> dict[str, Points]:
    """By name, the mean times of the amounts that all lists hold; both still rise."""
    found = {}
    for name in lists[0]:
        tables = [dict(points[name]) for points in lists]
        amounts = sorted(set.intersection(*map(set, tables)))
        found[name] = tuple((amount, statistics.fmean(table[amount] for table in tables)) for amount in amounts)
    return found


def _device(measured: Measured, memory: float) -> Device:
    """A device by its measured points; its figures are those of the largest problems, with their operands."""
    points = measured.points

    def rate(name: str) -> float:
        (amount, seconds) = points[name][-1]
        return amount / seconds

    flops = {name.split("/")[1]: rate(name) for name in points if name.startswith("matmul/")}
    hardware = measured.machine
    return Device(
        recognised_name(hardware.name, hardware.memory) or hardware.name,
        flops=flops,
        memory_bandwidth=rate(MEMORY),
        memory=memory,
        reserve=reserve(hardware, memory),
        launch_overhead=points[MEMORY][0][1],
        measured=operands.told_apart(points),
    )

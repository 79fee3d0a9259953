"""What of the devices' memory is free, and a cluster that was measured before by what is free now."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hap.cluster import Cluster, Device
from hap.cluster.device import Points, reserve_of
from hap.profiling.machine import Machine
from hap.units import bytes_text

_log = logging.getLogger("hap")

# What is free changes a little from start to start: up to this part of it the figure stays, so that plans do.
STEADY = 0.1


def free_memory(machines: Sequence[Machine], measured: Sequence[Mapping[str, Points]]) -> list[float]:
    """Bytes that each rank may take; the same for equal ranks, of which the one with the least decides.

    Processes on CPUs share the memory of their host.

    Args:
        machines: the hardware, by rank.
        measured: the times of its operators, by rank: ranks are equal where these and the hardware are.
    """
    kinds = [
        (each.name, each.memory, each.threads, measured.index(times))
        for each, times in zip(machines, measured, strict=True)
    ]
    least: dict[tuple[object, ...], int] = {}
    for kind, each in zip(kinds, machines, strict=True):
        least[kind] = min(each.free, least.get(kind, each.free))
    sharing = Counter(each.host for each in machines if each.threads)
    # Not nothing, so that planning says what is missing.
    return [max(1, least[kind]) / (sharing[each.host] or 1) for kind, each in zip(kinds, machines, strict=True)]


def reserve(hardware: Machine, memory: float) -> float:
    """Bytes of a device's memory that are left alone; none on CPUs."""
    return 0.0 if hardware.threads else reserve_of(memory)


def as_free_now(cluster: Cluster, machines: Sequence[Machine]) -> Cluster:
    """A measured cluster with the memory that is free now, where that of a device has changed by more than 10%.

    Of an accelerator also where less is free than a plan might use, which would be refused.

    Args:
        cluster: as it was measured before, by these ranks.
        machines: the hardware as it is now, by rank.
    """

    def renewed(rank: int, device: Device, memory: float) -> Device:
        refused = not machines[rank].threads and memory < device.usable_memory
        if not refused and abs(memory - device.memory) <= STEADY * device.memory:
            return device
        was, now = bytes_text(device.memory), bytes_text(memory)
        _log.info("rank %d has %s of memory free, no longer %s as in its profile", rank, now, was)
        return replace(device, memory=memory, reserve=reserve(machines[rank], memory))

    free = free_memory(machines, [device.measured for device in cluster.devices])
    pairs = enumerate(zip(cluster.devices, free, strict=True))
    return cluster.with_devices(renewed(rank, device, memory) for rank, (device, memory) in pairs)

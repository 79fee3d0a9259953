"""The clusters of the list: how fast their devices are beside each other, and their links."""

from __future__ import annotations

from collections.abc import Sequence

import hap

MEBIBYTE = 2**20
# What a process holds before it has a model: Python, torch and its libraries, and what communication needs.
RESERVE = 560 * MEBIBYTE
PLENTY = 8192 * MEBIBYTE
# FLOP/s of a device of 100: only their ratios count.
WHOLE = 1e11


def _device(percent: float, memory: int = PLENTY) -> hap.Device:
    return hap.Device(
        f"{percent:g}%", flops=WHOLE * percent / 100, memory_bandwidth=1e10, memory=memory, reserve=RESERVE
    )


def _link(megabits: float) -> hap.Link:
    return hap.Link(f"{megabits:g} Mbit/s", bandwidth=megabits * 1e6 / 8, latency=1e-4)


def _flat(percents: Sequence[float], megabits: float, memory: int = PLENTY) -> hap.Cluster:
    """Hosts of one device each."""
    return hap.Cluster([_device(percent, memory) for percent in percents], link=_link(megabits))


def _hosts(megabits: float) -> hap.Cluster:
    """Two hosts with a fast and a slow device each."""
    host = hap.Cluster([_device(60), _device(30)], link=hap.Link("memory", bandwidth=2e9, latency=1e-5))
    return hap.Cluster([host, host], link=_link(megabits))


CLUSTERS: dict[str, hap.Cluster] = {
    "100:30": _flat([100, 30], 500),
    "60:20:60:20": _flat([60, 20, 60, 20], 500),
    "80:40:40:40": _flat([80, 40, 40, 40], 500),
    "hosts, 50 Mbit/s": _hosts(50),
    "hosts, 200 Mbit/s": _hosts(200),
    "60:20, little memory": _flat([60, 20, 60, 20], 500, RESERVE + 360 * MEBIBYTE),
    "equal": _flat([50, 50], 500),
}


def unequal(cluster: hap.Cluster) -> bool:
    """Whether some of its devices are faster than others."""
    return len({device.flops["default"] for device in cluster.devices}) > 1

"""How fast devices are now beside their profile: one machine's speed changes by tens of percent within minutes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

import hap

# Rows and columns of the matrices that are multiplied, as in profiles; how often in a row.
SIZE, TIMES = 1024, 4
PRODUCT = "matmul/float32"


def seconds() -> float:
    """What a matrix product takes now, with the processor as it is given to this process."""
    matrix = torch.full((SIZE, SIZE), 0.5)
    began = time.perf_counter()
    for _ in range(TIMES):
        torch.mm(matrix, matrix)
    return (time.perf_counter() - began) / TIMES


def at_speed(cluster: hap.Cluster, products: Sequence[float]) -> hap.Cluster:
    """The profiled cluster, with the times of each device as much longer as a product takes (:func:`seconds`)."""
    devices = [
        _scaled(device, product / dict(device.measured[PRODUCT])[2.0 * SIZE**3])
        for device, product in zip(cluster.devices, products, strict=True)
    ]
    return replace(cluster, members=devices)


def _scaled(device: hap.Device, factor: float) -> hap.Device:
    """A device that takes so many times as long for everything."""
    measured = {
        name: tuple((amount, factor * seconds) for amount, seconds in points)
        for name, points in device.measured.items()
    }
    return replace(
        device,
        flops={name: rate / factor for name, rate in device.flops.items()},
        memory_bandwidth=device.memory_bandwidth / factor,
        launch_overhead=device.launch_overhead * factor,
        measured=measured,
    )

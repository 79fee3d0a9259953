"""What throttled ranks measure of themselves, as a :class:`hap.Cluster` whose predictions mean something."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

import hap
from hap.cluster import CollectiveCost
from hap.runtime.collectives import Along, all_gather, all_reduce, all_to_all, reduce_scatter
from hap.runtime.group import Group

SMALL, LARGE = 256, 1 << 20
"""Elements, of four bytes, of the tensors whose collectives are timed."""


def seconds(run: Callable[[], object], *, at_least: float) -> float:
    """Median seconds of a call, called for at least so long and at least three times."""
    run()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < at_least:
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    return statistics.median(times)


def processor(*, width: int, rows: int) -> hap.Device:
    """This process as a device: how fast a matrix product, memory and a tiny operator are."""
    x, weight = torch.randn(rows, width), torch.randn(width, 4 * width)
    product = seconds(lambda: x @ weight, at_least=0.3)
    one, other = torch.randn(1 << 21), torch.randn(1 << 21)
    addition = seconds(lambda: torch.add(one, other, out=other), at_least=0.3)
    tiny = torch.zeros(1)
    overhead = seconds(lambda: [tiny + 1 for _ in range(100)], at_least=0.1) / 100
    return hap.Device(
        "CPU process",
        flops=2 * x.numel() * weight.shape[1] / product,
        memory_bandwidth=3 * one.numel() * one.element_size() / addition,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / dist.get_world_size(),
        launch_overhead=overhead,
    )


def scaled(device: hap.Device, name: str, factor: float) -> hap.Device:
    """The device, ``factor`` times as fast in every respect."""
    return hap.Device(
        name,
        flops={dtype: rate * factor for dtype, rate in device.flops.items()},
        memory_bandwidth=device.memory_bandwidth * factor,
        memory=device.memory,
        launch_overhead=device.launch_overhead / factor,
    )


def collectives(units: Sequence[int]) -> dict[str, CollectiveCost]:
    """Cost of each collective between these ranks, with shares in proportion to ``units``. Every rank must call it.

    The bytes are those that the slowest rank moves, as hap's cost model counts them.
    """
    group = Group(dist.group.WORLD)
    count, rank = group.size, group.rank
    most = max(units) / sum(units)
    largest_exchange = max(max((count - 1) * share, 1 - share) for share in (unit / sum(units) for unit in units))
    swapped = tuple(reversed(units))
    swap = max(
        max(a * (1 - b), b * (1 - a))
        for a, b in ((u / sum(units), v / sum(units)) for u, v in zip(units, swapped, strict=True))
    )

    def gather(implementation: str) -> Callable[[int], object]:
        def run(elements: int) -> object:
            along = Along((sum(units), elements), 0, tuple(units))
            share = torch.zeros(units[rank], elements)
            return all_gather(
                share, name="x", shape=(sum(units), elements), along=along, implementation=implementation, group=group
            )

        return run

    def scatter(implementation: str) -> Callable[[int], object]:
        def run(elements: int) -> object:
            along = Along((sum(units), elements), 0, tuple(units))
            whole = torch.zeros(sum(units), elements)
            return reduce_scatter(
                whole, name="x", shape=(units[rank], elements), along=along, implementation=implementation, group=group
            )

        return run

    def exchange(elements: int) -> object:
        sizes = (sum(units), sum(units), max(1, elements // sum(units)))
        source, target = Along(sizes, 0, tuple(units)), Along(sizes, 1, swapped)
        share = torch.zeros(units[rank], *sizes[1:])
        shape = (sizes[0], swapped[rank], sizes[2])
        return all_to_all(share, name="x", shape=shape, source=source, target=target, group=group)

    def reduce(elements: int) -> object:
        return all_reduce(torch.zeros(sum(units), elements), name="x", group=group)

    # Of each: the share of the tensor's bytes that the slowest rank moves.
    runs: dict[str, tuple[Callable[[int], object], float]] = {
        "all_reduce/builtin": (reduce, 2 * (count - 1) / count),
        "all_gather/padded": (gather("padded"), (count - 1) * most),
        "all_gather/grouped": (gather("grouped"), 1.0),
        "all_gather/exchange": (gather("exchange"), largest_exchange),
        "reduce_scatter/padded": (scatter("padded"), (count - 1) * most),
        "reduce_scatter/grouped": (scatter("grouped"), 1.0),
        "reduce_scatter/exchange": (scatter("exchange"), largest_exchange),
        "all_to_all/exchange": (exchange, swap),
    }
    return {name: _fit(run, moved, sum(units)) for name, (run, moved) in runs.items()}


def _fit(run: Callable[[int], object], moved: float, rows: int) -> CollectiveCost:
    """Latency from a small tensor; bandwidth from what a large one takes longer."""
    small = _slowest(lambda: run(max(1, SMALL // rows)), repeats=7)
    large = _slowest(lambda: run(LARGE // rows), repeats=3)
    # Noise may make both alike; then the transfer is at least a tenth of the time.
    transfer = max(large - small, large / 10)
    return CollectiveCost(latency=small, bandwidth=moved * 4 * LARGE / transfer)


def _slowest(run: Callable[[], object], *, repeats: int) -> float:
    """Median seconds over the repeats of what the slowest rank took; the same number on every rank."""
    run()
    times = torch.empty(repeats)
    for repeat in range(repeats):
        before = time.perf_counter()
        run()
        times[repeat] = time.perf_counter() - before
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return float(times.median())

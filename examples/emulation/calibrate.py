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
from hap.program import Implementation
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
    count, rank, rows = group.size, group.rank, sum(units)
    shares, swapped = [unit / rows for unit in units], tuple(reversed(units))
    padded = (count - 1) * max(shares)
    exchanged = max(max((count - 1) * share, 1 - share) for share in shares)
    swap = max(max(a * (1 - b), b * (1 - a)) for a, b in zip(shares, reversed(shares), strict=True))

    # Each takes a number of columns and returns what is timed, so that making the tensors is not.

    def gather(implementation: Implementation) -> Callable[[int], Callable[[], object]]:
        def prepare(columns: int) -> Callable[[], object]:
            shape = (rows, columns)
            share = torch.zeros(units[rank], columns)
            along = Along(0, ((1, 1),), tuple(units))
            return lambda: all_gather(
                share, name="x", shape=shape, along=along, implementation=implementation, group=group
            )

        return prepare

    def scatter(implementation: Implementation) -> Callable[[int], Callable[[], object]]:
        def prepare(columns: int) -> Callable[[], object]:
            whole, shape = torch.zeros(rows, columns), (units[rank], columns)
            along = Along(0, ((1, 1),), tuple(units))
            return lambda: reduce_scatter(
                whole, name="x", shape=shape, along=along, implementation=implementation, group=group
            )

        return prepare

    def exchange(columns: int) -> Callable[[], object]:
        sizes = (rows, rows, max(1, columns // rows))
        source, target = Along(0, ((1, 1),), tuple(units)), Along(1, ((1, 1),), swapped)
        share, shape = torch.zeros(units[rank], *sizes[1:]), (sizes[0], swapped[rank], sizes[2])
        return lambda: all_to_all(share, name="x", shape=shape, source=source, target=target, group=group)

    def reduce(columns: int) -> Callable[[], object]:
        whole = torch.zeros(rows, columns)
        return lambda: all_reduce(whole, name="x", group=group)

    # Of each: the share of the tensor's bytes that the slowest rank moves.
    runs: dict[str, tuple[Callable[[int], Callable[[], object]], float]] = {
        "all_reduce/builtin": (reduce, 2 * (count - 1) / count),
        "all_gather/padded": (gather("padded"), padded),
        "all_gather/grouped": (gather("grouped"), 1.0),
        "all_gather/exchange": (gather("exchange"), exchanged),
        "reduce_scatter/padded": (scatter("padded"), padded),
        "reduce_scatter/grouped": (scatter("grouped"), 1.0),
        "reduce_scatter/exchange": (scatter("exchange"), exchanged),
        "all_to_all/exchange": (exchange, swap),
    }
    return {name: _fit(prepare, moved, rows) for name, (prepare, moved) in runs.items()}


def _fit(prepare: Callable[[int], Callable[[], object]], moved: float, rows: int) -> CollectiveCost:
    """Latency from a small tensor; bandwidth from what a large one takes longer."""
    small = _in_a_row(prepare(max(1, SMALL // rows)), times=10)
    large = _in_a_row(prepare(LARGE // rows), times=3)
    # Noise may make both alike; then the transfer is at least a tenth of the time.
    transfer = max(large - small, large / 10)
    return CollectiveCost(latency=small, bandwidth=moved * 4 * LARGE / transfer)


def _in_a_row(run: Callable[[], object], *, times: int) -> float:
    """Seconds of a call, among several in a row: median of three rows, the same number on every rank."""
    run()
    rows = torch.empty(3)
    for row in range(len(rows)):
        before = time.perf_counter()
        for _ in range(times):
            run()
        rows[row] = (time.perf_counter() - before) / times
    dist.all_reduce(rows, dist.ReduceOp.MAX)
    return float(rows.median())

"""What collectives cost on the real group, over sizes and uneven shares: ``latency + bytes / bandwidth`` is fitted.

The bytes are those that the cost model says that the slowest rank moves, so that what is fitted is what is predicted.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import msgspec
import torch

from hap import _core
from hap.balance import largest_remainder
from hap.cluster import Cluster, CollectiveCost, Device, Link
from hap.profiling.clock import compute_for, finish, once, quartile, rounds
from hap.profiling.fit import Line, fit
from hap.program import Convert, InputInstruction, OutputInstruction, Program
from hap.runtime import collectives
from hap.runtime.agree import Control
from hap.runtime.along import Along
from hap.runtime.group import Group

# Bytes of the whole tensor; the few are for a quick look.
SIZES = (2**14, 2**18, 2**20, 2**22, 2**24)
FEW_SIZES = (2**14, 2**20, 2**22)
# Shares of the ranks beside equal ones: each has so many times the share of the one before.
SKEW = 2.0
# Larger tensors are left out where one would take this part of all the time at the rate of the one before.
LARGEST = 0.02
# That rate shows where it takes so many times as long as the smallest; else what was fitted were a latency alone.
SHOWS = 2.0
# Nor are more sizes tried where two and more have taken this part of all the time.
TOGETHER = 0.1
# Units of an axis by rank, on average; bytes of an element.
UNITS = 16
ELEMENT = 4

Collective: TypeAlias = Callable[[], torch.Tensor]


def measure(
    names: Sequence[str],
    group: Group,
    control: Control,
    device: torch.device,
    *,
    seconds: float,
    sizes: Sequence[int] = SIZES,
    busy: float = 0.0,
    estimate: Callable[[Sequence[float]], float] = quartile,
    advance: Callable[[], object] = lambda: None,
) -> dict[str, Line]:
    """Measures some of :data:`hap.cluster.COLLECTIVES` on all ranks, in turns, for about so many seconds.

    Each begins when the last rank does, ``busy`` seconds of computation after all ranks have met, and ends when all
    have; ``estimate`` makes one time of those of all rounds. ``sizes`` are bytes of the tensors, ascending.
    ``advance`` is called after each round.
    """
    amounts: list[tuple[str, float]] = []
    works: list[tuple[Collective, float]] = []
    for name in names:
        tried: list[float] = []
        for before, size in zip((0, *sizes), sizes, strict=False):
            if tried and tried[-1] > SHOWS * tried[0] and tried[-1] * size / before > LARGEST * seconds:
                break
            if len(tried) > 1 and sum(tried) > TOGETHER * seconds:
                break
            every = [(units, _work(name, size, units, group, device)) for units in _splits(group.size)]
            # All ranks know the same times, and stop together.
            taken = [max(control.gather(once(work, device), "timing a collective")) for _, work in every]
            tried.append(sum(taken))
            amounts.extend((name, moved(name, size, units)) for units, _ in every)
            works.extend((work, time) for (_, work), time in zip(every, taken, strict=True))
    spans: list[tuple[float, float]] = []

    def spanned(work: Collective) -> None:
        met = time.perf_counter()
        compute_for(busy, device)
        begun = time.perf_counter()
        work()
        finish(device)
        spans.append((begun - met, time.perf_counter() - met))

    timed = [(partial(spanned, work), taken) for work, taken in works]
    for _ in rounds(timed, device, seconds=seconds, ranks=control):
        advance()
    everybody = control.gather(spans, "timing collectives")
    times = _times(everybody)
    estimates = [estimate(times[number :: len(works)]) for number in range(len(works))]
    points = {
        name: [(amount, time) for (which, amount), time in zip(amounts, estimates, strict=True) if which == name]
        for name in names
    }
    return _lines(points)


def _times(everybody: Sequence[Sequence[tuple[float, float]]]) -> list[float]:
    """How long each collective took, from when each rank says that it has begun and ended since all have met.

    Ranks do not leave their meeting at quite the same time: by as much it may be off.
    """
    every = zip(*everybody, strict=True)
    return [max(ended for _, ended in ranks) - max(begun for begun, _ in ranks) for ranks in every]


def _lines(points: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Line]:
    """The lines through amounts and times; the links are no faster where times hardly rise than where they show."""
    lines = {name: fit(*zip(*own, strict=True)) for name, own in points.items()}
    steep = [line.rate for name, line in lines.items() if line.latency * line.rate < max(points[name])[0]]
    fastest = max(steep, default=math.inf)
    return {name: fit(*zip(*own, strict=True), fastest=fastest) for name, own in points.items()}


def _splits(ranks: int) -> Iterator[tuple[int, ...]]:
    """Units of an axis by rank: equal ones, and skewed ones."""
    for skew in (1.0, SKEW):
        weights = [skew**-rank for rank in range(ranks)]
        shares = [weight / sum(weights) for weight in weights]
        yield tuple(largest_remainder(shares, UNITS * ranks))


def _work(name: str, size: int, units: tuple[int, ...], group: Group, device: torch.device) -> Collective:
    """The collective as programs run it, on a tensor of about ``size`` bytes, cut along its first axis."""
    kind, implementation = name.split("/")
    count, own = sum(units), units[group.rank]
    rows, columns = Along(0, ((1, 1),), units), Along(1, ((1, 1),), units)
    if kind == "all_to_all":
        # The other axis has as many units, each of as many elements as make the size.
        width = count * max(1, size // ELEMENT // count**2)
        columns = Along(1, ((1, width // count),), units)
        share = torch.ones(own, width, device=device)
        shape = columns.shape((count, width), group.rank)
        return partial(collectives.all_to_all, share, name=name, shape=shape, source=rows, target=columns, group=group)
    width = max(1, size // ELEMENT // count)
    if kind == "all_reduce":
        return partial(collectives.all_reduce, torch.ones(count, width, device=device), name=name, group=group)
    sharded, whole = (own, width), (count, width)
    run = partial(
        collectives.all_gather if kind == "all_gather" else collectives.reduce_scatter,
        torch.ones(sharded if kind == "all_gather" else whole, device=device),
        shape=whole if kind == "all_gather" else sharded,
    )
    return partial(run, name=name, along=rows, implementation=implementation, group=group)


def moved(name: str, size: float, units: Sequence[int]) -> float:
    """The bytes that the slowest rank moves, as the cost model counts them, for a whole tensor of ``size`` bytes.

    The core simulates the collective on devices with a link of one byte per second.
    """
    cost = {name: CollectiveCost(latency=0.0, bandwidth=1.0)}
    # Copies take no time.
    board = Device(flops=1.0, memory_bandwidth=1e30, memory=1.0)
    cluster = Cluster([board] * len(units), link=Link(bandwidth=1.0, latency=0.0), collectives=cost)
    return predicted(name, size, units, cluster)


def predicted(name: str, size: float, units: Sequence[int], cluster: Cluster) -> float:
    """The seconds that the core predicts of a collective on a cluster, for a whole tensor of ``size`` bytes."""
    kind, implementation = name.split("/")
    # The placement before and after, and the axis. What is partial is a share padded with zeros, which costs nothing.
    ends: dict[str, tuple[str, str, str | None]] = {
        "all_gather": ("S0", "R", "rows"),
        "all_reduce": ("P", "R", None),
        "reduce_scatter": ("P", "S1", "columns"),
        "all_to_all": ("S0", "S1", "rows"),
    }
    before, after, axis = ends[kind]
    padded = [Convert("pad", "x", ("S0",), ("P",), "rows", None)] if before == "P" else []
    converted = Convert(kind, "x", (before,), (after,), axis, implementation)  # type: ignore[arg-type]
    program = Program((InputInstruction("x", ("S0",)), *padded, converted, OutputInstruction("y", "x", (after,))))
    count = sum(units)
    graph = {
        "format": "hap-graph-1",
        "axes": [{"name": "rows", "size": count}, {"name": "columns", "size": count}],
        "tensors": [{"name": "x", "dtype": "float32", "bytes": size, "occurrences": [0, 1], "summable": True}],
        "inputs": [{"kind": "input", "name": "x", "tensor": 0}],
        "operators": [],
        "outputs": [{"kind": "output", "name": "y", "tensor": 0, "of": None}],
    }
    splits = {"rows": list(units), "columns": list(units)}
    text = msgspec.json.encode(program).decode()
    reply = _core.Graph(json.dumps(graph).encode()).simulate(cluster.to_json(), text, json.dumps(splits), "{}")
    return float(json.loads(reply)["seconds"])

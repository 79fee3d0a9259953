"""The best program for an unequal cluster, and what it shards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from hap.cluster import Cluster, Device, Link
from hap.planning.engine import Prices, parse_program
from hap.planning.problem import balanced, candidate
from hap.planning.setup import make_problem
from hap.program import Compute, Program, Splits
from hap.rules import AxisGraph

# Three devices, one three times and one twice as fast as the slowest; links and copies of memory cost next to nothing.
UNEQUAL = Cluster(
    [Device(flops=speed, memory_bandwidth=1e17, memory=1e12, launch_overhead=0.0) for speed in (3e9, 2e9, 1e9)],
    link=Link(bandwidth=1e15, latency=0.0),
)
RANKS = len(UNEQUAL.devices)


def best_plan(axes: AxisGraph, forbidden_axes: Sequence[str]) -> tuple[Program, Splits]:
    """The better of two programs, and its splits: a round of the search for a plan, from where it should end.

    The first program is the best one at the prices of devices that are all busy to the end, which are in proportion to
    their speed; the linear program then chooses its splits. The second is the best one at the prices that belong to
    these splits.
    """
    problem = make_problem(axes, UNEQUAL, forbidden_axes=forbidden_axes)
    engine, speeds = problem.engine, problem.engine.machine.speeds
    prices = Prices(tuple(speed / sum(speeds) for speed in speeds))
    first = engine.synthesise(problem.proportional, prices, problem.constraints)
    found = balanced(problem, candidate(problem, first, problem.proportional))
    assert found.weights is not None
    second = engine.synthesise(found.splits, Prices(found.weights), problem.constraints)
    assert first.search_gap == second.search_gap == 0.0
    again = candidate(problem, second, found.splits)
    if again.better_than(found, engine.machine.capacity):
        found = again
    return parse_program(found.program), found.splits


def sharded(axes: AxisGraph, program: Program, splits: Splits) -> dict[str, float]:
    """The share of the graph's FLOPs that is split along each axis over two devices at least.

    An operator counts where all its instructions are: one that a program also applies whole does not.
    """
    flops = {
        operator.name: amount / sum(axes.flops)
        for operator, amount in zip(axes.graph.operators, axes.flops, strict=True)
    }
    along: Mapping[str, set[str | None]] = defaultdict(set)
    for instruction in program.instructions:
        if isinstance(instruction, Compute):
            axis = instruction.axis
            split = axis is not None and sum(units > 0 for units in splits[axis]) > 1
            along[instruction.operator].add(axis if split else None)
    shares: dict[str, float] = defaultdict(float)
    for operator, found in along.items():
        if None not in found:
            # Applied along several axes, it is counted for the first by name.
            shares[min(axis for axis in found if axis is not None)] += flops[operator]
    return dict(sorted(shares.items(), key=lambda item: -item[1]))

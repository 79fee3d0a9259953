"""Segments: stretches of the model in which an axis is split otherwise, where that helps.

The convolutions of a VGG19 want shares by speed; its large linear layers, whose inputs are gathered with all shares
padded to the largest, want even ones. An axis therefore gets a further split class, and the synthesiser says which
operators use it, and so where tensors are re-split. Synthesis takes long where nothing can be gained, so a relaxation
is asked first: what the programs that are known would take if every stage could split the axis as it likes, and
re-splits were free.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from hap.balance import fractions
from hap.balance.stages import Array, Stages
from hap.planning.engine import MemoryPrices, NoProgramError, Prices, parse_program
from hap.planning.problem import Candidate, Problem, balanced, candidate, computed_axes, moved_axes
from hap.program import Convert, Program, SplitClass
from hap.rules.classes import class_name

# A further class must promise this fraction of the step to be tried, and gain a tenth of it to be kept.
WORTH_TRYING = 0.01
WORTH_KEEPING = 0.001
# Axes that are tried, at most, and rounds of synthesis and balance for each.
AXES = 1
ROUNDS = 3
# A device is busy where it is for this part of the longest time.
BUSY = 0.9
# Halvings of the interval in which a stage's least time lies.
HALVINGS = 40


def with_segments(
    problem: Problem, best: Candidate, tried: Sequence[Candidate], memory: MemoryPrices | None = None
) -> tuple[Problem, Candidate]:
    """The problem with a further split class of an axis and its best program, where that is faster; else as they are.

    Args:
        problem: the problem.
        best: its best program.
        tried: other programs of it, with their splits.
        memory: where it is scarce, its prices.
    """
    if problem.divided is None:
        return problem, best
    found = (problem, best)
    for axis in _promising(problem, best, tried)[:AXES]:
        name = class_name(axis, "compute")
        wider = problem.divided({name: SplitClass(axis, "compute")})
        program = _alternate(wider, axis, name, best, memory)
        if program.better_than(found[1], problem.engine.machine.capacity):
            found = (wider, program)
    gained = 1.0 - found[1].simulation.seconds / best.simulation.seconds
    return found if gained > WORTH_KEEPING else (problem, best)


def _alternate(problem: Problem, axis: str, name: str, start: Candidate, memory: MemoryPrices | None) -> Candidate:
    """Synthesis and balance in turns; the best program that uses both classes.

    The class is split evenly at first, the axis as it was, or by speed where that was evenly, too.
    """
    capacity = problem.engine.machine.capacity
    best, splits, weights = start, {**start.splits, name: problem.even[axis]}, start.weights
    if splits[axis] == splits[name]:
        splits[axis] = problem.proportional[axis]
    for _ in range(ROUNDS):
        prices = [_prices_of_slow(problem, [splits[axis], splits[name]])]
        prices += [] if weights is None else [Prices(weights)]
        made: Candidate | None = None
        for each in prices:
            try:
                priced = msgspec.structs.replace(each, memory=memory)
                synthesis = problem.engine.synthesise(splits, priced, problem.constraints)
            except NoProgramError:
                # Limits may end the search on the larger graph; what was found before stands.
                continue
            found = candidate(problem, synthesis, splits)
            used = computed_axes(found.program) | moved_axes(found.program)
            if {axis, name} <= used and found.better_than(made, capacity):
                made = found
        if made is None:
            break
        found = balanced(problem, made, rival=best)
        if not found.better_than(best, capacity):
            break
        best, splits, weights = found, found.splits, found.weights
    return best


def _prices_of_slow(problem: Problem, classes: Sequence[Sequence[int]]) -> Prices:
    """Prices of the devices that are busy longest where an axis is split in several ways.

    The duals of one split price computation as if any other were as good; the slowest device tells them apart.
    """
    speeds = problem.engine.machine.speeds
    loads = [sum(units) / speed for units, speed in zip(zip(*classes, strict=True), speeds, strict=True)]
    busy = [load >= BUSY * max(loads) for load in loads]
    return Prices(tuple(slow / sum(busy) for slow in busy))


def _promising(problem: Problem, best: Candidate, tried: Sequence[Candidate]) -> list[str]:
    """Axes whose split matters to operators and to collectives, and that promise enough, most first."""
    promises: dict[str, float] = {}
    seen = set()
    for known in (best, *tried):
        if known.program in seen:
            continue
        seen.add(known.program)
        for axis, seconds in _relaxed(problem, known).items():
            promises[axis] = max(promises.get(axis, 0.0), 1.0 - seconds / best.simulation.seconds)
    worth = [axis for axis, promise in promises.items() if promise > WORTH_TRYING]
    return sorted(worth, key=lambda axis: (-promises[axis], axis))


def _relaxed(problem: Problem, known: Candidate) -> dict[str, float]:
    """By axis, seconds of a program where each stage has shares of this axis that suit it, and gathers may be padded.

    Of the axes that operators share their work along and that collectives gather, scatter or exchange.
    """
    program = parse_program(known.program)
    axes = computed_axes(known.program) & moved_axes(known.program) - problem.fixed.keys() - problem.classes.keys()
    axes -= {split_class.axis for split_class in problem.classes.values()}
    if not axes:
        return {}
    padded = tuple(
        msgspec.structs.replace(each, implementation="padded")
        if isinstance(each, Convert) and each.axis in axes and each.conversion in ("all_gather", "reduce_scatter")
        else each
        for each in program.instructions
    )
    text = msgspec.json.encode(Program(padded)).decode()
    stages = problem.engine.stages(text, fractions(known.splits))
    columns = stages.columns(fractions(known.splits))
    return {
        axis: float(stages.counts @ _least(stages, columns, stages.axes.index(axis)))
        for axis in axes & set(stages.axes)
    }


def _least(stages: Stages, columns: Array, axis: int) -> Array:
    """Least seconds by [stage] over all shares of one axis, the others as they are; by halving."""
    slopes: Array = np.maximum(stages.slopes[:, stages.kinds, axis], 0.0)
    times = stages.times(columns)
    constants = times - slopes * columns[axis]
    low = constants.max(axis=1)
    high: Array = np.maximum(low, times.max(axis=1))
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        room = np.full_like(slopes, np.inf)
        np.divide(middle[:, None] - constants, slopes, out=room, where=slopes > 0.0)
        enough = np.maximum(room, 0.0).sum(axis=1) >= 1.0
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high

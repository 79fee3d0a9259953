"""Storage: parameters at rest split otherwise than the operators that read them, where memory is scarce.

Operators want shares by speed, parameters with their gradients and the optimiser's state want them by memory. An axis
that both may be sharded along gets a split class for what is at rest, with a re-split or a gather at each use.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from hap.planning.engine import MemoryPrices, NoProgramError, Prices
from hap.planning.ladder import scaled
from hap.planning.problem import Candidate, Problem, balanced, candidate, computed_axes, first_prices, may_beat
from hap.program import SplitClass
from hap.rules.classes import class_name

# Rounds of synthesis and balance, and factors of the prices of memory that the first synthesis is tried with.
ROUNDS = 2
FACTORS = (1.0, 0.1)


def with_storage(
    problem: Problem, best: Candidate, fastest: Candidate, memory: MemoryPrices
) -> tuple[Problem, Candidate]:
    """The problem with classes for what is at rest and its best program, where that is better; else as they are.

    Args:
        problem: the problem.
        best: its best program under scarce memory.
        fastest: its fastest program without regard to memory.
        memory: the prices of memory that led to it.
    """
    standing = {axis for axes in problem.parameters.values() for axis in axes}
    computed = computed_axes(best.program) | computed_axes(fastest.program)
    shared = sorted(computed & standing - problem.fixed.keys() - problem.classes.keys())
    classes = {class_name(axis, "storage"): SplitClass(axis, "storage") for axis in shared}
    classes = {name: each for name, each in classes.items() if name not in problem.classes}
    if problem.divided is None or not classes:
        return problem, best
    wider = problem.divided(classes)
    capacity = problem.engine.machine.capacity
    by_memory = wider.split(capacity)
    starts = [
        replace(each, splits={axis: each.splits.get(axis, by_memory[axis]) for axis in wider.sizes})
        for each in (best, fastest)
    ]
    found = starts[0]
    for start, factor in product(starts, FACTORS):
        found = _alternate(wider, start, found, scaled(memory, factor))
    return (wider, found) if found is not starts[0] else (problem, best)


def _alternate(problem: Problem, start: Candidate, best: Candidate, memory: MemoryPrices) -> Candidate:
    """Synthesis and balance in turns, from splits; the better one of what they lead to and ``best``."""
    splits, weights = start.splits, start.weights or first_prices(problem, start.splits).weights
    for _ in range(ROUNDS):
        try:
            synthesis = problem.engine.synthesise(splits, Prices(weights, memory=memory), problem.constraints)
        except NoProgramError:
            return best
        made = candidate(problem, synthesis, splits)
        if not may_beat(problem, made, best):
            return best
        found = balanced(problem, made, rival=best)
        if not found.better_than(best, problem.engine.machine.capacity):
            return best
        best, splits, weights = found, found.splits, found.weights or weights
    return best

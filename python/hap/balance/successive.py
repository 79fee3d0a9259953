"""Successive linear programming: the real shares that minimise a program's step time.

The stages are affine in the shares only near the shares that they were linearised at: the compute-bound and the
memory-bound side of an operator differ, an all-to-all between two axes moves a product of shares, and a device without
a share pays no launch overhead. So a solution of the linear program is a *proposal*: it counts only if the stages
linearised there, whose value there is exact, say that the step got faster; else the trust region shrinks.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from hap.balance.highs import Solver
from hap.balance.linear_program import DoesNotFitError, solve
from hap.balance.stages import Evaluator, Machine, Shares, Stages

# Solutions of the linear program per call; each costs one evaluation of the stages.
STEPS = 8
# The trust region shrinks by this factor after a step that did not improve.
SHRINK = 0.25
# Improvements below this fraction end the search.
TOLERANCE = 1e-4
# A device is tried without an axis where it has less than this fraction of an even share.
SMALL_SHARE = 0.5
# Attempts to leave devices out of axes, per call.
ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Balanced:
    """Real shares and what is known of them.

    Attributes:
        shares: by axis.
        stages: the program linearised at these shares.
        seconds: the step time at these shares.
        excess: by how much the worst device exceeds its memory, as a fraction of it; 0 where all fit.
        weights: prices of the devices for synthesis, summing to 1.
        left_out: pairs (axis, device) that were set to zero on purpose.
    """

    shares: Shares
    stages: Stages
    seconds: float
    excess: float
    weights: tuple[float, ...]
    left_out: frozenset[tuple[str, int]]

    def better_than(self, other: Balanced) -> bool:
        """Whether it overruns memory less, or, overrunning it as little, is faster by more than the tolerance."""
        if abs(self.excess - other.excess) > 1e-9:
            return self.excess < other.excess
        return self.seconds < other.seconds * (1.0 - TOLERANCE)


def successive(
    evaluator: Evaluator,
    shares: Shares,
    machine: Machine,
    left_out: AbstractSet[tuple[str, int]] = frozenset(),
) -> Balanced:
    """The best shares that a few linear programs find from ``shares``, never worse than these.

    Shares in ``left_out`` are zero before and after. Memory that no shares fit is reported in :attr:`Balanced.excess`.
    """
    best = _evaluate(evaluator, shares, machine, left_out)
    radius, solver = 1.0, Solver()
    for _ in range(STEPS):
        try:
            solution = solve(best.stages, best.shares, machine.capacity, radius, left_out, solver)
        except DoesNotFitError as error:
            # Towards the shares that overrun least; the exact evaluation decides as always.
            proposal, seconds, weights = error.shares, 0.0, best.weights
        else:
            proposal, seconds, weights = solution.shares, solution.seconds, solution.weights
        if best.excess == 0.0 and seconds > best.seconds * (1.0 - TOLERANCE):
            return _with_weights(best, weights)
        candidate = _evaluate(evaluator, _symmetric(proposal, machine, left_out), machine, left_out)
        if candidate.better_than(best):
            best = _with_weights(candidate, weights)
        else:
            radius *= SHRINK
    return best


def without_small_shares(evaluator: Evaluator, start: Balanced, machine: Machine) -> Balanced:
    """The best shares found by leaving devices out: of all axes, slowest kind first, then of single axes.

    A device without a share pays no launch overhead and no message, which no linear program sees.
    """
    best = start
    attempts = 0
    for pairs in _whole_devices(best, machine) + _single_axes(best, machine):
        left_out = best.left_out | pairs
        if attempts == ATTEMPTS or left_out == best.left_out:
            continue
        shares = _cleared(best.shares, left_out)
        if shares is None:
            continue
        attempts += 1
        candidate = successive(evaluator, shares, machine, left_out)
        if candidate.better_than(best):
            best = candidate
    return best


def _evaluate(
    evaluator: Evaluator, shares: Shares, machine: Machine, left_out: AbstractSet[tuple[str, int]]
) -> Balanced:
    stages = evaluator.stages(shares)
    equal = (1.0 / len(machine),) * len(machine)
    excess = stages.excess(shares, machine.capacity)
    return Balanced(shares, stages, stages.seconds(shares), excess, equal, frozenset(left_out))


def _with_weights(balanced: Balanced, weights: tuple[float, ...]) -> Balanced:
    return Balanced(balanced.shares, balanced.stages, balanced.seconds, balanced.excess, weights, balanced.left_out)


def _symmetric(shares: Shares, machine: Machine, left_out: AbstractSet[tuple[str, int]]) -> Shares:
    """Equal devices get equal shares: the linear program's vertices are lopsided where shares do not matter."""
    found: Shares = {}
    for axis, values in shares.items():
        groups: dict[tuple[int, bool], list[int]] = {}
        for device, kind in enumerate(machine.kinds):
            groups.setdefault((kind, (axis, device) in left_out), []).append(device)
        even = list(values)
        for members in groups.values():
            for device in members:
                even[device] = sum(values[member] for member in members) / len(members)
        found[axis] = even
    return found


def _cleared(shares: Shares, left_out: AbstractSet[tuple[str, int]]) -> Shares | None:
    """The shares with those left out set to zero and the others scaled up; ``None`` where an axis has nobody left."""
    found: Shares = {}
    for axis, values in shares.items():
        kept = [0.0 if (axis, device) in left_out else value for device, value in enumerate(values)]
        total = sum(kept)
        if total <= 0.0:
            return None
        found[axis] = [value / total for value in kept]
    return found


def _whole_devices(balanced: Balanced, machine: Machine) -> list[frozenset[tuple[str, int]]]:
    """Sets of devices to leave out of every axis: the slowest kinds whole, then fewer and fewer of the slowest kind."""
    axes = list(balanced.shares)
    kinds = sorted(set(machine.kinds), key=lambda kind: (machine.speeds[kind], -kind))
    groups: list[list[int]] = []
    for count in range(1, len(kinds)):
        groups.append([device for device, kind in enumerate(machine.kinds) if kind in kinds[:count]])
    slowest = [device for device, kind in enumerate(machine.kinds) if kind == kinds[0]]
    groups += [slowest[index:] for index in range(len(slowest) - 1, 0, -1)]
    return [frozenset((axis, device) for axis in axes for device in group) for group in groups]


def _single_axes(balanced: Balanced, machine: Machine) -> list[frozenset[tuple[str, int]]]:
    """Each axis without the devices that have a small share of it."""
    small = SMALL_SHARE / len(machine)
    found = []
    for axis in balanced.stages.axes():
        devices = [device for device, share in enumerate(balanced.shares[axis]) if 0.0 < share < small]
        if devices:
            found.append(frozenset((axis, device) for device in devices))
    return found

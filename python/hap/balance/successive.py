"""Successive linear programming: the real shares that minimise a program's step time.

The stages are affine in the shares only near the shares that they were linearised at: the compute-bound and the
memory-bound side of an operator differ, an all-to-all between two axes moves a product of shares, and a device without
a share pays no launch overhead. So a solution of the linear program is a *proposal*: it counts only if the stages
linearised there, whose value there is exact, say that the step got faster. Else shares that are zero stay zero, since
the step jumps where a device gets its first share, and where that does not help, the trust region shrinks. Either may
end in a poor minimum, so there is a second descent where zeros were kept, and a careful one where memory does not do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from hap.balance.highs import Solver
from hap.balance.linear_program import DoesNotFitError, solve
from hap.balance.stages import Evaluator, LeftOut, Machine, Shares, Stages

# Solutions of the linear program per call; each costs one evaluation of the stages.
STEPS = 12
# After a step that did not improve, the next one is at most this fraction as long.
SHRINK = 0.25
# A step below this moves no unit, and would be within the tolerances of the solver.
SHORTEST = 1e-6
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
        left_out: which shares were set to zero on purpose.
    """

    shares: Shares
    stages: Stages
    seconds: float
    excess: float
    weights: tuple[float, ...]
    left_out: LeftOut

    def better_than(self, other: Balanced) -> bool:
        """Whether it overruns memory less, or, overrunning it as little, is faster by more than the tolerance."""
        return _better(self.excess, self.seconds, other)


def successive(
    evaluator: Evaluator,
    shares: Shares,
    machine: Machine,
    left_out: LeftOut | None = None,
    rival: Balanced | None = None,
) -> Balanced:
    """The best shares that a few linear programs find from ``shares``, never worse than these.

    Shares in ``left_out`` are zero before and after. Memory that no shares fit is reported in :attr:`Balanced.excess`.
    With a ``rival``, all shares that are zero stay so where memory suffices, and the search ends where the first linear
    program says that it cannot beat the rival.
    """
    start = _evaluate(evaluator, shares, machine, left_out or {})
    if rival is not None:
        # Where memory is scarce, it may take devices that have no share yet.
        return _descend(evaluator, start, machine, _Zeros.STAY if start.excess == 0.0 else _Zeros.MOVE, rival=rival)[0]
    best, kept = _descend(evaluator, start, machine, _Zeros.STAY_WHERE_A_STEP_FAILS)
    # Each descent ends in a minimum near its path: shares that became zero too early stay zero, and memory is linear
    # only as long as its peak is at one instant.
    if kept:
        other, _ = _descend(evaluator, start, machine, _Zeros.MOVE)
        best = other if other.better_than(best) else best
    if best.excess > 0.0:
        other, _ = _descend(evaluator, start, machine, _Zeros.MOVE, SHRINK)
        best = other if other.better_than(best) else best
    return best


class _Zeros(Enum):
    """What becomes of shares that are zero but not left out."""

    MOVE = 0
    STAY = 1
    STAY_WHERE_A_STEP_FAILS = 2


def _descend(
    evaluator: Evaluator,
    start: Balanced,
    machine: Machine,
    zeros: _Zeros,
    first: float = 1.0,
    rival: Balanced | None = None,
) -> tuple[Balanced, bool]:
    """Linear programs one after another, the first with radius ``first``; and whether a failed step made zeros stay."""
    best, solver, kept = start, Solver(), False
    # Whether zero shares stay zero, whether that may help, and the radius without and with it.
    may_stay = zeros is _Zeros.STAY_WHERE_A_STEP_FAILS
    keep, helps, radius = zeros is _Zeros.STAY, may_stay, [first, first]
    for step in range(STEPS):
        if radius[keep] < SHORTEST:
            break
        fixed = _zeros(best.shares) if keep else best.left_out
        try:
            solution = solve(best.stages, best.shares, machine.capacity, radius[keep], fixed, solver)
        except DoesNotFitError as error:
            # Towards the shares that overrun least; the exact evaluation decides as always.
            proposal, seconds, weights = error.shares, 0.0, best.weights
            excess = error.excess / machine.capacity[error.device]
        else:
            proposal, seconds, weights, excess = solution.shares, solution.seconds, solution.weights, 0.0
        # Times and memory are mostly convex, and a convex function lies above its tangents.
        if step == 0 and rival is not None and not _better(excess, seconds, rival):
            return best, kept
        if best.excess == 0.0 and seconds > best.seconds * (1.0 - TOLERANCE):
            if not keep or rival is not None:
                return replace(best, weights=weights), kept
            keep, helps = False, False
            continue
        proposal = _symmetric(proposal, machine, fixed)
        candidate = _evaluate(evaluator, proposal, machine, best.left_out)
        if candidate.better_than(best):
            best = replace(candidate, weights=weights)
            helps = helps or (may_stay and not keep)
        else:
            longest = 1.0 if zeros is _Zeros.MOVE else _distance(best.shares, proposal)
            radius[keep] = SHRINK * min(radius[keep], longest)
            keep = keep or (helps and _count(_zeros(best.shares)) > _count(best.left_out))
            kept = kept or keep
    return best, kept


def without_small_shares(evaluator: Evaluator, start: Balanced, machine: Machine) -> Balanced:
    """The best shares found by leaving devices out: of all axes, slowest kind first, then of single axes.

    A device without a share pays no launch overhead and no message, which no linear program sees.
    """
    best = start
    attempts = 0
    for more in _whole_devices(best, machine) + _single_axes(best, machine):
        if attempts == ATTEMPTS:
            break
        shares = _cleared(best.shares, more)
        if shares is None or shares == best.shares:
            continue
        attempts += 1
        left_out = {axis: best.left_out.get(axis, False) | out for axis, out in more.items()}
        candidate = successive(evaluator, shares, machine, {**best.left_out, **left_out}, best)
        if candidate.better_than(best):
            best = candidate
    return best


def _evaluate(evaluator: Evaluator, shares: Shares, machine: Machine, left_out: LeftOut) -> Balanced:
    stages = evaluator.stages(shares)
    equal = (1.0 / len(machine),) * len(machine)
    excess = stages.excess(shares, machine.capacity)
    return Balanced(shares, stages, stages.seconds(shares), excess, equal, left_out)


def _better(excess: float, seconds: float, other: Balanced) -> bool:
    """Whether it overruns memory less, or, overrunning it as little, is faster by more than the tolerance."""
    if abs(excess - other.excess) > 1e-9:
        return excess < other.excess
    return seconds < other.seconds * (1.0 - TOLERANCE)


def _zeros(shares: Shares) -> LeftOut:
    return {axis: np.array(values) == 0.0 for axis, values in shares.items()}


def _count(left_out: LeftOut) -> int:
    return sum(int(np.count_nonzero(out)) for out in left_out.values())


def _distance(one: Shares, other: Shares) -> float:
    """Largest difference between shares."""
    return max((float(np.abs(np.subtract(values, other[axis])).max()) for axis, values in one.items()), default=0.0)


def _symmetric(shares: Shares, machine: Machine, left_out: LeftOut) -> Shares:
    """Equal devices get equal shares: the linear program's vertices are lopsided where shares do not matter."""
    found: Shares = {}
    for axis, values in shares.items():
        # Devices that are left out differ from the others of their kind.
        groups = 2 * np.array(machine.kinds) + left_out.get(axis, False)
        totals, members = np.bincount(groups, values), np.bincount(groups)
        found[axis] = (totals[groups] / members[groups]).tolist()
    return found


def _cleared(shares: Shares, left_out: LeftOut) -> Shares | None:
    """The shares with those left out set to zero and the others scaled up; ``None`` where an axis has nobody left."""
    found = dict(shares)
    for axis, out in left_out.items():
        kept = np.where(out, 0.0, shares[axis])
        if kept.sum() <= 0.0:
            return None
        if np.any(kept != shares[axis]):
            found[axis] = (kept / kept.sum()).tolist()
    return found


def _whole_devices(balanced: Balanced, machine: Machine) -> list[LeftOut]:
    """Sets of devices to leave out of every axis: the slowest kinds whole, then one or more of the slowest kind.

    Of the devices that have a share of any axis.
    """
    kinds = np.array(machine.kinds)
    used = np.array(list(balanced.shares.values())).any(axis=0)
    order = sorted(set(kinds[used].tolist()), key=lambda kind: (machine.speeds[kind], -kind))
    groups = [np.isin(kinds, order[:count]) for count in range(1, len(order))]
    slowest = np.flatnonzero(used & (kinds == order[0])) if order else kinds[:0]
    counts = range(1, min(len(slowest), ATTEMPTS))
    groups += [np.isin(np.arange(len(kinds)), slowest[-count:]) for count in counts]
    return [dict.fromkeys(balanced.shares, group) for group in groups]


def _single_axes(balanced: Balanced, machine: Machine) -> list[LeftOut]:
    """Each axis without the devices that have a small share of it."""
    small = SMALL_SHARE / len(machine)
    found: list[LeftOut] = []
    for axis in balanced.stages.axes:
        shares = np.array(balanced.shares[axis])
        out = (shares > 0.0) & (shares < small)
        if out.any():
            found.append({axis: out})
    return found

"""From real shares to whole units: several roundings, the best by exact evaluation, improved by moving units."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hap.balance.stages import Array, Evaluator, Machine, Shares, Simulation, Stages, alike
from hap.program import Splits

# Simulations spent on moving units, from each of two starts.
MOVES = 48
# Of all neighbours, ranked by the linear stages, so many are simulated before the search gives up.
TRIED = 6
# A unit that is less than this fraction of an even share is not worth moving.
WORTH_MOVING = 1e-3
# Times of stages that are compared at once, at most, unless one neighbour has more.
ENTRIES = 2**18
# A move must gain this fraction.
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Rounded:
    """Splits in whole units and the step under them."""

    splits: Splits
    simulation: Simulation


def largest_remainder(shares: Sequence[float], units: int) -> list[int]:
    """Units by device summing to ``units``: rounded down, the rest to the largest remainders, earlier devices first."""
    exact = np.array(shares) * units
    found = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-np.round(exact - found, 9), kind="stable")
    missing = units - int(found.sum())
    assert 0 <= missing < len(shares) or missing == 0, "shares sum to one"
    found[order[:missing]] += 1
    return list(map(int, found))


def least_maximum(shares: Sequence[float], units: int) -> list[int]:
    """Units by device such that the largest ``units / share`` is smallest: where the slowest device counts.

    Each unit goes to the device that would have the least for its share with it; devices without a share get none.
    """
    found = [int(max(0.0, share * units - 1.0)) for share in shares]
    heap = [((found[d] + 1) / share, d) for d, share in enumerate(shares) if share > 0.0]
    heapq.heapify(heap)
    for _ in range(units - sum(found)):
        _, device = heapq.heappop(heap)
        found[device] += 1
        heapq.heappush(heap, ((found[device] + 1) / shares[device], device))
    return found


def round_shares(shares: Shares, sizes: Mapping[str, int]) -> Splits:
    """Largest-remainder rounding of every axis."""
    return {axis: largest_remainder(shares[axis], size) for axis, size in sizes.items()}


def fractions(splits: Splits) -> Shares:
    """The shares that whole units make."""
    totals = {axis: sum(units) for axis, units in splits.items()}
    return {axis: [count / totals[axis] for count in units] for axis, units in splits.items()}


def rounded(
    evaluator: Evaluator,
    shares: Shares,
    sizes: Mapping[str, int],
    machine: Machine,
    starts: Sequence[Splits] = (),
) -> Rounded:
    """The best whole units near ``shares``, by exact evaluation.

    Args:
        evaluator: the program.
        shares: real shares by axis.
        sizes: units of each axis.
        machine: the devices.
        starts: other splits to consider, such as the ones that the program was made for. Splits in proportion to the
            devices' speeds are always among them, so that the result is never worse than these.
    """
    total = sum(machine.speeds)
    proportional = [speed / total for speed in machine.speeds]
    # Many axes have one size.
    remainder = {size: largest_remainder(proportional, size) for size in {*sizes.values()}}
    maximum = {size: least_maximum(proportional, size) for size in {*sizes.values()}}
    candidates = [
        round_shares(shares, sizes),
        {axis: least_maximum(shares[axis], size) for axis, size in sizes.items()},
        {axis: list(remainder[size]) for axis, size in sizes.items()},
        {axis: list(maximum[size]) for axis, size in sizes.items()},
        *({axis: list(start[axis]) for axis in sizes} for start in starts),
    ]
    simulated: list[Rounded] = []
    for number, splits in enumerate(candidates):
        if splits not in candidates[:number]:
            simulated.append(Rounded(splits, evaluator.simulate(splits)))
    best = _best(simulated, machine)
    found = improved(evaluator, best, machine, candidates)
    # From a second start, too: moves get stuck. The real shares' roundings may be the better start even where they
    # need a little more memory than there is.
    others = [it for it in simulated if it is not best]
    near = [it for it in others if it.splits in candidates[:2]]
    if others:
        found = _best([found, improved(evaluator, _best(near or others, machine), machine, candidates)], machine)
    return found


def _best(candidates: Sequence[Rounded], machine: Machine) -> Rounded:
    """The best one, the first of equals."""
    best = candidates[0]
    for candidate in candidates[1:]:
        if better(candidate, best, machine):
            best = candidate
    return best


def better(candidate: Rounded, other: Rounded, machine: Machine) -> bool:
    """Whether it overruns memory less, or, overrunning it as little, is faster."""
    excess, limit = candidate.simulation.excess(machine.capacity), other.simulation.excess(machine.capacity)
    if abs(excess - limit) > 1e-9:
        return excess < limit
    return candidate.simulation.seconds < other.simulation.seconds * (1.0 - TOLERANCE)


def improved(evaluator: Evaluator, start: Rounded, machine: Machine, others: Sequence[Splits]) -> Rounded:
    """Moves units between devices, or splits an axis as in one of the others, while that helps.

    Within :data:`MOVES` simulations.
    """
    best = start
    budget = MOVES
    while budget > 0:
        stages = evaluator.stages(fractions(best.splits))
        found = None
        for splits in _neighbours(stages, best, machine, others)[:budget]:
            budget -= 1
            candidate = Rounded(splits, evaluator.simulate(splits))
            if better(candidate, best, machine):
                found = candidate
                break
        if found is None:
            return best
        best = found
    return best


def _neighbours(stages: Stages, current: Rounded, machine: Machine, others: Sequence[Splits]) -> list[Splits]:
    """The most promising of all splits that differ in one axis, by the linear stages.

    There, a few units are on another device, or all are as in one of the others.
    """
    changed = _Changed(stages, fractions(current.splits), machine.capacity)
    # Many axes are split alike.
    moved: dict[tuple[int, ...], list[list[int]]] = {}
    ranked: list[tuple[float, float, str, list[int]]] = []
    for number, axis in enumerate(stages.axes):
        units = current.splits[axis]
        key = tuple(units)
        if key not in moved:
            moved[key] = [_moved(units, *move) for move in _moves(units, machine)]
        tried = moved[key] + [other[axis] for other in others if other[axis] != units]
        if tried:
            shares = np.array(tried) / sum(units)
            seconds, excess = changed.seconds(number, shares), changed.excess(number, shares)
            ranked += zip(np.round(excess, 9).tolist(), seconds.tolist(), [axis] * len(tried), tried, strict=True)
    ranked.sort(key=lambda entry: entry[:2])
    return [{**current.splits, axis: units} for _, _, axis, units in ranked[:TRIED]]


def _moved(units: Sequence[int], giver: int, taker: int, count: int) -> list[int]:
    found = list(units)
    found[giver] -= count
    found[taker] += count
    return found


def _moves(units: Sequence[int], machine: Machine) -> Iterator[tuple[int, int, int]]:
    """Moves (giver, taker, units) of one axis; of devices that are equal and hold the same only one is considered."""
    total = sum(units)
    if len(units) / total < WORTH_MOVING:
        return
    first: dict[tuple[int, int], list[int]] = {}
    for device, count in enumerate(units):
        first.setdefault((machine.kinds[device], count), []).append(device)
    givers = [members[0] for (_, count), members in first.items() if count > 0]
    for giver in givers:
        for members in first.values():
            taker = next((device for device in members if device != giver), None)
            if taker is None:
                continue
            yield giver, taker, 1
            if units[giver] > 1 and len(units) * units[giver] <= 4 * total:
                # All of it: a device without a share pays no overhead.
                yield giver, taker, units[giver]


class _Changed:
    """What other shares of one axis change, by the linear stages; the others stay."""

    def __init__(self, stages: Stages, shares: Shares, capacity: Sequence[float]) -> None:
        self.stages = stages
        self.columns = stages.columns(shares)
        _, self.of = alike(np.vstack([stages.kinds, self.columns]))
        self.times = stages.times(self.columns)
        self.memory = stages.bytes(self.columns)
        self.capacity = np.array(capacity)

    def seconds(self, axis: int, shares: Array) -> Array:
        """Change of the step time by [change], for shares by [change, device]."""
        slopes = self.stages.slopes[:, :, axis]
        moving = slopes.any(axis=1)
        # Devices of a class with the same shares take the same time.
        first, _ = alike(np.vstack([self.of, shares]))
        more = (shares - self.columns[axis])[:, first]
        times, slopes = self.times[moving][:, first], slopes[moving][:, self.stages.kinds[first]]
        few = max(1, ENTRIES // max(1, times.size))
        parts = (more[start : start + few, None] for start in range(0, len(more), few))
        longest = np.concatenate([(times + slopes * part).max(axis=2) for part in parts])
        change: Array = (longest - times.max(axis=1)) @ self.stages.counts[moving]
        return change

    def excess(self, axis: int, shares: Array) -> Array:
        """Largest excess of memory, as a fraction of it, by [change], for shares by [change, device]."""
        slopes = self.stages.memory_slopes[self.stages.kinds, axis]
        used = self.memory + slopes * (shares - self.columns[axis])
        excess: Array = np.maximum(0.0, (used / self.capacity - 1.0).max(axis=1))
        return excess

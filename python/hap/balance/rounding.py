"""From real shares to whole units: several roundings, the best by exact evaluation, improved by moving units."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hap.balance.stages import Evaluator, Machine, Shares, Simulation, Stages
from hap.program import Splits

# Simulations spent on moving units, per call.
MOVES = 48
# Of all neighbours, ranked by the linear stages, so many are simulated before the search gives up.
TRIED = 6
# A unit that is less than this fraction of an even share is not worth moving.
WORTH_MOVING = 1e-3
# A move must gain this fraction.
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Rounded:
    """Splits in whole units and the step under them."""

    splits: Splits
    simulation: Simulation


def largest_remainder(shares: Sequence[float], units: int) -> list[int]:
    """Units by device summing to ``units``: rounded down, the rest to the largest remainders, earlier devices first."""
    exact = [share * units for share in shares]
    found = [int(value + 1e-9) for value in exact]
    order = sorted(range(len(shares)), key=lambda device: (-(round(exact[device] - found[device], 9)), device))
    missing = units - sum(found)
    assert 0 <= missing < len(shares) or missing == 0, "shares sum to one"
    for device in order[:missing]:
        found[device] += 1
    return found


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
    return {axis: [count / sum(units) for count in units] for axis, units in splits.items()}


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
    proportional = [speed / sum(machine.speeds) for speed in machine.speeds]
    candidates = [
        round_shares(shares, sizes),
        {axis: least_maximum(shares[axis], size) for axis, size in sizes.items()},
        {axis: largest_remainder(proportional, size) for axis, size in sizes.items()},
        {axis: least_maximum(proportional, size) for axis, size in sizes.items()},
        *({axis: list(start[axis]) for axis in sizes} for start in starts),
    ]
    best: Rounded | None = None
    for number, splits in enumerate(candidates):
        if splits in candidates[:number]:
            continue
        candidate = Rounded(splits, evaluator.simulate(splits))
        if best is None or _better(candidate, best, machine):
            best = candidate
    assert best is not None
    return _improved(evaluator, best, machine)


def _better(candidate: Rounded, other: Rounded, machine: Machine) -> bool:
    excess, limit = candidate.simulation.excess(machine.capacity), other.simulation.excess(machine.capacity)
    if abs(excess - limit) > 1e-9:
        return excess < limit
    return candidate.simulation.seconds < other.simulation.seconds * (1.0 - TOLERANCE)


def _improved(evaluator: Evaluator, start: Rounded, machine: Machine) -> Rounded:
    """Moves units between devices while that helps, within :data:`MOVES` simulations."""
    best = start
    budget = MOVES
    while budget > 0:
        stages = evaluator.stages(fractions(best.splits))
        found = None
        for splits in _neighbours(stages, best, machine)[: min(TRIED, budget)]:
            budget -= 1
            candidate = Rounded(splits, evaluator.simulate(splits))
            if _better(candidate, best, machine):
                found = candidate
                break
        if found is None:
            return best
        best = found
    return best


def _neighbours(stages: Stages, current: Rounded, machine: Machine) -> list[Splits]:
    """All splits with a few units of one axis on another device, the most promising by the linear stages first."""
    ranked: list[tuple[float, float, int, Splits]] = []
    terms = _Terms(stages, fractions(current.splits))
    for axis in stages.axes():
        units = current.splits[axis]
        for giver, taker, count in _moves(units, machine):
            excess, seconds = terms.after(axis, giver, taker, count / sum(units), machine.capacity)
            moved = list(units)
            moved[giver] -= count
            moved[taker] += count
            ranked.append((round(excess, 9), seconds, len(ranked), {**current.splits, axis: moved}))
    ranked.sort(key=lambda entry: entry[:3])
    return [entry[3] for entry in ranked]


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


class _Terms:
    """Stage times by device as lists, so that the effect of one move is cheap to see."""

    def __init__(self, stages: Stages, shares: Shares) -> None:
        self.stages = stages
        self.shares = shares
        self.times = [[term.at(shares, device) for device, term in enumerate(stage.devices)] for stage in stages.stages]
        self.memory = [term.at(shares, device) for device, term in enumerate(stages.memory)]

    def after(self, axis: str, giver: int, taker: int, share: float, capacity: Sequence[float]) -> tuple[float, float]:
        """Excess of memory and step time after a share of an axis has moved."""
        seconds = 0.0
        for stage, times in zip(self.stages.stages, self.times, strict=True):
            lost = stage.devices[giver].slopes.get(axis, 0.0)
            gained = stage.devices[taker].slopes.get(axis, 0.0)
            if lost or gained:
                times = list(times)
                times[giver] -= lost * share
                times[taker] += gained * share
            seconds += max(times)
        excess = 0.0
        for device, (used, limit) in enumerate(zip(self.memory, capacity, strict=True)):
            slope = self.stages.memory[device].slopes.get(axis, 0.0)
            change = share * slope * ((device == taker) - (device == giver))
            excess = max(excess, (used + change) / limit - 1.0)
        return excess, seconds

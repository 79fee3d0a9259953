"""Programs under prices of memory from a fixed ladder: what a search under a tight limit sees, one under a looser does.

The rungs do not depend on how much memory there is. From rung to rung the price of a byte rises, and the cheapest
programs take longer, as priced, and hold less. That tells which parts of a ladder are not worth a synthesis: where
nothing fits, and where nothing is faster than what fits already. The rest is bisected. So the fastest program that fits
among all that were seen is never faster where there is less memory, as long as no limit cuts a synthesis short and
programs take what they are priced at. What overlaps, and latencies that buckets save, are simulated but not priced: a
skipped rung may be faster by them. On small random models less memory then was faster in one case of 25, by up to 5%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from hap.planning.engine import Constraints, MemoryPrices, Prices
from hap.planning.problem import Candidate, Problem, candidate

# At the lowest rung all memory together costs this fraction of the step; at the highest so many steps.
LOWEST, HIGHEST = 2.0**-8, 2.0**10
RUNGS = 64
# Of larger programs, as text, fewer rungs are looked at: those at multiples of a power of two that rises with the size.
LARGE, COARSEST = 50_000, 4
# Below a rung that does not fit so few rungs are not looked at, and none below one that overruns by this fraction.
FEW = 8
HOPELESS = 0.5
# Equal layers would all change their way at one price: by so much is the first dearer than the last.
SKEW = 1.0


class _Operator(msgspec.Struct):
    """The operator that an instruction applies, if it does."""

    operator: str = ""


class _Operators(msgspec.Struct):
    """What a program applies: all else of it is skipped, which is several times as fast."""

    instructions: list[_Operator]


@dataclass(frozen=True, slots=True)
class Ladder:
    """Prices in proportion to ``unit``, under given splits.

    Attributes:
        start: a candidate with these splits, and the prices of time in ``weights``.
        unit: prices at which all memory together costs one step.
    """

    start: Candidate
    unit: MemoryPrices

    def rung(self, problem: Problem, place: int) -> Rung:
        """The rung at this place."""
        price = LOWEST * (HIGHEST / LOWEST) ** ((place - 1) / (RUNGS - 1)) if place > 0 else 0.0
        return rung_at(problem, self.start, scaled(self.unit, price), problem.constraints, place)


@dataclass(frozen=True, slots=True)
class Rung:
    """The cheapest program at one price.

    Attributes:
        place: from 0, where memory costs nothing, to ``RUNGS``.
        found: the program.
        prices: of memory.
        seconds: its time as priced: no program on a higher rung takes less.
        held: the price of its memory: at these prices, none on a lower rung holds less.
    """

    place: int
    found: Candidate
    prices: MemoryPrices
    seconds: float
    held: float


@dataclass(slots=True)
class Seen:
    """The fastest candidate that fits, with the rungs above and below it, and those that do not fit.

    Attributes:
        best: the fastest that fits; ``None`` where none does.
        least: the one that overruns memory least; ``nearest`` is its rung where it is from a ladder.
        place: of the last rung of a ladder that was the best.
        above, below: where ``best`` is from a ladder: its rung, and the nearest lower one that was seen not to fit.
        over: rungs that do not fit.
        programs: all that were seen, each as it was seen last.
    """

    capacity: Sequence[float]
    best: Candidate | None = None
    least: Candidate | None = None
    nearest: Rung | None = None
    above: Rung | None = None
    below: Rung | None = None
    place: int | None = None
    over: list[Rung] = field(default_factory=list)
    programs: dict[str, Candidate] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The fastest time that fits."""
        return math.inf if self.best is None else self.best.simulation.seconds

    def fits(self, found: Candidate) -> bool:
        """Whether a candidate overruns no device's memory."""
        return found.simulation.excess(self.capacity) == 0.0

    @property
    def fitting(self) -> list[Candidate]:
        """What fits of each program, the fastest first."""
        return sorted(filter(self.fits, self.programs.values()), key=lambda found: found.simulation.seconds)

    def add(self, found: Candidate, rung: Rung | None = None) -> bool:
        """Counts a candidate; whether it is the best one now."""
        self.programs[found.program] = found
        if found.better_than(self.least, self.capacity):
            self.least, self.nearest = found, rung
        if not self.fits(found) or found.simulation.seconds >= self.seconds:
            return False
        self.best, self.above, self.below = found, rung, None
        self.place = self.place if rung is None else rung.place
        return True


def climb(problem: Problem, ladders: Sequence[Ladder], seen: Seen) -> None:
    """Adds to what was seen the fastest program of some ladders that fits, unless it cannot be the best.

    Args:
        problem: the problem.
        ladders: equal but for segments and weight of the moments; of few segments first.
        seen: what was seen so far.
    """
    # By weight and place, programs that run nothing again: they are the cheapest whatever the segments.
    common: dict[tuple[float, int], Rung] = {}
    for ladder in ladders:
        _Climb(problem, ladder, seen, common, grain(ladder.start)).run()


def grain(start: Candidate) -> int:
    """Rungs are looked at whose place is a multiple of this power of two."""
    size = len(start.program) // LARGE
    return min(COARSEST, 1 << max(0, size.bit_length() - 1))


@dataclass(slots=True)
class _Climb:
    problem: Problem
    ladder: Ladder
    seen: Seen
    common: dict[tuple[float, int], Rung]
    grain: int
    visited: list[Rung] = field(default_factory=list)

    def run(self) -> None:
        seen = self.seen
        bottom = self.look(0)
        if bottom.seconds < seen.seconds:
            if seen.place is None:
                self.between(bottom, self.look(RUNGS))
            else:
                self.around(bottom, self.look(seen.place - seen.place % self.grain))
        if seen.above in self.visited:
            best = [rung for rung in self.visited if rung.found.simulation.seconds == seen.seconds]
            seen.above = min(filter(self._fits, best), key=lambda rung: rung.place)
            seen.place = seen.above.place
            lower = [rung for rung in self.visited if rung.place < seen.above.place and not self._fits(rung)]
            seen.below = max(lower, key=lambda rung: rung.place, default=None)

    def _fits(self, rung: Rung) -> bool:
        return self.seen.fits(rung.found)

    def look(self, place: int) -> Rung:
        """The rung at this place, which now counts as seen."""
        # Where memory costs nothing, its weight does not matter, and no other segments take less.
        key = (self.ladder.unit.between, place) if place > 0 else (0.0, 0)
        rung = self.common.get(key)
        if rung is None:
            rung = self.ladder.rung(self.problem, place)
            if place == 0 or not _runs_again(rung.found):
                self.common[key] = rung
            self.seen.add(rung.found, rung)
            if not self.seen.fits(rung.found):
                self.seen.over.append(rung)
        self.visited.append(rung)
        return rung

    def around(self, bottom: Rung, middle: Rung) -> None:
        """The same for all rungs, from one on that is near the best one of another ladder, in growing steps."""
        low, width = middle, self.grain
        while low.seconds < self.seen.seconds and low.place < RUNGS:
            high = self.look(min(low.place + width, RUNGS))
            self.between(low, high)
            low, width = high, 2 * width
        high, width = middle, self.grain
        while high.place > 0 and self._fits(high):
            low = self.look(high.place - width) if high.place > width else bottom
            self.between(low, high)
            high, width = low, 2 * width
        self.between(bottom, high)

    def between(self, low: Rung, high: Rung) -> None:
        """The same for the rungs between two, where that may be worth it."""
        width, excess = high.place - low.place, high.found.simulation.excess(self.seen.capacity)
        if width <= self.grain or low.seconds >= self.seen.seconds or low.found.program == high.found.program:
            return
        # All on lower rungs hold more than this, and more than what may fit, as priced.
        if high.held > (1.0 + high.prices.skew) * high.prices.of(self.seen.capacity):
            return
        if excess > HOPELESS or (width <= FEW * self.grain and excess > 0.0):
            return
        middle = self.look(low.place + width // self.grain // 2 * self.grain)
        self.between(low, middle)
        self.between(middle, high)


def rung_at(problem: Problem, start: Candidate, memory: MemoryPrices, constraints: Constraints, place: int = 0) -> Rung:
    """The cheapest program at these prices of memory, under the splits and the prices of time of ``start``."""
    engine = problem.engine
    assert start.weights is not None
    # Where memory costs nothing, nothing is gained by running anything again.
    priced = memory if any(memory.seconds_per_byte) else None
    synthesis = engine.synthesise(start.splits, Prices(start.weights, memory=priced), constraints)
    found = replace(candidate(problem, synthesis, start.splits), weights=start.weights)
    compute = sum(weight * busy for weight, busy in zip(start.weights, found.simulation.compute, strict=True))
    seconds = compute + (1.0 - engine.cluster.hidden) * found.simulation.communication
    return Rung(place, found, memory, seconds, synthesis.cost - seconds)


def _runs_again(found: Candidate) -> bool:
    """Whether any operator runs twice."""
    items = msgspec.json.decode(found.program, type=_Operators).instructions
    made = [item.operator for item in items if item.operator]
    return len(set(made)) < len(made)


def scaled(prices: MemoryPrices, factor: float) -> MemoryPrices:
    """Prices so many times as high."""
    return msgspec.structs.replace(prices, seconds_per_byte=tuple(factor * price for price in prices.seconds_per_byte))

"""Plans for memory that is scarce: a byte gets a price, and of all programs seen the fastest that fits is taken.

Under a price, synthesis weighs seconds against bytes: what to store in shards, what to gather a second time, and which
operators to run a second time in the backward. Its bound, less the price of all the memory that there is, is a bound
of the time of every program that fits (a Lagrangian dual).
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import msgspec

from hap.balance import Machine
from hap.errors import PlanError
from hap.planning.engine import Holder, MemoryPrices, NoProgramError, Prices, parse_program
from hap.planning.ladder import SKEW, Ladder, Seen, climb, grain, rung_at, scaled
from hap.planning.prices import busiest
from hap.planning.problem import TOLERANCE, Candidate, Problem, balanced, candidate, first_prices, may_beat
from hap.program import InputInstruction, Splits
from hap.units import bytes_text, listed

# Segments of the forward whose parts the backward may make again, each at its time; and the weight of the moment
# between the two. At the end of the step there is a gradient of each parameter.
WAYS = ((2, 0.75), (4, 0.75), (8, 0.5))
# The first of these is tried under several splits: those under which a program that was seen before fits, and takes no
# more than this fraction of the best time. All are tried under splits that balance has found, in so many rounds, as
# long as these gain the fraction.
FIRST = 1
WORTH_CLIMBING = 1.1
ROUNDS = 2
WORTH_A_ROUND = 1e-3
# Numbers of ways, and places on their ladders, of programs that hold less and less memory: what fits other sets of
# devices is mostly like one of them.
LEAN = ((1, 16), (2, 16), (1, 24), (2, 24), (2, 64))
# Programs that take this part of all memory together may fit under other splits; so many are balanced, by the time that
# they are expected to take then: it rises by this part of the fraction that they overrun memory by.
NEAR = 1.08
NEAREST = 16
SLOPE = 0.15
# Balance leaves this fraction of each device's memory for the rounding to whole units.
MARGIN = 0.005
# Where that is overrun by no more than this fraction, it leaves as much more.
ROUNDING = 0.1
# Prices that are tried between two rungs.
REFINEMENTS = 4
# Where the nearest program that does not fit is faster by this fraction, programs between the two are tried.
WORTH_MIXING = 0.02
# Weights of the moment between forward and backward that the lower bound is raised with; for each, it ends after so
# many syntheses that raise it by less than this fraction. Prices are apart by this factor at first.
BETWEENS = (1.0, 0.5)
BOUND_FAILURES = 2
WORTH_A_STEP = 1e-4
RAISE = 4.0
# Where all overrun memory by more than this fraction, no other prices are tried.
FAR = 0.5
# Largest holders of memory that an error names.
HOLDERS = 10


class ScarceMemoryError(PlanError):
    """No plan was found that fits the devices' memory."""


def lean(problem: Problem, fastest: Candidate) -> list[str]:
    """Some programs of the ladders, which hold less and less memory; fewer where a limit of the synthesis ends this."""
    found: dict[str, None] = {}
    units = _by_way(_unit(problem, fastest))
    with contextlib.suppress(NoProgramError):
        for way, place in LEAN:
            found[Ladder(fastest, units[way]).rung(problem, place).found.program] = None
    return [*found]


def fit(
    problem: Problem, known: Sequence[Candidate], splits: Sequence[Splits]
) -> tuple[Candidate, MemoryPrices, list[Candidate]]:
    """The fastest plan found that fits, or the one that overruns memory least; the last prices; and what fits.

    Never slower than the fastest of the ladders (:mod:`hap.planning.ladder`) that fits, which less memory, on all
    devices alike, makes no faster but by what is not priced. Programs between two rungs, and other splits, are tried
    for this much memory alone: what they gain, a search with a little more memory may miss.

    Args:
        problem: the problem.
        known: candidates found without regard to memory, and any others; at least one, the fastest first.
        splits: further splits to try.
    """
    capacity = problem.engine.machine.capacity
    seen = Seen(capacity)
    for found in known:
        seen.add(found)
    unit = _unit(problem, known[0])
    units = _by_way(unit)
    splits = [one for number, one in enumerate(splits) if one not in (known[0].splits, *splits[:number])]
    # Where a limit of the synthesis ends this, what was found before stays.
    with contextlib.suppress(NoProgramError):
        climb(problem, [Ladder(known[0], units[FIRST])], seen)
    for seconds, one in _promising(problem, splits, seen):
        if seen.best is None or seconds < seen.seconds * WORTH_CLIMBING:
            with contextlib.suppress(NoProgramError):
                climb(problem, [Ladder(_start(problem, one), units[FIRST])], seen)
    prices = unit if seen.above is None else seen.above.prices
    if seen.best is None and seen.nearest is not None and seen.nearest.found.simulation.excess(capacity) <= FAR:
        _vary(problem, seen)
    _refine(problem, seen)
    _mix(problem, seen)
    _balance(problem, known, seen)
    # Once more, from the splits that balance has found, while that helps.
    for _ in range(ROUNDS):
        last, seconds = seen.best or seen.least, seen.seconds
        if last is None or last.weights is None or last.splits in (known[0].splits, *splits):
            break
        seen.over.clear()
        with contextlib.suppress(NoProgramError):
            climb(problem, [Ladder(last, unit) for unit in units], seen)
            _refine(problem, seen)
            _balance(problem, [], seen)
        if seen.seconds > seconds * (1.0 - WORTH_A_ROUND):
            break
    best = seen.best or seen.least
    assert best is not None, "some candidate is known"
    return best, prices, seen.fitting


def _promising(problem: Problem, splits: Sequence[Splits], seen: Seen) -> list[tuple[float, Splits]]:
    """Splits with the least seconds of the programs that were seen and fit under them; the most promising first."""

    def least(one: Splits) -> float:
        steps = [problem.engine.simulate(program, one) for program in seen.programs]
        return min((step.seconds for step in steps if step.excess(seen.capacity) == 0.0), default=math.inf)

    return sorted(((least(one), one) for one in splits), key=lambda promise: promise[0])


def _start(problem: Problem, splits: Splits) -> Candidate:
    """Splits with prices of time: those of the devices that the cheapest program keeps busiest."""
    synthesis = problem.engine.synthesise(splits, first_prices(problem, splits), problem.constraints)
    found = candidate(problem, synthesis, splits)
    return replace(found, weights=busiest(found.simulation, problem.engine.cluster.hidden).weights)


def _unit(problem: Problem, fastest: Candidate) -> MemoryPrices:
    """The prices of a byte, dearer where there are fewer, at which the memory of the fastest program costs a step."""
    capacity = problem.engine.machine.capacity
    prices = [min(capacity) / size for size in capacity]
    total = sum(price * size for price, size in zip(prices, fastest.simulation.memory, strict=True))
    unit = tuple(fastest.simulation.seconds * price / total for price in prices)
    held = problem.engine.optimiser
    return MemoryPrices(unit, 1.0, held.tensors, held.temporaries, skew=SKEW)


def _by_way(unit: MemoryPrices) -> list[MemoryPrices]:
    """The prices for each of :data:`WAYS`."""
    return [msgspec.structs.replace(unit, segments=segments, between=between) for segments, between in WAYS]


def _vary(problem: Problem, seen: Seen) -> None:
    """Where nothing fits: like the rung that overruns memory least, with other prices."""
    rung = seen.nearest
    assert rung is not None
    for between, skew, factor in itertools.product((1.0, 0.5, 0.25), (0.5, 0.0), (0.5, 1.0, 2.0)):
        prices = msgspec.structs.replace(scaled(rung.prices, factor), between=between, skew=skew)
        with contextlib.suppress(NoProgramError):
            varied = rung_at(problem, rung.found, prices, problem.constraints)
            seen.add(varied.found, varied)


def _refine(problem: Problem, seen: Seen) -> None:
    """Prices between the rung of the best program and the one below it, which does not fit."""
    low, high = seen.below, seen.above
    if low is None or high is None or low.place == 0:
        return
    lowest = math.log(max(low.prices.seconds_per_byte) / max(high.prices.seconds_per_byte))
    # Between these fractions of the way down.
    fits, fails = 0.0, 1.0
    # A bisection, to the same precision whatever the rungs were.
    for _ in range(REFINEMENTS + grain(high.found).bit_length() - 1):
        if low.seconds >= seen.seconds:
            return
        middle = (fits + fails) / 2.0
        try:
            prices = scaled(high.prices, math.exp(middle * lowest))
            rung = rung_at(problem, high.found, prices, problem.constraints, high.place)
        except NoProgramError:
            return
        if seen.add(rung.found, rung) or seen.fits(rung.found):
            fits = middle
        else:
            fails, low = middle, rung
        if seen.above in (rung, high):
            seen.below = low


def _mix(problem: Problem, seen: Seen) -> None:
    """Programs that store some parameters like one that fits, and the others like a faster one that does not.

    At no price is one of them the cheapest, yet they may be the fastest that fit.
    """
    slow, fast = seen.above, seen.below
    if slow is None or fast is None or fast.found.simulation.seconds > seen.seconds * (1.0 - WORTH_MIXING):
        return
    after, before = _stored(problem, slow.found), _stored(problem, fast.found)
    names = [name for name in after if after[name] != before[name]]
    for order in (names, names[::-1]):
        few, many = 0, len(order)
        while many - few > 1:
            middle = (few + many) // 2
            stored = {name: ((after if name in order[:middle] else before)[name],) for name in after}
            placements = {**problem.constraints.placements, **stored}
            constraints = msgspec.structs.replace(problem.constraints, placements=placements)
            try:
                found = rung_at(problem, slow.found, slow.prices, constraints).found
            except NoProgramError:
                break
            seen.add(found, slow)
            few, many = (few, middle) if seen.fits(found) else (middle, many)


def _stored(problem: Problem, found: Candidate) -> dict[str, str]:
    """By name of a parameter's tensor, in the order of the program, the placement that it is stored in."""
    inputs = (item for item in parse_program(found.program).instructions if isinstance(item, InputInstruction))
    return {item.tensor: item.placement[0] for item in inputs if item.tensor in problem.parameters}


def _balance(problem: Problem, known: Sequence[Candidate], seen: Seen) -> None:
    """Other splits: for the fastest programs that may fit then, and for the best one."""
    machine = problem.engine.machine

    def leaving(fraction: float) -> Machine:
        return replace(machine, capacity=tuple((1.0 - fraction) * size for size in machine.capacity))

    def improve(found: Candidate) -> Candidate:
        rival = None if found is seen.best else seen.best
        better = balanced(problem, found, leaving(MARGIN), rival)
        excess = better.simulation.excess(seen.capacity)
        if better is not found and 0.0 < excess <= ROUNDING:
            better = balanced(problem, found, leaving(MARGIN + excess), rival)
        if better is not found:
            seen.add(better)
        return better

    tight = leaving(MARGIN)

    def expected(found: Candidate) -> float:
        return found.simulation.seconds * (1.0 + SLOPE * found.simulation.excess(tight.capacity))

    room = NEAR * sum(tight.capacity)
    near: dict[tuple[float, ...], Candidate] = {}
    for found in [*known, *(rung.found for rung in seen.over)]:
        if not seen.fits(found) and sum(found.simulation.memory) <= room:
            near.setdefault((found.simulation.seconds, *found.simulation.memory), found)
    for found in sorted(near.values(), key=expected)[:NEAREST]:
        if seen.best is None or (found.simulation.seconds < seen.seconds and may_beat(problem, found, seen.best)):
            improve(found)
    last = seen.best or seen.least
    assert last is not None
    if last.rounding_loss is None:
        last = improve(last)
    if seen.above is not None and last.weights is not None:
        with contextlib.suppress(NoProgramError):
            seen.add(rung_at(problem, last, seen.above.prices, problem.constraints).found)


def raise_bound(
    problem: Problem, best: Candidate, bound: float, prices: Prices, memory: MemoryPrices
) -> tuple[Candidate, float]:
    """The best bound of programs that fit, under the splits of ``best``, and any better one that is found on the way.

    Args:
        problem: the problem.
        best: a plan that fits.
        bound: the best bound so far.
        prices: the prices of time that gave it.
        memory: prices of memory to start from.
    """
    engine = problem.engine
    capacity = engine.machine.capacity
    for between in BETWEENS:
        low, high, factor, failures = 0.0, math.inf, 1.0, 0
        while failures <= BOUND_FAILURES:
            priced = msgspec.structs.replace(scaled(memory, factor), between=between, segments=1, skew=0.0)
            prices = msgspec.structs.replace(prices, memory=priced)
            try:
                synthesis = engine.synthesise(best.splits, prices, problem.constraints)
            except NoProgramError:
                break
            found = candidate(problem, synthesis, best.splits)
            if found.better_than(best, capacity):
                best = replace(found, rounding_loss=best.rounding_loss, weights=best.weights)
            raised = synthesis.bound - priced.of(capacity)
            failures += raised <= bound * (1.0 + WORTH_A_STEP)
            bound = max(bound, raised)
            if best.simulation.seconds <= bound * (1.0 + TOLERANCE):
                return best, bound
            # The bound is concave in the factor; what the cheapest program takes, less what there is, is its slope.
            if priced.of(synthesis.priced_memory) > priced.of(capacity):
                low = factor
            else:
                high = factor
            factor = (
                math.sqrt(low * high) if low > 0.0 and high < math.inf else factor * (RAISE if low else 1.0 / RAISE)
            )
    return best, bound


def _worst(memory: Sequence[float], capacity: Sequence[float]) -> int:
    """The device that is overrun most."""
    return max(range(len(memory)), key=lambda rank: (memory[rank] / capacity[rank], -rank))


def report_excess(problem: Problem, best: Candidate) -> NoReturn:
    """Raises :class:`ScarceMemoryError`: by how much the best plan exceeds memory, where, and what the memory holds."""
    capacity = problem.engine.machine.capacity
    memory = best.simulation.memory
    device = _worst(memory, capacity)
    name = problem.engine.cluster.devices[device].name
    text = (
        f"no plan fits memory: the one that comes nearest needs {bytes_text(memory[device])} on device {device} "
        f"({name}), {bytes_text(memory[device] - capacity[device])} more than its {bytes_text(capacity[device])}"
    )
    if best.simulation.memory_parts:
        parts = msgspec.structs.asdict(best.simulation.memory_parts[device])
        text += f"; it holds {', '.join(f'{bytes_text(size)} of {part}' for part, size in parts.items())}"
    if problem.pins:
        text += f". The plan is bound by {listed(map(str, problem.pins))}"
    holders = problem.engine.holders(best.program, best.splits, HOLDERS)[device]
    lines = "".join(f"\n  {_described(problem, holder)}" for holder in holders)
    raise ScarceMemoryError(
        f"{text}. Use more or larger devices, or a smaller batch. The largest holders at its peak:{lines}"
    )


def _described(problem: Problem, holder: Holder) -> str:
    """Such as ``3.00 MiB activation relu_1 [S0], model.py:12: x = F.relu(x)``."""
    origin = problem.origins.get(holder.tensor)
    placement = ", ".join(holder.placement)
    what = f"{bytes_text(holder.bytes)} {holder.part} {holder.tensor} [{placement}]"
    return f"{what}, {origin}" if origin else what

"""Plans for memory that is scarce: a byte gets a price, which is raised until the simulated peak fits.

Under a price, synthesis weighs seconds against bytes: what to store in shards, what to gather a second time, and which
operators to run a second time in the backward. Its bound, less the price of all the memory that there is, is a bound
of the time of every program that fits (a Lagrangian dual).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import msgspec

from hap.errors import PlanError
from hap.planning.engine import Holder, MemoryPrices, Prices
from hap.planning.problem import TOLERANCE, Candidate, Problem, balanced, candidate, first_prices
from hap.units import bytes_text, listed

# At the first price, a device's memory costs this fraction of the step: without cuts of the forward, and with them.
FIRST = (1.0 / 1024.0, 1.0 / 16.0)
# Prices are raised by this factor, at most so often, and bisected so often where they fit.
RAISE = 4.0
RAISES = 10
BISECTIONS = 4
# Equal layers would all change their way at one price: by so much is the first dearer than the last.
SKEW = 0.5
# Raising ends after so many more that hardly need less memory.
FAILURES = 1
# Segments of the forward whose parts the backward may make again, each at its time.
SEGMENTS = (1, 2, 4, 8)
# Plans that take this fraction more than without a limit are good enough not to try further segments.
CLOSE = 0.02
# Programs that take this part of all memory together may fit under other splits; of the fastest so many are balanced.
NEAR = 1.08
NEAREST = 4
# Rounds of synthesis and balance under the final price.
ROUNDS = 2
# Syntheses that raise the lower bound.
BOUND_STEPS = 6
# Largest holders of memory that an error names.
HOLDERS = 10


def fit(problem: Problem, starts: Sequence[Candidate], best: Candidate) -> tuple[Candidate, MemoryPrices]:
    """The fastest plan found that fits, or the one that overruns memory least; and the last prices of memory.

    Args:
        problem: the problem.
        starts: candidates that overrun memory, whose splits are tried in this order until a plan fits.
        best: the best one so far.
    """
    capacity = problem.engine.machine.capacity
    none = MemoryPrices((0.0,) * len(capacity), 1.0, problem.engine.optimiser_tensors, skew=SKEW)
    prices = _raised(none, _first(starts[0], capacity, FIRST[1]), starts[0], capacity)
    for start in starts:
        near: list[tuple[Candidate, MemoryPrices]] = []
        for count in SEGMENTS:
            found, raised, others = _raise(problem, start, msgspec.structs.replace(none, segments=count))
            near += others
            better = found.better_than(best, capacity)
            if better:
                best, prices = found, raised
            # Where it fits, further cuts are tried while they gain.
            fits = best.simulation.excess(capacity) == 0.0
            if fits and (not better or best.simulation.seconds < start.simulation.seconds * (1.0 + CLOSE)):
                break
        near.sort(key=lambda one: one[0].simulation.seconds)
        for other, raised in near[:NEAREST]:
            if best.simulation.excess(capacity) > 0.0 or other.simulation.seconds < best.simulation.seconds:
                found = balanced(problem, other)
                best, prices = (found, raised) if found.better_than(best, capacity) else (best, prices)
        best = _alternate(problem, best, prices)
        if best.simulation.excess(capacity) == 0.0:
            break
    return best, prices


def _alternate(problem: Problem, best: Candidate, prices: MemoryPrices) -> Candidate:
    """Balance and synthesis under the final prices alternate."""
    capacity = problem.engine.machine.capacity
    for _ in range(ROUNDS):
        again = balanced(problem, best)
        best = again if again.better_than(best, capacity) else best
        found = _under(problem, best, prices)
        if not found.better_than(best, capacity):
            break
        best = found
    return best


def _raise(
    problem: Problem, start: Candidate, prices: MemoryPrices
) -> tuple[Candidate, MemoryPrices, list[tuple[Candidate, MemoryPrices]]]:
    """The best candidate under prices that are raised until it fits, and then bisected, and its prices.

    And those that do not fit, but may under other splits.
    """
    capacity = problem.engine.machine.capacity
    first = _first(start, capacity, FIRST[prices.segments > 1])
    before = start.simulation.excess(capacity)
    best, least, failures = (start, prices), before, 0
    near: list[tuple[Candidate, MemoryPrices]] = []

    def attempt(prices: MemoryPrices) -> Candidate:
        nonlocal best
        found = _under(problem, start, prices)
        if found.better_than(best[0], capacity):
            best = found, prices
        memory = found.simulation.memory
        if found.simulation.excess(capacity) > 0.0 and sum(memory) <= NEAR * sum(capacity):
            near.append((found, prices))
        return found

    low, found = prices, start
    for _ in range(RAISES):
        low, prices = prices, _raised(prices, first, found, capacity)
        found = attempt(prices)
        excess = found.simulation.excess(capacity)
        if excess == 0.0:
            break
        # Before anything changes, prices are too low to tell.
        failures = 0 if excess < least - 0.01 or least == before else failures + 1
        least = min(excess, least)
        if failures > FAILURES:
            break
    if excess > 0.0:
        # What is computed again is held, too: the peak has a minimum over prices.
        attempt(_scaled(best[1], math.sqrt(RAISE)))
        attempt(_scaled(best[1], 1.0 / math.sqrt(RAISE)))
        return *best, near
    for _ in range(BISECTIONS):
        middle = _between(low, prices)
        if attempt(middle).simulation.excess(capacity) == 0.0:
            prices = middle
        else:
            low = middle
    return *best, near


def _first(start: Candidate, capacity: Sequence[float], fraction: float) -> list[float]:
    """By device, the price at which its memory costs this fraction of the step."""
    return [fraction * start.simulation.seconds / size for size in capacity]


def _raised(prices: MemoryPrices, first: Sequence[float], found: Candidate, capacity: Sequence[float]) -> MemoryPrices:
    """Higher prices on the devices that a candidate overruns, and more weight on the moment at which it does."""
    memory = found.simulation.memory
    raised = (
        max(RAISE * price, lowest) if used > limit else price
        for price, lowest, used, limit in zip(prices.seconds_per_byte, first, memory, capacity, strict=True)
    )
    parts = found.simulation.memory_parts[_worst(memory, capacity)]
    # At the end of the step there is a gradient of nearly every parameter.
    done = min(1.0, parts.gradients / parts.parameters) if parts.parameters > 0.0 else 0.0
    return msgspec.structs.replace(prices, seconds_per_byte=tuple(raised), between=(prices.between + 1.0 - done) / 2.0)


def _scaled(prices: MemoryPrices, factor: float) -> MemoryPrices:
    return msgspec.structs.replace(prices, seconds_per_byte=tuple(factor * price for price in prices.seconds_per_byte))


def _between(low: MemoryPrices, high: MemoryPrices) -> MemoryPrices:
    """The geometric means."""
    pairs = zip(low.seconds_per_byte, high.seconds_per_byte, strict=True)
    means = (math.sqrt(max(one, other / RAISE**2) * other) for one, other in pairs)
    return msgspec.structs.replace(high, seconds_per_byte=tuple(means))


def _under(problem: Problem, start: Candidate, memory: MemoryPrices) -> Candidate:
    """The best program under these prices and the splits of ``start``."""
    weights = start.weights or first_prices(problem, start.splits).weights
    synthesis = problem.engine.synthesise(start.splits, Prices(weights, memory=memory), problem.constraints)
    return replace(candidate(problem, synthesis, start.splits), weights=weights)


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
    low, high, factor = 0.0, math.inf, 1.0
    for _ in range(BOUND_STEPS):
        priced = msgspec.structs.replace(_scaled(memory, factor), segments=1, skew=0.0)
        prices = msgspec.structs.replace(prices, memory=priced)
        synthesis = engine.synthesise(best.splits, prices, problem.constraints)
        found = candidate(problem, synthesis, best.splits)
        if found.better_than(best, capacity):
            best = replace(found, rounding_loss=best.rounding_loss, weights=best.weights)
        bound = max(bound, synthesis.bound - priced.of(capacity))
        if best.simulation.seconds <= bound * (1.0 + TOLERANCE):
            break
        # The bound is concave in the factor; what the cheapest program takes, less what there is, is its slope.
        if priced.of(synthesis.priced_memory) > priced.of(capacity):
            low = factor
        else:
            high = factor
        factor = math.sqrt(low * high) if low > 0.0 and high < math.inf else factor * (RAISE if low else 1.0 / RAISE)
    return best, bound


def _worst(memory: Sequence[float], capacity: Sequence[float]) -> int:
    """The device that is overrun most."""
    return max(range(len(memory)), key=lambda rank: (memory[rank] / capacity[rank], -rank))


def report_excess(problem: Problem, best: Candidate) -> NoReturn:
    """Raises ``PlanError``: by how much the best plan exceeds memory, on which device, and what the memory holds."""
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
    raise PlanError(f"{text}. Use more or larger devices, or a smaller batch. The largest holders at its peak:{lines}")


def _described(problem: Problem, holder: Holder) -> str:
    """Such as ``3.00 MiB activation relu_1 [S0], model.py:12: x = F.relu(x)``."""
    origin = problem.origins.get(holder.tensor)
    placement = ", ".join(holder.placement)
    what = f"{bytes_text(holder.bytes)} {holder.part} {holder.tensor} [{placement}]"
    return f"{what}, {origin}" if origin else what

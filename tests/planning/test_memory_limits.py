"""Plans under a memory limit: what of them less memory never makes faster, and what limits of the synthesis leave."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hap.cluster import Cluster, Device, Link
from hap.planning import plan_axes
from hap.planning.engine import CutShortError, Engine, Limits, MemoryPrices, Prices
from hap.planning.ladder import Ladder, Rung, Seen, climb, rung_at
from hap.planning.memory import fit, raise_bound
from hap.planning.problem import Candidate, Problem, candidate, first_prices
from hap.planning.setup import make_problem
from tests.planning.graphs import axes_of, random_axes

FRACTIONS = (0.9, 0.75, 0.6)
# By this fraction less memory may make the fastest of a ladder faster, where more is simulated than priced.
UNPRICED = 0.1


def cluster(
    *flops: float, memory: float = 1e9, bandwidth: float = 1e9, latency: float = 1e-6, overlap: float = 0.0
) -> Cluster:
    devices = [Device(flops=f, memory_bandwidth=f, memory=memory, launch_overhead=1e-7) for f in flops]
    return Cluster(devices, link=Link(bandwidth=bandwidth, latency=latency), overlap=overlap)


def start_of(problem: Problem) -> tuple[Candidate, list[Ladder]]:
    """The cheapest program under even splits, and ladders from there."""
    splits = problem.even
    weights = first_prices(problem, splits).weights
    start = candidate(problem, problem.engine.synthesise(splits, Prices(weights), problem.constraints), splits)
    start = replace(start, weights=weights)
    memory = start.simulation.memory
    unit = MemoryPrices((start.simulation.seconds / sum(memory),) * len(memory), 0.75, 2, skew=1.0)
    return start, [Ladder(start, msgspec.structs.replace(unit, segments=segments)) for segments in (1, 3)]


@settings(max_examples=int(os.environ.get("HAP_TEST_EXAMPLES", "4")))
@given(
    seed=st.integers(0, 20),
    flops=st.lists(st.sampled_from([1e8, 1e9, 3e9]), min_size=2, max_size=3),
    bandwidth=st.sampled_from([1e7, 1e9, 1e11]),
    unpriced=st.sampled_from([(0.0, 0.0), (1e-6, 0.0), (1e-6, 1.0)]),
)
def test_less_memory_never_makes_the_fastest_of_a_ladder_faster(
    seed: int, flops: list[float], bandwidth: float, unpriced: tuple[float, float]
) -> None:
    """But by what is not priced. And what comes of it is never slower, fits, and takes no less than its bound.

    Without overlap and latencies, which buckets save, all is priced.
    """
    latency, overlap = unpriced
    axes = random_axes(seed, layers=2)
    made = partial(cluster, *flops, bandwidth=bandwidth, latency=latency, overlap=overlap)
    start, _ = start_of(make_problem(axes, made()))
    last = 0.0
    for fraction in FRACTIONS:
        limit = int(max(start.simulation.memory) * fraction)
        problem = make_problem(axes, made(memory=limit))
        capacity = problem.engine.machine.capacity
        seen = Seen(capacity)
        first, ladders = start_of(problem)
        climb(problem, ladders, seen)
        assert seen.seconds >= last * (1 - (UNPRICED if any(unpriced) else 1e-9))
        last = seen.seconds
        if seen.above is not None:
            assert max(seen.above.found.simulation.memory) <= limit
            assert seen.above.seconds <= seen.seconds * (1 + 1e-9)
        found, prices, _ = fit(problem, [first, *filter(None, [seen.best])], [])
        if found.simulation.excess(capacity) == 0.0:
            assert found.simulation.seconds <= last
            weights = found.weights or first_prices(problem, found.splits).weights
            best, bound = raise_bound(problem, found, 0.0, Prices(weights), prices)
            assert max(best.simulation.memory) <= limit
            assert bound <= best.simulation.seconds * (1 + 1e-9)
        else:
            assert last == math.inf


def test_of_a_large_program_only_every_fourth_rung_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    axes = random_axes(0, layers=2)
    start, _ = start_of(make_problem(axes, cluster(3e9, 1e9)))
    problem = make_problem(axes, cluster(3e9, 1e9, memory=int(0.75 * max(start.simulation.memory))))
    seen, (start, ladders), places = Seen(problem.engine.machine.capacity), start_of(problem), list[int]()

    def looked_at(*given: Any) -> Rung:
        rung = rung_at(*given)
        places.append(rung.place)
        return rung

    monkeypatch.setattr("hap.planning.ladder.LARGE", 1)
    monkeypatch.setattr("hap.planning.ladder.rung_at", looked_at)
    climb(problem, ladders, seen)
    assert seen.best is not None
    assert len(places) > 4
    assert all(place % 4 == 0 for place in places)


def test_a_plan_for_scarce_memory_that_was_cut_short_says_so(caplog: pytest.LogCaptureFixture) -> None:
    axes = random_axes(0)
    need = max(plan_axes(axes, cluster(3e9, 1e9)).predicted_memory)
    tight = cluster(3e9, 1e9, memory=0.7 * need)
    with caplog.at_level(logging.WARNING, "hap"):
        cut = plan_axes(axes, tight, limits=Limits(work=1))
    (warning,) = caplog.messages
    assert "there may be a better plan; raise limits" in warning
    assert cut.search_gap > 0.0
    assert max(cut.predicted_memory) <= 0.7 * need
    assert cut.lower_bound <= cut.predicted_time * (1 + 1e-9)


@pytest.mark.parametrize("after", [0, 1, 5])
def test_limits_do_not_lose_a_plan_that_fits(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All syntheses under prices of memory fail after so many."""
    axes = axes_of("mlp", batch=64, hidden=64)
    need = max(plan_axes(axes, cluster(1e9, 1e9, bandwidth=1e7), optimiser=100).predicted_memory)
    synthesise, asked = Engine.synthesise, list[Prices]()

    def failing(engine: Engine, splits: object, prices: Prices, constraints: object, work: int | None = None) -> object:
        asked.extend([prices] if prices.memory is not None else [])
        if prices.memory is not None and len(asked) > after:
            raise CutShortError("no program: the test ends this search")
        return synthesise(engine, splits, prices, constraints, work)

    monkeypatch.setattr(Engine, "synthesise", failing)
    # ZeRO-3 fits, whatever the search finds.
    plan = plan_axes(axes, cluster(1e9, 1e9, bandwidth=1e7, memory=0.75 * need), optimiser=100)
    assert len(asked) > after
    assert max(plan.predicted_memory) <= 0.75 * need

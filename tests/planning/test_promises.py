"""What planning leaves out since it cannot win, or tries first since it promises most."""

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hap.balance import Simulation
from hap.balance.stages import Shares, Stages
from hap.planning import memory, segments
from hap.planning.problem import Candidate, Problem, balanced, candidate, first_prices, may_beat
from hap.planning.setup import make_problem
from hap.program import Compute, Convert, Program
from tests.balance.written import Affine, Stage, Written
from tests.planning.graphs import random_axes
from tests.planning.test_memory_limits import cluster


def cheapest(problem: Problem) -> Candidate:
    """The cheapest program under even splits, which waits for the slower device."""
    synthesis = problem.engine.synthesise(problem.even, first_prices(problem, problem.even), problem.constraints)
    return candidate(problem, synthesis, problem.even)


def taking(made: Candidate, seconds: float, memory: float) -> Candidate:
    """The same with another step: so many seconds and bytes on every device."""
    size = (memory,) * len(made.simulation.memory)
    return replace(made, simulation=msgspec.structs.replace(made.simulation, seconds=seconds, memory=size))


def test_a_program_may_beat_what_its_balance_beats_but_not_what_takes_no_time() -> None:
    problem = make_problem(random_axes(1, layers=2), cluster(3e9, 1e9, bandwidth=1e11))
    made = cheapest(problem)
    best = balanced(problem, made)
    assert best.simulation.seconds < 0.9 * made.simulation.seconds
    assert may_beat(problem, made, taking(made, best.simulation.seconds * 1.01, 0.0))
    assert not may_beat(problem, made, taking(made, best.simulation.seconds * 0.5, 0.0))
    # What does not fit is beaten by whatever does.
    assert may_beat(problem, made, taking(made, 0.0, 1e18))


@settings(max_examples=10)
@given(st.integers(0, 5), st.sampled_from([0.0, 1.0]), st.sampled_from([0.8, 0.97, 1.03, 1.2]))
def test_balance_ends_early_only_where_it_does_not_beat_the_rival(seed: int, overlap: float, factor: float) -> None:
    problem = make_problem(random_axes(seed, layers=2), cluster(3e9, 1e9, bandwidth=1e10, overlap=overlap))
    made = cheapest(problem)
    best = balanced(problem, made)
    rival = taking(made, best.simulation.seconds * factor, 0.0)
    found = balanced(problem, made, rival=rival)
    assert found == best if factor > 1.0 else found in (made, best)
    # One that does not fit ends nothing.
    assert balanced(problem, made, rival=taking(made, 0.0, 1e18)) == best


def test_a_program_that_fits_under_no_shares_beats_nothing_that_fits() -> None:
    axes = random_axes(1, layers=2)
    roomy = cheapest(make_problem(axes, cluster(3e9, 1e9)))
    tiny = make_problem(axes, cluster(3e9, 1e9, memory=int(0.01 * max(roomy.simulation.memory))))
    assert not may_beat(tiny, roomy, taking(roomy, 1e9, 0.0))
    assert may_beat(tiny, roomy, taking(roomy, 1e9, 1e18))


@pytest.mark.parametrize(("limit", "order"), [(10.0, ["b", "a", "c"]), (6.0, ["a", "b", "c"])])
def test_splits_promise_the_fastest_known_program_that_fits_under_them(limit: float, order: list[str]) -> None:
    # Seconds and bytes by program and split: the faster program of b needs more memory.
    steps = {
        ("p", "a"): (4.0, 5.0),
        ("q", "a"): (9.0, 5.0),
        ("p", "b"): (5.0, 5.0),
        ("q", "b"): (2.0, 8.0),
        ("p", "c"): (1.0, 20.0),
        ("q", "c"): (1.0, 20.0),
    }

    def simulate(program: str, split: str) -> Simulation:
        seconds, size = steps[program, split]
        return Simulation(seconds, (seconds,), 0.0, (size,))

    problem = SimpleNamespace(engine=SimpleNamespace(simulate=simulate))
    seen = SimpleNamespace(programs=["p", "q"], capacity=(limit,))
    found = memory._promising(problem, ["a", "b", "c"], seen)  # type: ignore[arg-type]
    assert [split for _, split in found] == order
    assert [seconds for seconds, _ in found][-1] == float("inf")


# Seconds per share of an axis on the first and on the second device; the second stage stands for a padded gather.
WISHES = [((3.0, 1.0), (2.0, 2.0)), ((3.0, 1.0), (6.0, 2.0)), ((1.0, 4.0), (4.0, 1.0)), ((2.0, 1.0), (2.0, 1.9))]
# Of 210 and 1,000 parts many fractions are whole.
GRID = np.linspace(0.0, 1.0, 2101)


def stage(axis: str, constant: float, slopes: tuple[float, float]) -> Stage:
    return Stage("compute", tuple(Affine(constant, {axis: slope}) for slope in slopes))


def along(axis: str) -> tuple[Compute, Convert]:
    """An operator that shares its work along an axis, and a gather of its result."""
    work = Compute(axis, "aten.tanh.default", (), ((axis, ("S0",)),), axis)
    return work, Convert("all_gather", axis, ("S0",), ("R",), axis, "grouped")


@pytest.mark.parametrize("wishes", WISHES)
def test_stages_that_want_different_shares_promise_what_a_grid_says(
    wishes: tuple[tuple[float, float], tuple[float, float]],
) -> None:
    # The first axis as wished, the second one with stages that agree; what no share changes takes 10 ms.
    made = [stage("a", 0.01, wishes[0]), stage("a", 0.0, wishes[1])]
    made += [stage("b", 0.0, (1.0, 2.0)), stage("b", 0.0, (0.5, 1.0))]
    stages = Written((0, 1), tuple(made), (Affine(0.0), Affine(0.0))).arrays()

    def known(text: str, shares: Shares) -> Stages:
        # Gathers along axes that may be split otherwise are taken as padded, whose time depends on the shares.
        assert ("grouped" in text) == bool(problem.fixed)
        return stages

    axis = [np.maximum(first * GRID, second * (1.0 - GRID)) for first, second in wishes]
    together, apart = min(axis[0] + axis[1]), min(axis[0]) + min(axis[1])
    # The second axis as it should be: a third and two thirds.
    other = 0.01 + 1.5 * 2.0 / 3.0
    text = msgspec.json.encode(Program((*along("a"), *along("b")))).decode()
    best = Candidate(text, {"a": [1, 1], "b": [2, 1]}, Simulation(together + other, (), 0.0, ()))
    problem = SimpleNamespace(engine=SimpleNamespace(stages=known), fixed={}, classes={})
    relaxed = segments._relaxed(problem, best)  # type: ignore[arg-type]
    assert relaxed["a"] == pytest.approx(apart + other, abs=1e-3)
    gained = 1.0 - relaxed["a"] / best.simulation.seconds
    assert (gained < 1e-9) == (wishes[0][0] * wishes[1][1] == wishes[0][1] * wishes[1][0])
    promising = segments._promising(problem, best, [best])  # type: ignore[arg-type]
    assert promising == (["a"] if gained > segments.WORTH_TRYING else [])
    # An axis that may not be split otherwise promises nothing.
    problem.fixed["a"] = [1, 1]
    assert segments._promising(problem, best, []) == []  # type: ignore[arg-type]

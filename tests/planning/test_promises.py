"""What planning leaves out since it cannot win, or tries first since it promises most."""

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

from hap.balance import Simulation
from hap.planning import memory
from hap.planning.problem import Candidate, Problem, balanced, candidate, first_prices, may_beat
from hap.planning.setup import make_problem
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

"""Searches cut short by limits say so, and their bounds are true; less memory never makes a plan faster."""

import itertools
import json
import logging
import math
import re

import pytest

import hap
from hap import _core
from hap.cluster import Cluster, Device, Link
from hap.errors import PlanError
from hap.planning import plan_axes
from hap.planning.alternation import alternate
from hap.planning.engine import CutShortError, Limits
from hap.planning.problem import first_prices
from hap.planning.progress import Progress
from hap.planning.setup import make_problem
from tests.planning.graphs import axes_of, random_axes


def cluster(*flops, memory=1e9, link=None):
    devices = [Device(flops=f, memory_bandwidth=f, memory=memory, launch_overhead=1e-7) for f in flops]
    return Cluster(devices, link=link or Link(bandwidth=1e9, latency=1e-6))


LIMITS = [
    Limits(work=1),
    Limits(work=100_000),
    Limits(work=1_000_000, table_entries=1000),
    Limits(seconds=0.0),
]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_bounds_of_syntheses_cut_short_are_true(limits):
    gaps = []
    for axes in (axes_of("gpt2", layers=1), random_axes(1), random_axes(2)):
        whole = make_problem(axes, cluster(3e9, 1e9))
        arguments = whole.proportional, first_prices(whole, whole.proportional), whole.constraints
        best = whole.engine.synthesise(*arguments)
        assert best.search_gap == 0.0
        cut = make_problem(axes, cluster(3e9, 1e9), limits=limits).engine.synthesise(*arguments)
        assert cut.bound <= best.cost * (1 + 1e-9)
        assert cut.cost >= best.cost * (1 - 1e-9)
        assert cut.search_gap == pytest.approx((cut.cost - cut.bound) / cut.cost, abs=1e-12)
        assert whole.engine.simulate(cut.program, whole.proportional).seconds >= cut.bound * (1 - 1e-9)
        gaps.append(cut.search_gap)
    assert max(gaps) > 0.0 or limits != Limits(work=1), "some of them cannot be solved at once"


def test_a_plan_without_a_bound_claims_no_gap(monkeypatch):
    axes, machines = axes_of("gpt2", layers=1), cluster(3e9, 1e9)
    monkeypatch.setattr("hap.planning.outer._raise_bound", lambda problem, best, known, memory: (best, 0.0))
    plan = plan_axes(axes, machines)
    assert plan.lower_bound == 0.0
    assert plan.optimality_gap is None
    assert "optimality gap unknown" in str(plan)
    assert hap.Plan.from_json(plan.to_json()).to_json() == plan.to_json()


def test_a_plan_cut_short_says_so(caplog):
    axes, machines = axes_of("gpt2", layers=1), cluster(3e9, 1e9)
    with caplog.at_level(logging.WARNING, "hap"):
        plan = plan_axes(axes, machines, limits=Limits(work=1))
    assert plan.search_gap > 0.0
    assert f"search gap {plan.search_gap:.2%}" in str(plan)
    (warning,) = caplog.messages
    above = re.search(r"cost is up to ([\d.]+)% above the least", warning)
    assert float(above[1]) == pytest.approx(100 * plan.search_gap / (1 - plan.search_gap), abs=0.01)
    # What is found without the limit, under the same splits, takes no less than its lower bound either.
    whole = make_problem(axes, machines)
    best = whole.engine.synthesise(plan.splits, first_prices(whole, plan.splits), whole.constraints)
    seconds = whole.engine.simulate(best.program, plan.splits).seconds
    assert plan.lower_bound <= seconds * (1 + 1e-9)
    assert plan.lower_bound < plan.predicted_time * (1 - 1e-6)


def test_a_search_without_any_program_says_whether_limits_ended_it():
    # Eight that must differ, of seven: nothing fits, which takes some search to prove.
    allowed = [None if one == other else 1.0 for one in range(7) for other in range(7)]
    factors = [{"scope": list(pair), "costs": allowed} for pair in itertools.combinations(range(8), 2)]
    text = json.dumps({"format": "hap-cfn-1", "name": "", "domains": [7] * 8, "factors": factors})
    with pytest.raises(_core.LimitReachedError, match="no assignment was found within the limits"):
        _core.solve(text, '{"work": 0}')
    with pytest.raises(ValueError, match="no assignment is allowed") as raised:
        _core.solve(text, "{}")
    assert not isinstance(raised.value, _core.LimitReachedError)

    class Hard:
        """A core that limits end at each search but the third."""

        def __init__(self, graph):
            self.graph, self.calls = graph, 0

        def synthesise(self, *arguments):
            self.calls += 1
            return self.graph.synthesise(*arguments) if self.calls == 3 else _core.solve(text, '{"work": 0}')

        def __getattr__(self, name):
            return getattr(self.graph, name)

    problem = make_problem(axes_of("mlp"), cluster(3e9, 1e9))
    problem.engine.graph = Hard(problem.engine.graph)
    arguments = problem.even, first_prices(problem, problem.even), problem.constraints
    for _ in range(2):
        with pytest.raises(CutShortError, match="no program: no assignment was found within the limits"):
            problem.engine.synthesise(*arguments)
    assert problem.engine.watch.search_gap == 1.0
    starts = [problem.even, problem.proportional]
    with Progress() as progress:
        assert alternate(problem, starts, [], progress)[0].simulation.seconds > 0.0
        # What was made once is not made again.
        assert alternate(problem, starts[:1], [], progress)
        with pytest.raises(CutShortError):
            alternate(problem, [problem.split([1.0, 5.0])], [], progress)


@pytest.mark.parametrize(("batch", "hidden"), [(512, 32), (64, 64)])
def test_less_memory_never_makes_a_plan_faster(batch, hidden):
    axes, link = axes_of("mlp", batch=batch, hidden=hidden), Link(bandwidth=1e8, latency=1e-5)

    def seconds(memory):
        try:
            plan = plan_axes(axes, cluster(1e9, 1e9, memory=memory, link=link), optimiser=100)
        except PlanError as error:
            if "no plan fits memory" not in str(error):
                raise
            return float("inf")
        assert max(plan.predicted_memory) <= memory
        return plan.predicted_time

    roomy = plan_axes(axes, cluster(1e9, 1e9, link=link), optimiser=100)
    need = max(roomy.predicted_memory)
    times = [roomy.predicted_time, *(seconds(need * part) for part in (1.0, 0.9, 0.75, 0.6, 0.3))]
    assert all(less <= more * (1 + 1e-9) for less, more in itertools.pairwise(times))
    assert times[1] == pytest.approx(times[0])
    assert times[-1] == float("inf")


@pytest.mark.parametrize("value", [-1, 1.5, True, "1", 2**64, math.inf])
@pytest.mark.parametrize("name", ["work", "table_entries"])
def test_limits_that_are_no_counts_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"limits.{name}: expected a whole number .*, got {value!r}$"):
        Limits(**{name: value})


@pytest.mark.parametrize("value", [-1, -1e-9, math.nan, math.inf, 10**400, True, "1"])
def test_limits_that_are_no_times_are_refused(value):
    with pytest.raises(ValueError, match=rf"limits.seconds: expected a finite number .*, got {value!r}$"):
        Limits(seconds=value)


def test_the_largest_limits_are_limits_of_the_core():
    axes, most = axes_of("mlp"), Limits(work=2**64 - 1, table_entries=2**64 - 1, seconds=1e300)
    assert plan_axes(axes, cluster(3e9, 1e9), limits=most).search_gap == 0.0
    with pytest.raises(PlanError, match=r"limits: expected hap.planning.engine.Limits, or None, got \{'work': 5\}"):
        plan_axes(axes, cluster(3e9, 1e9), limits={"work": 5})

"""Split classes: segments that are split otherwise, and parameters at rest that are."""

from dataclasses import replace
from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hap
from hap.cluster import Cluster, Device, Link
from hap.errors import PlanError
from hap.planning import outer, plan_axes
from hap.planning.engine import Constraints, CutShortError, Engine, Prices
from hap.planning.segments import _least
from hap.planning.setup import make_problem
from hap.program import Compute, Convert, InputInstruction, SplitClass
from hap.rules import divided
from tests import models
from tests.balance.written import Affine, Stage, Written
from tests.planning.graphs import axes_of, random_axes
from tests.runtime.one_device import step

BATCH = SplitClass("batch", "compute")


def cluster(*devices, bandwidth, memory=1e12):
    """Devices of these FLOP/s; of one, its bytes of memory may stand there too."""
    made = [each if isinstance(each, tuple) else (each, memory) for each in devices]
    members = [Device(flops=flops, memory_bandwidth=2e12, memory=size, launch_overhead=0) for flops, size in made]
    return Cluster(members, link=Link(bandwidth=bandwidth, latency=0.0))


def without_classes(monkeypatch, axes, machines, **options):
    """The plan where every axis has one split."""
    with monkeypatch.context() as patched:
        patched.setattr(outer, "with_segments", lambda problem, best, tried, memory: (problem, best))
        patched.setattr(outer, "with_storage", lambda problem, best, fastest, memory: (problem, best))
        return plan_axes(axes, machines, active=range(len(machines.devices)), **options)


def test_two_segments_of_a_vgg19_beat_one_and_equal_one_device(monkeypatch, tmp_path):
    """Convolutions want shares by speed, the gathers in front of the linear layers want even ones."""
    module, args, kwargs = models.vgg19(batch=24, narrow=8)
    whole = step(module, args, kwargs)
    machines = cluster(2e12, 1e12, 1e12, bandwidth=6e9)
    plan = plan_axes(whole.axes, machines, active=range(3))
    assert plan.predicted_time < 0.99 * without_classes(monkeypatch, whole.axes, machines).predicted_time
    assert plan.lower_bound <= plan.predicted_time
    assert plan.classes == {"batch@2": BATCH}
    assert "batch@2" not in plan.axes
    assert sum(plan.splits["batch@2"]) == plan.axes["batch"] == 24
    assert plan.splits["batch"] != plan.splits["batch@2"]
    moves = [each for each in plan.program.instructions if isinstance(each, Convert) and each.conversion == "re_split"]
    assert {each.axis for each in moves} == {"batch", "batch@2"}
    assert f"{len(moves)} re-splits" in str(plan)
    assert " = re_split(" in str(plan)
    path = tmp_path / "plan.json"
    plan.save(path)
    again = plan_axes(whole.axes, machines, active=range(3))
    assert hap.Plan.load(path).to_json() == plan.to_json() == again.to_json()
    # The very program of the file, on every rank, in float64.
    replace(whole, axes=divided(whole.axes, plan.classes)).check(plan.program, plan.splits, 3, 1e-10)
    simulated = hap.simulate(plan, module, example_inputs=args)
    assert simulated.seconds == pytest.approx(plan.predicted_time)


def test_limits_that_end_the_search_with_segments_leave_the_plan_without(monkeypatch):
    axes, machines = step(*models.vgg19(batch=24, narrow=8)[:3]).axes, cluster(2e12, 1e12, 1e12, bandwidth=6e9)
    plain, whole = without_classes(monkeypatch, axes, machines), Engine.synthesise

    def cut_short(self, splits, prices, constraints, work=None):
        if "batch@2" in splits:
            self.watch.search_gap = 1.0
            raise CutShortError("no program: limits")
        return whole(self, splits, prices, constraints, work)

    monkeypatch.setattr(Engine, "synthesise", cut_short)
    plan = plan_axes(axes, machines, active=range(3))
    assert plan.classes == {}
    assert plan.predicted_time == plain.predicted_time
    assert plan.search_gap == 1.0


def test_parameters_rest_by_memory_and_are_used_by_speed(monkeypatch):
    """The fast device has little memory: its share of the work is larger than that of the parameters."""
    whole = step(*models.mlp(batch=12, hidden=64))
    graph = whole.axes.graph
    # Parameters, gradients and the optimiser's state.
    stored = 4 * sum(graph.tensors[entry.tensor].bytes for entry in graph.inputs if entry.kind == "parameter")
    machines = cluster((3e9, 0.6 * stored), (1e9, 4 * stored), bandwidth=1e9)
    # An optimiser of two tensors that makes nothing while it steps.
    plan = plan_axes(whole.axes, machines, optimiser=2)
    assert plan.predicted_time < 0.8 * without_classes(monkeypatch, whole.axes, machines, optimiser=2).predicted_time
    assert plan.predicted_memory[0] <= 0.6 * stored
    (name,) = plan.classes
    axis = plan.classes[name].axis
    assert plan.classes[name].role == "storage"
    assert plan.splits[name][0] < plan.splits[axis][0]
    graph = divided(whole.axes, plan.classes)
    numbers = {tensor.name: number for number, tensor in enumerate(graph.graph.tensors)}
    rest = [
        graph.axes[graph.occurrences[numbers[each.tensor]][int(each.placement[0][1:])].axis].name
        for each in plan.program.instructions
        if isinstance(each, InputInstruction) and each.placement[0].startswith("S")
    ]
    assert name in rest
    views = {operator.name for operator, layout in zip(graph.graph.operators, graph.layout, strict=True) if layout}
    work = [each for each in plan.program.instructions if isinstance(each, Compute) and each.operator not in views]
    assert all(each.axis != name for each in work)
    assert f"# {name}: {axis} as it is split at rest" in str(plan)
    replace(whole, axes=graph).check(plan.program, plan.splits, 2, 1e-10)


@given(seed=st.integers(0, 5), chosen=st.integers(0, 99), units=st.permutations([1, 2, 5]))
def test_a_further_class_never_makes_the_cheapest_program_dearer(seed, chosen, units):
    machines = cluster(1e9, 2e9, 3e9, bandwidth=1e9)
    problem = make_problem(random_axes(seed), machines)
    axis = sorted(problem.sizes)[chosen % len(problem.sizes)]
    assert problem.divided is not None
    wider = problem.divided({"other": SplitClass(axis, "compute")})
    prices, splits = Prices((0.2, 0.3, 0.5)), problem.proportional
    plain = problem.engine.synthesise(splits, prices, Constraints())
    both = {**splits, "other": wider.split([float(count) for count in units])["other"]}
    found = wider.engine.synthesise(both, prices, Constraints())
    assert found.cost <= plain.cost * (1 + 1e-9)
    # Of equal classes each is as good, and re-splits between them are free.
    equal = wider.engine.synthesise({**splits, "other": splits[axis]}, prices, Constraints())
    assert equal.cost == pytest.approx(plain.cost, rel=1e-9)


@pytest.mark.parametrize(("given", "forbidden"), [({"forbidden_axes": ["batch"]}, True), ({}, False)])
def test_constraints_on_an_axis_hold_for_its_classes(given, forbidden):
    axes = divided(axes_of("mlp"), {"batch@2": BATCH})
    plan = plan_axes(axes, cluster(1e9, 2e9, bandwidth=1e12), **given)
    used = {getattr(each, "axis", None) for each in plan.program.instructions} & {"batch", "batch@2"}
    assert (used == set()) == forbidden
    assert plan.classes == {"batch@2": BATCH}


def test_either_class_of_a_required_axis_will_do():
    axes = divided(axes_of("mlp"), {"batch@2": BATCH})
    problem = make_problem(axes, cluster(1e9, 1e9, bandwidth=1e12), required_axis="batch")
    # One class leaves all to the first device.
    splits = {**problem.even, "batch": [problem.sizes["batch"], 0]}
    synthesis = problem.engine.synthesise(splits, Prices((1.0, 0.0)), problem.constraints)
    assert '"batch@2"' in synthesis.program


def test_wrong_classes_of_a_file_are_named():
    plan = plan_axes(axes_of("mlp"), cluster(1e9, 2e9, bandwidth=1e9))
    wrong = msgspec.structs.replace(plan, classes={"batch@2": SplitClass("samples", "compute")})
    with pytest.raises(PlanError, match=r'classes\.batch@2: expected .* got one of "samples"'):
        hap.Plan.from_json(wrong.to_json())
    missing = msgspec.structs.replace(plan, classes={"batch@2": BATCH})
    with pytest.raises(PlanError, match=r"splits: expected the axes and classes of the plan; batch@2 is no such"):
        hap.Plan.from_json(missing.to_json())


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=3))
def test_the_least_time_of_a_stage_is_that_of_the_best_shares(terms):
    count, steps = len(terms), 60
    stage = Stage("compute", tuple(Affine(float(c), {"a": float(s)}) for c, s in terms))
    stages = Written(tuple(range(count)), (stage,), tuple(Affine(0.0) for _ in terms)).arrays()
    shares = np.full((1, count), 1.0 / count)
    if "a" not in stages.axes:
        return
    (found,) = _least(stages, shares, 0)
    grid = [
        max(c + s * units / steps for (c, s), units in zip(terms, split, strict=True))
        for split in product(range(steps + 1), repeat=count)
        if sum(split) == steps
    ]
    assert min(grid) - 4.0 * count / steps <= found <= min(grid) + 1e-9

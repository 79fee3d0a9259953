"""Explanations against what they explain: times add up, no alternative beats the bound, what-ifs are plans."""

import pytest
from torch.distributed.tensor import Replicate, Shard

import hap
from hap.errors import PlanError
from hap.explain import alternatives, compare, explain, graph_of, with_pins, without_axis, without_choice
from hap.explain.use import merged, overlap
from tests import models
from tests.cli.model import small

CLUSTER = hap.Cluster(["V100", "P100", "P100"], link="10GbE", overlap=0.7)


@pytest.fixture(scope="module")
def made():
    module, args = small()
    plan = hap.plan(module, devices=CLUSTER, example_inputs=args)
    return plan, graph_of(plan, module, args, {})


def test_spans_of_time():
    assert merged([(2, 3), (0, 1), (0.5, 1.5), (3, 4)]) == [(0, 1.5), (2, 4)]
    assert overlap([(0, 2), (3, 5)], [(1, 4), (4.5, 9)]) == 1 + 1 + 0.5
    assert overlap([], [(1, 4)]) == 0.0


def test_each_device_spends_the_step(made):
    plan, _ = made
    found = explain(plan)
    assert found.step == plan.predicted_time
    assert len({*plan.stage.devices}) == 3
    for device in found.devices:
        spent = device.computing + device.both + device.communicating + device.waiting
        assert spent == pytest.approx(found.step, rel=1e-6)
        assert device.limit in ("compute", "link", "others")
        assert device.memory == plan.predicted_memory[device.rank]
    assert found.operators == []
    assert {axis.name: axis.units for axis in found.axes}.items() <= plan.splits.items()
    assert 0.5 < sum(axis.work for axis in found.axes) <= 1.0 + 1e-9
    device = hap.Device("V100", memory=plan.predicted_memory[0] * 1.01)
    tight = hap.Cluster([device, "P100", "P100"], link="10GbE", overlap=0.7)
    module, args = small()
    assert explain(hap.plan(module, devices=tight, example_inputs=args)).devices[0].limit == "memory"


def test_operators_are_found_by_name_module_and_axis(made):
    plan, axes = made
    (operator,) = explain(plan, op="addmm").operators
    assert operator.module == "layers.0"
    assert "addmm" in {each.name for each in explain(plan, module="layers").operators}
    assert all(each.axis == operator.axis for each in explain(plan, axis=operator.axis).operators)
    assert {each.name for each in explain(plan, op="aten.addmm*").operators} == {"addmm", "addmm_1"}
    for wrong in ({"op": "none"}, {"module": "layer"}, {"axis": "none"}):
        with pytest.raises(PlanError, match=r"no (operator|axis)"):
            explain(plan, **wrong)
    with pytest.raises(PlanError, match="no operator"):
        alternatives(plan, axes, "none")


def test_the_choice_that_is_taken_is_the_best_alternative(made):
    plan, axes = made
    names = [each.name for each in axes.graph.operators]
    for operator in ("addmm", "tanh", "mm"):
        found = alternatives(plan, axes, operator)
        assert len(found) == len(axes.choices[names.index(operator)])
        (chosen,) = [each for each in found if each.chosen]
        # Nothing else differs, so that the frame is the plan itself.
        assert chosen.step == pytest.approx(plan.predicted_time, rel=1e-9)
        for each in found:
            assert (each.step is None) == (each.obstacle is not None)
            if each.step is not None:
                assert each.step >= plan.lower_bound * (1 - 1e-9)
            if each.free_step is not None:
                assert each.free_step >= plan.lower_bound * (1 - 1e-9)
        gained = [each for each in found if each.step is not None and each.free_step < each.step * 0.9]
        assert all(not each.chosen for each in gained)
        assert gained, "some alternative is much better where all else is chosen anew"
        whole = next(each for each in found if each.axis is None and set(each.inputs) == {"R"})
        # Its computation is not shared, and what was sharded has to be gathered.
        assert max(whole.compute) > max(chosen.compute)
        assert sum(move.seconds for move in whole.conversions) > sum(move.seconds for move in chosen.conversions)


def test_what_if_is_the_plan_under_the_constraint(made):
    plan, axes = made
    (operator,) = explain(plan, op="addmm").operators
    module, args = small()
    found = without_axis(plan, axes, operator.axis)
    again = hap.plan(module, devices=CLUSTER, example_inputs=args, forbidden_axes=[operator.axis])
    assert (found.before, found.after) == (plan.predicted_time, again.predicted_time)
    assert without_choice(plan, axes, "addmm", operator.axis).after > plan.predicted_time
    assert without_choice(plan, axes, "addmm", None).obstacle is not None
    pinned = hap.plan(module, devices=CLUSTER, example_inputs=args, pin={"layers.0.weight": Shard(0)})
    assert "layers.0.weight" in without_axis(pinned, axes, "layers.0.weight.0").obstacle
    forbid = {"layers.0.weight": Replicate()}
    again = hap.plan(module, devices=CLUSTER, example_inputs=args, pin={"args.0": Replicate()}, forbid=forbid)
    found = with_pins(plan, axes, {"args.0": Replicate()}, forbid)
    assert found.after == again.predicted_time
    assert found.constraint.startswith('bound by pin={"args.0": Replicate()} and forbid={')
    # Of a name that was pinned already, the new placement holds.
    found = with_pins(pinned, axes, {"layers.0.weight": Replicate()}, {})
    assert (
        found.after
        == hap.plan(module, devices=CLUSTER, example_inputs=args, pin={"layers.0.weight": Replicate()}).predicted_time
    )
    slow = {"devices": CLUSTER, "example_inputs": args, "active": [1, 2]}
    bound = hap.plan(module, **slow)
    again = hap.plan(module, **slow, forbidden_axes=[operator.axis])
    assert without_axis(bound, axes, operator.axis).after == again.predicted_time, "devices that may not work do not"
    with pytest.raises(PlanError, match="made for another module"):
        graph_of(plan, *models.mlp())


def test_two_plans_side_by_side(made):
    plan, _ = made
    module, args = small()
    other = hap.plan(module, devices=["V100"], example_inputs=args)
    found = compare(plan, other)
    assert found.same_graph
    assert found.devices == (["V100", "P100", "P100"], ["V100"])
    assert found.step == (plan.predicted_time, other.predicted_time)
    assert {"addmm", "tanh"} <= {each.name for each in found.operators}
    assert found.only == ([], [])
    same = compare(plan, plan)
    assert (same.units, same.stored, same.operators, same.conversions) == ({}, {}, [], {})

"""The timeline of a plan."""

import json

import pytest
import torch

import hap
from hap.cluster import Link
from hap.errors import PlanError
from hap.program import Compute
from tests import models

CLUSTER = hap.Cluster(["V100", "V100", "P100"], link=Link(bandwidth=1e12, latency=1e-9))
SLOW = hap.Cluster(CLUSTER.devices, link=Link(bandwidth=1e6, latency=1e-3))


@pytest.fixture(scope="module", params=[CLUSTER, SLOW], ids=["all devices", "one device"])
def planned(request):
    module, inputs, _ = models.mlp(batch=48)
    plan = hap.plan(module, devices=request.param, example_inputs=inputs, required_axis="batch")
    assert len(plan.left_out) == (2 if request.param is SLOW else 0)
    return module, inputs, plan


def test_the_timeline_is_that_of_the_plan(planned):
    module, inputs, plan = planned
    step = hap.simulate(plan, module, example_inputs=inputs)
    assert step.seconds == plan.predicted_time
    assert max(event.end for event in step.timeline) == step.seconds
    for device, (line, peak) in enumerate(zip(step.memory_timeline, step.memory, strict=True)):
        assert max(size for _, size in line) == pytest.approx(peak)
        busy = [
            event.end - event.start
            for event in step.timeline
            if (event.device, event.stream) == (device, "computation")
        ]
        # An operator that a collective interrupts lasts longer than its work.
        assert sum(busy) >= step.compute[device] * (1 - 1e-9)


def test_the_details_of_a_plan_are_that_timeline(planned):
    module, inputs, plan = planned
    step = hap.simulate(plan, module, example_inputs=inputs)
    details = plan.details
    assert hap.Plan.from_json(plan.to_json()).details == details
    for device, line in zip(plan.stage.devices, details.line_of, strict=True):
        computed = [
            (event.start, event.end)
            for event in step.timeline
            if (event.device, event.stream) == (device, "computation")
        ]
        ends = [(busy.start, busy.end) for busy in details.lines[line].computation]
        assert ends == [pytest.approx(each, abs=1e-11) for each in computed]
        assert [held for _, held in details.lines[line].memory] == [
            round(held) for _, held in step.memory_timeline[device]
        ]
    computed = {each.operator for each in plan.program.instructions if isinstance(each, Compute)}
    assert computed <= details.operators.keys()
    assert any("models.py" in details.places[place].source for place in details.operators.values())
    assert {name: each.seconds for name, each in details.strategies.items()}.items() >= {
        (name, seconds) for name, seconds in plan.baselines.items() if seconds is not None
    }


def test_the_trace_is_what_perfetto_reads(planned, tmp_path):
    module, inputs, plan = planned
    step = hap.simulate(plan, module, example_inputs=inputs)
    step.save_trace(tmp_path / "step.json")
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    by_phase = {phase: [event for event in events if event["ph"] == phase] for phase in "MXC"}
    assert sum(map(len, by_phase.values())) == len(events)
    assert {(event["pid"], event["tid"]) for event in by_phase["X"]} <= {(d, t) for d in range(3) for t in range(2)}
    assert max(event["ts"] + event["dur"] for event in by_phase["X"]) == pytest.approx(1e6 * step.seconds)
    assert len(by_phase["X"]) == len(step.timeline)
    assert {event["pid"] for event in by_phase["C"]} == {0, 1, 2}


def test_a_plan_can_be_simulated_elsewhere(planned):
    module, inputs, plan = planned
    slower = hap.Cluster(CLUSTER.devices, link=Link(bandwidth=1e5, latency=1e-2))
    assert hap.simulate(plan, module, example_inputs=inputs, devices=slower).seconds > plan.predicted_time
    with pytest.raises(PlanError, match="simulate: devices: expected 3, as the plan has, got 1"):
        hap.simulate(plan, module, example_inputs=inputs, devices=["V100"])


def test_edited_plans_are_refused(planned):
    module, inputs, plan = planned
    edited = json.loads(plan.to_json())
    del edited["replicas"][0]["stages"][0]["program"]["instructions"][5]
    with pytest.raises(PlanError, match=r"simulate: the plan does not hold: instruction \d+ .* nothing of it is there"):
        hap.simulate(hap.Plan.from_json(json.dumps(edited)), module, example_inputs=inputs)
    for tensors in (10**12, -1):
        edited = json.loads(plan.to_json()) | {"optimiser_tensors": tensors}
        with pytest.raises(PlanError, match=rf"plan: optimiser_tensors: expected a number from 0 .*, got {tensors}"):
            hap.Plan.from_json(json.dumps(edited))
    edited = json.loads(plan.to_json()) | {"temporaries": {"in_turn": -1}}
    with pytest.raises(PlanError, match=r"plan: temporaries\.in_turn: expected a number from 0 .*, got -1"):
        hap.Plan.from_json(json.dumps(edited))
    with pytest.raises(PlanError, match=r"expected a hap\.Plan, got 'plan\.json'; hap\.Plan\.load reads one"):
        hap.simulate("plan.json", module, example_inputs=inputs)


def test_a_plan_of_another_module_is_refused(planned):
    _, _, plan = planned
    with pytest.raises(PlanError, match="the plan was made for another module"):
        hap.simulate(plan, torch.nn.Linear(2, 2), example_inputs=(torch.ones(2, 2),))

"""Devices that cost more than they give are left out; plans of random models hold what they promise."""

import os
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hap
from hap.balance import MemoryParts
from hap.cluster import Cluster, Device, Link
from hap.errors import PlanError
from hap.planning import plan_axes
from hap.planning.baselines import baselines
from hap.planning.setup import make_problem
from hap.planning.subsets import WORTH_LEAVING
from hap.program import Compute
from hap.report.data import contents
from hap.units import seconds_text
from tests.planning.graphs import axes_of, random_axes

FAST, SLOW = Link(bandwidth=1e12, latency=1e-9), Link(bandwidth=1e9, latency=1e-6)
EXAMPLES = int(os.environ.get("HAP_TEST_EXAMPLES", "8"))


def device(flops):
    return Device(flops=flops, memory_bandwidth=flops, memory=1e9, launch_overhead=1e-7)


def cluster(*flops, link=FAST):
    return Cluster([device(f) for f in flops], link=link)


def test_a_slow_device_is_left_out_and_named():
    machines = cluster(5e9, 1e8, 5e9, link=SLOW)
    plan = plan_axes(axes_of("gpt2", layers=1), machines)
    rest = plan_axes(axes_of("gpt2", layers=1), machines.without([1]))
    assert plan.left_out == (1,)
    assert plan.stage.devices == (0, 2)
    assert (plan.predicted_memory[1], plan.memory_parts[1]) == (0, MemoryParts(0.0, 0.0, 0.0, 0.0, 0.0))
    assert all(plan.units(axis)[1] == 0 and len(units) == 2 for axis, units in plan.splits.items())
    # The others run the plan that they have alone; one message tells of the loss.
    assert plan.predicted_time <= rest.predicted_time * 1.001 + SLOW.latency
    assert plan.lower_bound <= plan.predicted_time < plan.with_all
    assert f"# left out: device 1 (device); with all devices {seconds_text(plan.with_all)}\n" in str(plan)
    assert f"# split {plan.splits['batch'][0]} 0 {plan.splits['batch'][1]}: " in str(plan)
    # It is a plan of the whole job.
    assert plan.cluster == machines
    again = hap.Plan.from_json(plan.to_json())
    assert (again.to_json(), again.left_out, again.with_all) == (plan.to_json(), plan.left_out, plan.with_all)


def test_a_device_whose_memory_is_too_small_to_take_part_is_left_out():
    axes, machines = axes_of("mlp", batch=64, hidden=256), cluster(5e9, 5e9, 5e9)
    tiny = Device(flops=5e9, memory_bandwidth=5e9, memory=1e4, launch_overhead=1e-7)
    small = Cluster([device(5e9), tiny, device(5e9)], link=FAST)
    plan, rest = plan_axes(axes, small), plan_axes(axes, machines.without([1]))
    assert (plan.left_out, plan.with_all) == ((1,), None)
    assert plan.predicted_memory[1] == 0
    assert plan.predicted_time == pytest.approx(rest.predicted_time + FAST.latency)
    assert "# left out: device 1 (device); not all have the memory to take part\n" in str(plan)
    # No strategy fits on all devices.
    assert set(plan.baselines.values()) == {None}
    assert hap.Plan.from_json(plan.to_json()).left_out == (1,)
    with pytest.raises(PlanError, match=r"no plan fits memory: .* on device 1 \(device\)"):
        plan_axes(axes, small, splits={"batch": [32, 0, 32]}, active=(0, 1, 2))
    # Where the others have too little as well, the error speaks of all.
    with pytest.raises(PlanError, match="no plan fits memory"):
        plan_axes(axes, Cluster([tiny, replace(tiny, memory=2e4)], link=FAST))


def test_who_has_to_work_can_be_said():
    model, example = torch.nn.Linear(8, 4), torch.randn(4, 8)
    machines = cluster(5e9, 1e6, 5e9, link=SLOW)
    for active in ([0, 1, 2], [2], range(2)):
        plan = hap.plan(model, devices=machines, example_inputs=(example,), active=active)
        assert plan.stage.devices == tuple(active)
        assert not (plan.split_units and len(active) == 1)
        whole = "nothing is split: every device computes the whole" in str(plan)
        assert whole == (len(active) > 1 and not plan.split_units)
        again = hap.Plan.from_json(plan.to_json())
        assert again.active == plan.active == tuple(active)
        assert again.to_json() == plan.to_json()
        with pytest.raises(PlanError, match=r"active: expected the devices of the stage"):
            hap.Plan.from_json(plan.to_json().replace('"active":[', '"active":[7,'))
    for wrong in ([], [0, 0], [3], [-1]):
        with pytest.raises(PlanError, match="active: expected different ranks from 0 to 2"):
            hap.plan(model, devices=machines, example_inputs=(example,), active=wrong)


def test_baselines_are_those_of_the_devices_that_have_to_work():
    axes, room = axes_of("mlp", batch=64, hidden=256), cluster(5e9, 1e9, 5e9)
    whole = make_problem(axes, room.without([1]))
    held = {each.name: max(each.candidate.simulation.memory) for each in baselines(whole)}
    # Room for the strategies that shard parameters, and for no other.
    size = 1.01 * max(held["zero3_even"], held["zero3_proportional"])
    assert size < min(held["ddp_even"], held["ddp_proportional"])
    scarce = Cluster([replace(each, memory=size) for each in room.devices], link=FAST)
    plan = plan_axes(axes, scarce, active=(0, 2))
    assert {name for name, obstacle in plan.obstacles.items() if obstacle == "memory"} >= {
        "ddp_even",
        "ddp_proportional",
    }
    assert plan.baselines["zero3_even"] == pytest.approx(plan.details.strategies["zero3_even"].seconds + FAST.latency)
    told = {each.name: each for each in contents(plan).strategies}
    assert told["ddp_even"].obstacle == "does not fit the memory"
    assert told["ddp_even"].memory == max(plan.details.strategies["ddp_even"].memory) > size
    assert plan.details.strategies["ddp_even"].memory[1] == 0


def test_nobody_is_left_out_where_all_are_of_use():
    plan = plan_axes(axes_of("mlp", batch=64, hidden=256), cluster(3e9, 1e9))
    assert plan.left_out == ()
    assert plan.with_all is None
    assert "left out" not in str(plan)


def test_a_host_behind_a_slow_link_is_left_out_as_a_whole():
    hosts = [Cluster([device(4e9)] * 2, link=FAST), Cluster([device(5e9)] * 2, link=FAST)]
    plan = plan_axes(axes_of("mlp", batch=64, hidden=256), Cluster(hosts, link=Link(bandwidth=1e7, latency=1e-6)))
    assert plan.left_out == (0, 1)


def test_devices_that_hold_something_already_stay():
    axes, machines = axes_of("gpt2", layers=1), cluster(5e9, 1e8, 5e9, link=SLOW)
    weight = next(item.name for item in axes.graph.inputs if item.kind == "parameter")
    assert plan_axes(axes, machines, placements={weight: ("R",)}).left_out == ()
    assert plan_axes(axes, machines, placements={weight: ("R",)}, active=(1, 2)).left_out == (0,)
    batch = plan_axes(axes, machines, splits={"batch": [2, 1, 1]})
    assert (batch.left_out, batch.splits["batch"]) == ((), [2, 1, 1])
    batch = plan_axes(axes, machines, splits={"batch": [3, 0, 1]})
    assert (batch.left_out, batch.splits["batch"]) == ((1,), [3, 1])


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 300), st.lists(st.sampled_from([2e9, 5e9]), min_size=1, max_size=3), st.data())
def test_a_device_fifty_times_slower_does_not_slow_the_others(seed, flops, data):
    axes = random_axes(seed)
    link, overlap = data.draw(st.sampled_from([FAST, SLOW])), data.draw(st.sampled_from([0.0, 0.7]))
    at = data.draw(st.integers(0, len(flops)))
    machines = Cluster([device(f) for f in (*flops[:at], min(flops) / 50, *flops[at:])], link=link, overlap=overlap)
    rest, slowed = plan_axes(axes, machines.without([at])), plan_axes(axes, machines)
    # Their plan alone is another search, which may end elsewhere.
    assert slowed.predicted_time <= rest.predicted_time * 1.05 + link.latency


@pytest.mark.parametrize(
    ("seed", "flops", "link", "overlap"),
    [
        # Programs for all devices say little of those for two of them.
        (192, [5e9, 3e9, 5e9, 3e9], Link(bandwidth=1.7e8, latency=3e-8), 0.5),
        (204, [1e9, 5e9, 5e9], Link(bandwidth=2.4e8, latency=2.7e-9), 1.0),
        # Only at prices at which those that are known cost the same, another one is cheapest.
        (206, [1e9, 1e9, 1e9], Link(bandwidth=1.1e6, latency=3.4e-8), 1.0),
    ],
)
def test_sets_of_devices_are_searched_that_known_programs_do_not_suit(seed, flops, link, overlap):
    axes = random_axes(seed)
    machines = Cluster([device(f) for f in (*flops, min(flops) / 50)], link=link, overlap=overlap)
    rest, slowed = plan_axes(axes, machines.without([len(flops)])), plan_axes(axes, machines)
    assert slowed.predicted_time <= rest.predicted_time * 1.005 + link.latency


def test_of_equal_devices_those_with_a_share_are_kept():
    """One of two equal ones has none; a program that fits, and is faster, is known for the other."""
    flops = (3e9, 2e8, 2e8, 1e9)
    devices = [Device(flops=f, memory_bandwidth=f, memory=1224, launch_overhead=1e-7) for f in flops]
    machines = Cluster(devices, link=Link(bandwidth=4.26e8, latency=1e-6), overlap=0.5)
    assert plan_axes(random_axes(13, layers=1), machines).predicted_time < 1.04e-5


def test_one_more_equal_device_does_not_slow_the_others():
    axes, link = axes_of("mlp", batch=256, layers=3, hidden=1024), Link(bandwidth=150e9, latency=5e-6)
    times = [plan_axes(axes, Cluster([Device("V100")] * count, link=link)).predicted_time for count in range(2, 7)]
    assert all(more <= fewer * (1 + WORTH_LEAVING) + link.latency for fewer, more in pairwise(times))


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 300), st.integers(1, 4), st.sampled_from([FAST, SLOW]))
def test_equal_devices_get_equal_shares_of_what_they_compute(seed, devices, link):
    axes, machines = random_axes(seed), cluster(*[2e9] * devices, link=link)
    plan = plan_axes(axes, machines)
    problem, text = make_problem(axes, machines).among(plan.stage.devices), msgspec.json.encode(plan.program).decode()
    for axis in {item.axis for item in plan.program.instructions if isinstance(item, Compute) and item.axis}:
        if max(plan.splits[axis]) - min(plan.splits[axis]) > 1:
            # Up to rounding: where another axis leaves a device with less to do, it may have more of this one.
            equal = problem.engine.simulate(text, {**plan.splits, axis: problem.even[axis]})
            assert equal.seconds > plan.predicted_time, axis


@settings(max_examples=max(1, EXAMPLES // 2))
@given(
    st.integers(0, 300),
    st.lists(st.sampled_from([1e9, 3e9]), min_size=2, max_size=3),
    st.sampled_from([0.6, 1.5]),
    st.sampled_from([FAST, SLOW]),
)
def test_plans_under_scarce_memory_fit_beat_baselines_and_are_the_same_each_time(seed, flops, part, link):
    axes = random_axes(seed, layers=1)
    need = max(plan_axes(axes, cluster(*flops, link=link)).predicted_memory)
    devices = [Device(flops=f, memory_bandwidth=f, memory=need * part, launch_overhead=1e-7) for f in flops]

    def planned():
        try:
            return plan_axes(axes, Cluster(devices, link=link))
        except PlanError as error:
            if "no plan fits memory" not in str(error):
                raise
            return None

    plan = planned()
    again = planned()
    assert (plan is None) == (again is None)
    if plan is not None:
        assert plan.to_json() == again.to_json()
        assert max(plan.predicted_memory) <= need * part
        fitting = [seconds for seconds in plan.baselines.values() if seconds is not None]
        assert plan.predicted_time <= min(fitting, default=float("inf")) * (1 + 1e-6)
    else:
        known = baselines(make_problem(axes, Cluster(devices, link=link)))
        assert [baseline.name for baseline in known if baseline.seconds is not None] == []
        assert part < 1.0

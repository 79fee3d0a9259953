"""Devices that cost more than they give are left out, or named; plans of random models hold what they promise."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hap
from hap.cluster import Cluster, Device, Link
from hap.errors import PlanError
from hap.planning import plan_axes
from hap.planning.baselines import baselines
from hap.planning.setup import make_problem
from hap.planning.subsets import Without
from hap.program import Compute
from tests.planning.graphs import axes_of, random_axes

FAST, SLOW = Link(bandwidth=1e12, latency=1e-9), Link(bandwidth=1e9, latency=1e-6)


def device(flops):
    return Device(flops=flops, memory_bandwidth=flops, memory=1e9, launch_overhead=1e-7)


def cluster(*flops, link=FAST):
    return Cluster([device(f) for f in flops], link=link)


@pytest.fixture(scope="module")
def slowed():
    """A plan with a slow device behind a slow link."""
    return plan_axes(axes_of("gpt2", layers=1), cluster(5e9, 5e9, 1e8, link=SLOW))


def test_a_plan_says_which_devices_have_no_share_and_what_one_would_cost(slowed):
    assert slowed.left_out == (2,)
    assert all(units[2] == 0 for axis, units in slowed.splits.items() if f"axis={axis})" in str(slowed))
    assert slowed.with_all > slowed.predicted_time
    assert "# without a share: device 2 (device); with a share for all " in str(slowed)
    plan = plan_axes(axes_of("mlp", batch=64, hidden=256), cluster(3e9, 1e9))
    assert plan.left_out == ()
    assert plan.with_all == plan.predicted_time
    assert plan.faster_without is None
    assert "without" not in str(plan)


def test_a_plan_names_devices_that_a_job_had_better_not_have(slowed):
    # All devices take part in all collectives, with a share or without.
    assert slowed.faster_without.devices == (2,)
    assert slowed.faster_without.seconds < slowed.predicted_time
    assert "# faster in a job without device 2 (device): at most " in str(slowed)
    assert "plan again with devices=plan.cluster.without([2])" in str(slowed)
    again = plan_axes(axes_of("gpt2", layers=1), slowed.cluster.without(slowed.faster_without.devices))
    assert again.predicted_time <= slowed.faster_without.seconds * (1 + 1e-6)
    assert hap.Plan.from_json(slowed.to_json()).faster_without == slowed.faster_without


def test_a_host_behind_a_slow_link_is_named_as_a_whole():
    hosts = [Cluster([device(5e9)] * 2, link=FAST), Cluster([device(4e9)] * 2, link=FAST)]
    plan = plan_axes(axes_of("mlp", batch=64, hidden=256), Cluster(hosts, link=Link(bandwidth=1e7, latency=1e-4)))
    assert plan.faster_without.devices == (2, 3)


@pytest.mark.parametrize("devices", [(3,), (-1,), (1, 1), (), (0, 1, 2)])
def test_files_that_name_devices_that_are_not_there_are_refused(slowed, devices):
    wrong = msgspec.structs.replace(slowed, faster_without=Without(devices, 1e-3))
    with pytest.raises(PlanError, match=r"faster_without.devices: expected different ranks below 3"):
        hap.Plan.from_json(wrong.to_json())


@settings(max_examples=6)
@given(st.integers(0, 3), st.lists(st.sampled_from([2e9, 5e9]), min_size=1, max_size=3), st.sampled_from([FAST, SLOW]))
def test_a_device_fifty_times_slower_does_not_slow_the_others(seed, flops, link):
    axes = random_axes(seed)
    rest = plan_axes(axes, cluster(*flops, link=link))
    slowed = plan_axes(axes, cluster(*flops, min(flops) / 50, link=link))
    if link is FAST:
        assert slowed.predicted_time <= rest.predicted_time * 1.02
    else:
        # Its messages cost the others time; the plan says so, and what a job without it takes, at most.
        offered = slowed.predicted_time if slowed.faster_without is None else slowed.faster_without.seconds
        assert offered <= rest.predicted_time * 1.2


@settings(max_examples=6)
@given(st.integers(0, 3), st.integers(1, 4), st.sampled_from([FAST, SLOW]))
def test_equal_devices_get_equal_shares_of_what_they_compute(seed, devices, link):
    plan = plan_axes(random_axes(seed), cluster(*[2e9] * devices, link=link))
    for axis in {item.axis for item in plan.program.instructions if isinstance(item, Compute) and item.axis}:
        assert max(plan.splits[axis]) - min(plan.splits[axis]) <= 1, axis


@settings(max_examples=4)
@given(
    st.integers(0, 3),
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

"""Where memory is scarce, devices that promise much are looked at first; plans are as good as what is promised."""

from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hap.cluster import Cluster, Device, Link
from hap.errors import PlanError
from hap.planning import outer, plan_axes
from hap.planning.alternation import alternate
from hap.planning.progress import Progress
from hap.planning.promising import promising
from hap.planning.setup import make_problem
from hap.planning.subsets import WORTH_LEAVING
from hap.units import seconds_text
from tests.planning.graphs import axes_of, random_axes

FAST, SLOW = Link(bandwidth=1e10, latency=1e-7), Link(bandwidth=1e8, latency=1e-6)


def device(flops, memory=1e9):
    return Device(flops=flops, memory_bandwidth=flops, memory=memory, launch_overhead=1e-7)


def hosts(*members, link):
    return Cluster([Cluster(each, link=FAST) for each in members], link=link)


def promises(axes, machines):
    problem = make_problem(axes, machines)
    known = alternate(problem, [problem.proportional, problem.even], [], Progress())
    return promising(problem, known, known[0].simulation.seconds)


def scarce():
    """A model, and a fast host beside a slow one, neither with the memory for its fastest program."""
    axes = axes_of("gpt2", layers=1)
    memory = 0.85 * max(plan_axes(axes, Cluster([device(5e9)] * 2, link=FAST)).predicted_memory)
    return axes, hosts([device(5e9, memory)] * 2, [device(5e8, memory)] * 4, link=SLOW)


def test_where_fewer_devices_are_faster_all_are_not_searched_in_vain():
    axes, machines = scarce()
    with mock.patch.object(outer, "_completed", wraps=outer._completed) as completed:
        plan = plan_axes(axes, machines)
    assert plan.left_out == (2, 3, 4, 5)
    assert max(plan.predicted_memory) <= machines.devices[0].memory
    assert [call.args[0].devices for call in completed.call_args_list] == [(0, 1)]
    # What a program takes on all of them that fits.
    assert plan.with_all > 1.1 * plan.predicted_time
    assert f"with all devices {seconds_text(plan.with_all)}" in str(plan)


def test_no_time_with_all_devices_is_told_where_one_has_no_memory_to_take_part():
    axes, machines = scarce()
    small = machines.without([5])
    tiny = hosts([*small.devices[:2]], [*small.devices[2:], replace(small.devices[2], memory=1e2)], link=SLOW)
    plan = plan_axes(axes, tiny)
    assert plan.left_out == (2, 3, 4, 5)
    assert plan.with_all is None
    assert "not all have the memory to take part" in str(plan)
    with pytest.raises(PlanError, match="no plan fits memory"):
        plan_axes(axes, tiny, active=range(6))


def test_moving_units_makes_room():
    """No real shares fit that linear programs find, but whole units do."""
    devices = [device(9e9, 1429.87), device(3e9, 3952.67)]
    plan = plan_axes(random_axes(15, layers=2), Cluster(devices, link=FAST))
    assert all(held <= each.memory for held, each in zip(plan.predicted_memory, devices, strict=True))


def test_all_devices_are_searched_where_they_may_be_faster():
    axes = axes_of("gpt2", layers=1)
    roomy = plan_axes(axes, Cluster([device(2e9)] * 3, link=FAST))
    assert roomy.left_out == ()
    machines = Cluster([device(2e9, 0.7 * max(roomy.predicted_memory))] * 3, link=FAST)
    assert promises(axes, machines)[0] == []
    assert plan_axes(axes, machines).left_out == ()


def test_devices_that_hold_something_already_are_not_left_out():
    axes, machines = scarce()
    problem = make_problem(axes, machines)
    known = alternate(problem, [problem.proportional], [], Progress())
    seconds = known[0].simulation.seconds
    fewer, whole = promising(problem, known, seconds)
    assert fewer != []
    assert whole.problem.devices == problem.devices
    assert promising(replace(problem, settled=True), known, seconds) == ([], None)


@settings(max_examples=8)
@given(
    st.integers(0, 3),
    st.lists(st.sampled_from([1e9, 3e9, 9e9]), min_size=2, max_size=4),
    st.sampled_from([0.6, 0.8, 1.2]),
    st.sampled_from([FAST, SLOW]),
)
def test_plans_keep_what_is_promised(seed, flops, part, link):
    axes = random_axes(seed, layers=2)
    need = max(plan_axes(axes, Cluster([device(each) for each in flops], link=link)).predicted_memory)
    machines = Cluster([device(each, part * need) for each in flops], link=link)
    found, whole = promises(axes, machines)
    for promise in [*found, *([whole] if whole else [])]:
        capacity = promise.problem.engine.machine.capacity
        fastest, fits = promise.known
        assert fits.simulation.excess(capacity) == 0.0
        assert promise.fastest <= promise.fitting
        assert fastest.simulation.seconds <= fits.simulation.seconds
        again = promise.problem.engine.on(promise.problem.engine.cluster).simulate(fits.program, fits.splits)
        assert again == fits.simulation
    try:
        plan = plan_axes(axes, machines)
    except PlanError:
        assert not found
        assert whole is None
    else:
        least = min((promise.fitting for promise in found), default=float("inf"))
        assert plan.predicted_time * (1.0 - WORTH_LEAVING) ** 2 <= min(least, whole.fitting if whole else least)

"""Whole plans of small models."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hap
from hap.cluster import Cluster, Device, Link
from hap.errors import ClusterError, PlanError
from hap.planning import plan_axes
from hap.planning.baselines import baselines
from hap.planning.setup import make_problem
from hap.program import Compute, InputInstruction
from tests import models
from tests.planning.graphs import axes_of, random_axes

FAST = Link(bandwidth=1e12, latency=1e-9)


def device(flops, memory=1e9, launch_overhead=1e-7):
    return Device(flops=flops, memory_bandwidth=flops, memory=memory, launch_overhead=launch_overhead)


def cluster(*flops, link=None, overlap=0.0, memory=1e9):
    return Cluster([device(f, memory) for f in flops], link=link or Link(bandwidth=1e9, latency=1e-6), overlap=overlap)


def check(plan):
    """What holds of every plan."""
    assert plan.search_gap == 0.0
    assert plan.lower_bound <= plan.predicted_time * (1 + 1e-9)
    assert plan.optimality_gap == pytest.approx(plan.predicted_time / plan.lower_bound - 1.0, abs=1e-9)
    sizes = plan.axes | {name: plan.axes[each.axis] for name, each in plan.classes.items()}
    assert {axis: sum(units) for axis, units in plan.splits.items()} == sizes
    fitting = [seconds for seconds in plan.baselines.values() if seconds is not None]
    assert plan.predicted_time <= min(fitting, default=float("inf")) * (1 + 1e-6)
    capacity = [each.memory for each in plan.cluster.devices]
    assert all(used <= limit for used, limit in zip(plan.predicted_memory, capacity, strict=True))
    assert plan.synthesis_time > 0.0
    assert hap.Plan.from_json(plan.to_json()).to_json() == plan.to_json()


def stored(plan):
    """The kinds of placements that parameters are stored in."""
    inputs = [item for item in plan.program.instructions if isinstance(item, InputInstruction)]
    return {item.placement[0][0] for item in inputs if ".weight" in item.tensor or ".bias" in item.tensor}


@pytest.mark.parametrize("name", ["mlp", "gpt2", "bert", "llama", "vgg19"])
def test_every_model_on_unequal_devices(name):
    options = {"layers": 1} if name in ("gpt2", "bert", "llama") else {}
    plan = plan_axes(axes_of(name, **options), cluster(3e9, 3e9, 1e9))
    check(plan)
    assert {"ddp_even", "ddp_proportional", "zero3_even"} <= set(plan.baselines)
    assert plan.baselines["ddp_even"] is not None
    assert str(plan).splitlines()[0] == "# 3 devices: 3 x device"


@given(
    st.integers(0, 5),
    st.lists(st.sampled_from([1e8, 1e9, 3e9]), min_size=1, max_size=4),
    st.sampled_from([1e7, 1e9, 1e11]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_random_models_on_random_clusters(seed, flops, bandwidth, overlap, interference):
    machines = cluster(*flops, link=Link(bandwidth=bandwidth, latency=1e-6), overlap=overlap)
    check(plan_axes(random_axes(seed), replace(machines, interference=interference)))


def test_planning_writes_nothing_where_no_terminal_is(capfd):
    plan_axes(axes_of("mlp"), cluster(3e9, 1e9))
    assert capfd.readouterr() == ("", "")


def test_operators_without_a_rule_are_named():
    class Hashed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x).square().mean() * torch.hash_tensor(x).double()

    plan = hap.plan(Hashed(), devices=cluster(3e9, 1e9), example_inputs=(torch.ones(6, 4),))
    (entry,) = plan.replicated
    assert (entry.operator, entry.target) == ("hash_tensor", "aten.hash_tensor.default")
    assert entry.source.startswith("test_outer.py:")
    assert entry.source.endswith("return self.layer(x).square().mean() * torch.hash_tensor(x).double()")
    assert f"# no rule, whole on every device: aten.hash_tensor (hash_tensor) at {entry.source}\n" in str(plan)
    assert hap.Plan.from_json(plan.to_json()).replicated == plan.replicated


def test_the_same_input_gives_the_same_bytes():
    machines = cluster(3e9, 1e9, 1e9)
    module, args, kwargs = models.gpt2(torch.float32, layers=1)
    assert args == ()
    again = hap.plan(module, devices=machines, example_kwargs=kwargs)
    assert again.to_json() == plan_axes(axes_of("gpt2", layers=1), machines).to_json()


PROGRAM = """
import sys
from hap.cluster import Cluster, Device, Link
from hap.planning import plan_axes
from tests.planning.graphs import random_axes

devices = [Device(flops=flops, memory_bandwidth=1e9, memory=1e9) for flops in (3e9, 1e9)]
sys.stdout.write(plan_axes(random_axes(1), Cluster(devices, link=Link(bandwidth=1e9, latency=1e-6))).to_json())
"""


def test_another_process_gives_the_same_bytes():
    """Where strings hash otherwise, so that sets come in another order."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    devices = [Device(flops=flops, memory_bandwidth=1e9, memory=1e9) for flops in (3e9, 1e9)]
    here = plan_axes(random_axes(1), Cluster(devices, link=Link(bandwidth=1e9, latency=1e-6)))
    assert done.stdout == here.to_json()


def test_equal_devices_get_equal_splits():
    plan = plan_axes(axes_of("mlp", batch=10), cluster(1e9, 1e9, 1e9, 1e9))
    check(plan)
    for axis in {item.axis for item in plan.program.instructions if isinstance(item, Compute) and item.axis}:
        assert max(plan.splits[axis]) - min(plan.splits[axis]) <= 1
    even = plan_axes(axes_of("mlp", batch=8), cluster(1e9, 1e9, 1e9, 1e9))
    # Two of them may be as fast as four.
    assert set(even.splits["batch"]) == {8 // len(even.stage.devices)} or "batch" not in str(even.program)


def test_a_device_fifty_times_slower_does_not_slow_the_others():
    axes = axes_of("mlp", batch=64, hidden=256)
    without = plan_axes(axes, cluster(5e9, 5e9, link=FAST))
    with_slow = plan_axes(axes, cluster(5e9, 5e9, 1e8, link=FAST))
    check(with_slow)
    assert with_slow.predicted_time <= without.predicted_time * 1.01


def test_speed_rules_where_communication_is_free():
    plan = plan_axes(axes_of("mlp", batch=64, hidden=256), cluster(3e9, 1e9, link=FAST))
    check(plan)
    assert plan.splits["batch"] == [48, 16]
    assert plan.optimality_gap < 0.05


def test_one_device_runs_the_program_without_communication():
    plan = plan_axes(axes_of("mlp"), cluster(1e9))
    check(plan)
    assert plan.optimality_gap == pytest.approx(0.0, abs=1e-6)
    assert set(plan.splits["batch"]) == {6}


def test_forbidden_axes_are_not_split():
    plan = plan_axes(axes_of("gpt2", layers=1), cluster(3e9, 1e9), forbidden_axes=["batch"])
    check(plan)
    axes = {getattr(item, "axis", None) for item in plan.program.instructions}
    assert "batch" not in axes
    assert plan.baselines["ddp_even"] is None
    # Memory has no part in it.
    assert plan.obstacles["ddp_even"] == "impossible"
    assert "ddp_even not possible here" in str(plan)


def test_parameters_that_are_placed_already_stay_where_they_are():
    axes = axes_of("mlp")
    first = next(item for item in axes.graph.inputs if item.kind == "parameter")
    name = axes.graph.tensors[first.tensor].name
    hidden = axes.axes[axes.occurrences[first.tensor][0].axis].name
    plan = plan_axes(axes, cluster(3e9, 1e9), placements={first.name: ("S0",)}, splits={hidden: [1, 7]})
    assert plan.splits[hidden] == [1, 7]
    stored = [item for item in plan.program.instructions if isinstance(item, InputInstruction) and item.tensor == name]
    assert [item.placement for item in stored] == [("S0",)]


def test_scarce_memory_is_saved_by_storing_shards():
    # A large batch on narrow layers: the batch is split and parameters are whole, unless memory forbids it.
    axes, link = axes_of("mlp", batch=512, hidden=32), Link(bandwidth=1e8, latency=1e-5)
    roomy = plan_axes(axes, cluster(1e9, 1e9, link=link), optimiser=100)
    need = max(roomy.predicted_memory)
    tight = plan_axes(axes, cluster(1e9, 1e9, link=link, memory=need * 0.8), optimiser=100)
    check(tight)
    assert stored(roomy) == {"R"}
    assert stored(tight) != {"R"}
    assert roomy.obstacles == {}
    assert tight.obstacles["ddp_even"] == "memory"
    assert "ddp_even does not fit" in str(tight)
    assert max(tight.predicted_memory) <= need * 0.8
    # An all-reduce takes as long as a reduce-scatter and an all-gather: the time may stay the same.
    assert tight.predicted_time >= roomy.predicted_time * (1 - 1e-9)


def test_memory_that_never_fits_is_an_error_with_device_and_bytes():
    with pytest.raises(
        PlanError, match=r"no plan fits memory: .* on device \d \(device\), .* more than its 1000 B; it holds"
    ):
        plan_axes(axes_of("mlp"), cluster(1e9, 1e9, memory=1000))


def test_baselines_are_what_their_names_say():
    axes = axes_of("mlp", batch=6)
    batch = [axis.name for axis in axes.axes].index("batch")
    problem = make_problem(axes, cluster(2e9, 1e9))
    found = {baseline.name: baseline for baseline in baselines(problem)}
    assert found["ddp_even"].candidate.splits["batch"] == [3, 3]
    assert found["ddp_proportional"].candidate.splits["batch"] == [4, 2]
    for name, stored in (("ddp_even", "R"), ("zero3_even", "S")):
        program = msgspec.json.decode(found[name].candidate.program)["instructions"]
        inputs = {item["tensor"]: item["placement"] for item in program if item["kind"] == "input"}
        assert all(inputs[tensor][0].startswith(stored) for tensor in problem.parameters)
        works = {item["operator"]: item["axis"] for item in program if item["kind"] == "compute"}
        for operator, choices, layout in zip(axes.graph.operators, axes.choices, axes.layout, strict=True):
            if not layout and any(choice.axis == batch for choice in choices):
                assert works[operator.name] == "batch"
    # Half the batch on the slower device takes longer than a third of it.
    assert found["ddp_proportional"].seconds < found["ddp_even"].seconds


def test_a_batch_smaller_than_the_cluster_leaves_devices_out():
    plan = plan_axes(axes_of("mlp", batch=2), cluster(1e9, 1e9, 1e9))
    check(plan)
    assert plan.baselines["ddp_even"] is not None


def test_wrong_arguments_are_errors():
    axes, machines = axes_of("mlp"), cluster(1e9, 1e9)
    with pytest.raises(PlanError, match=r'there is no axis "depth"; the axes are .*batch'):
        plan_axes(axes, machines, forbidden_axes=["depth"])
    with pytest.raises(PlanError, match="expected a list of names"):
        plan_axes(axes, machines, forbidden_axes="batch")
    with pytest.raises(PlanError, match="optimiser: expected 0 to 1000"):
        plan_axes(axes, machines, optimiser=-1)
    with pytest.raises(PlanError, match=r"splits.batch: expected 2 numbers of units that sum to 6"):
        plan_axes(axes, machines, splits={"batch": [6]})
    with pytest.raises(PlanError, match='splits: there is no axis "depth"'):
        plan_axes(axes, machines, splits={"depth": [6]})
    with pytest.raises(PlanError, match='no parameter or buffer "w"'):
        plan_axes(axes, machines, placements={"w": ("R",)})
    with pytest.raises(PlanError, match=r"expected a torch\.nn\.Module, got function"):
        hap.plan(lambda x: x, devices=machines, example_inputs=())
    with pytest.raises(ClusterError, match='"V1000" is not a known accelerator'):
        hap.plan(torch.nn.Linear(1, 1), devices=["V1000"], example_inputs=(torch.ones(1, 1),))
    with pytest.raises(ClusterError, match="at least one device"):
        hap.plan(torch.nn.Linear(1, 1), devices=[], example_inputs=(torch.ones(1, 1),))

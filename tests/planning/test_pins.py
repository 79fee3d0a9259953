"""Placements that the user asks for by name: who is meant, and what is kept."""

from __future__ import annotations

import random

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

import hap
from hap.cluster import Cluster, Device, Link
from hap.errors import HapError, PlanError
from hap.planning import plan_axes
from hap.planning.engine import Constraints, Prices
from hap.planning.pins import read_pins
from hap.planning.setup import make_problem
from hap.program import Compute
from hap.rules import annotate
from hap.trace import trace
from tests.planning.tagger import Tagger, batch, kept, tagger


def cluster(*flops, memory=1e12):
    devices = [Device(flops=each, memory_bandwidth=each, memory=memory, name="device") for each in flops]
    return Cluster(devices, link=Link(bandwidth=1e9, latency=1e-6))


PARAMETERS = [
    *("embed.weight", "norm.weight", "norm.bias"),
    *("layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"),
]
STATISTICS = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
INPUTS, OUTPUTS = ["args.0", "kwargs.labels"], ["outputs.logits", "outputs.best"]


@pytest.mark.parametrize(
    ("name", "placement", "meant", "dim"),
    [
        ("layers.0.weight", Shard(1), ["layers.0.weight"], 1),
        ("layers.0.weight", Shard(-1), ["layers.0.weight"], 1),
        ("embed.weight", Shard(0), ["embed.weight"], 0),
        ("head.weight", Shard(0), ["embed.weight"], 0),
        ("head", Shard(1), ["embed.weight"], 1),
        ("norm.running_mean", Shard(0), ["norm.running_mean"], 0),
        ("layers.2", Shard(0), ["layers.2.weight", "layers.2.bias"], 0),
        ("layers", Replicate(), ["layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"], None),
        ("", Replicate(), [*PARAMETERS, *STATISTICS], None),
        ("layers.*.weight", Shard(1), ["layers.0.weight", "layers.2.weight"], 1),
        ("layers.?", Shard(0), ["layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"], 0),
        ("*.bias", Shard(0), ["norm.bias", "layers.0.bias", "layers.2.bias"], 0),
        ("args.0", Shard(1), ["args.0"], 1),
        ("args", Shard(0), ["args.0"], 0),
        ("kwargs.labels", Shard(0), ["kwargs.labels"], 0),
        ("*", Replicate(), [*PARAMETERS, *STATISTICS, *INPUTS, *OUTPUTS], None),
        ("outputs.logits", Shard(2), ["outputs.logits"], 2),
        ("outputs.best", Shard(1), ["outputs.best"], 1),
        ("outputs", Shard(0), OUTPUTS, 0),
        ("outputs.loss", Replicate(), [], None),
    ],
)
def test_who_is_meant(name, placement, meant, dim):
    axes, machines = tagger(), cluster(3e9, 1e9)
    plan = plan_axes(axes, machines, pin={name: placement})
    found = kept(axes, plan.program)
    assert set(found) == {*PARAMETERS, *STATISTICS, *INPUTS, *OUTPUTS}
    assert {each: found[each] for each in meant} == dict.fromkeys(meant, dim)
    # Nothing else is bound.
    bound = make_problem(axes, machines, pins=read_pins({name: placement}, None)).constraints
    tensors = {axes.graph.tensors[entry.tensor].name: entry.name for entry in axes.graph.inputs}
    names = [*(tensors[each] for each in bound.placements), *(f"outputs.{each}" for each in bound.outputs)]
    assert sorted(names) == sorted(meant)


@pytest.mark.parametrize("dim", [0, 1])
def test_what_is_forbidden_is_not_chosen(dim):
    axes = tagger()
    plan = plan_axes(axes, cluster(3e9, 1e9), forbid={"layers.0.weight": [Replicate(), Shard(1 - dim)]})
    assert kept(axes, plan.program)["layers.0.weight"] == dim
    # Nor is what a tensor lacks: biases have no second dimension.
    plan = plan_axes(axes, cluster(3e9, 1e9), forbid={"layers": [Replicate(), Shard(1)]})
    assert {kept(axes, plan.program)[name] for name in PARAMETERS if name.startswith("layers")} == {0}


def test_of_several_placements_those_count_that_a_tensor_can_have():
    axes = tagger()
    plan = plan_axes(axes, cluster(3e9, 1e9), pin={"layers.0": [Shard(1), Replicate()], "layers.0.weight": Shard(1)})
    found = kept(axes, plan.program)
    assert (found["layers.0.weight"], found["layers.0.bias"]) == (1, None)


def test_a_dimension_is_any_axis_that_stands_there():
    """The queries, keys and values of four heads: a dimension of several axes, with a run of them beside."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.fused = nn.Linear(8, 24, bias=False)

        def forward(self, x):
            q, k, v = (part.unflatten(-1, (4, 2)).transpose(1, 2) for part in self.fused(x).split(8, -1))
            return F.scaled_dot_product_attention(q, k, v).square().mean()

    axes = annotate(trace(Attention(), (torch.ones(6, 3, 8),)))
    weight = next(entry.tensor for entry in axes.graph.inputs if entry.name == "fused.weight")
    rows = [at for at, lies in enumerate(axes.occurrences[weight]) if lies.dim == 0]
    assert len(rows) > 1
    problem = make_problem(axes, cluster(3e9, 1e9), pins=read_pins({"fused.weight": Shard(0)}, None))
    assert problem.constraints.placements == {axes.graph.tensors[weight].name: tuple(f"S{at}" for at in rows)}
    along = {axes.axes[axes.occurrences[weight][at].axis].name for at in rows}
    named = next(iter(sorted(along)))
    fewer = make_problem(axes, cluster(3e9, 1e9), pins=problem.pins, forbidden_axes=[named])
    assert 0 < len(fewer.constraints.placements[axes.graph.tensors[weight].name]) < len(rows)


@st.composite
def constraints(draw):
    """Random pins and prohibitions that leave every tensor something."""
    chosen = random.Random(draw(st.integers(0, 2**32)))
    ranks = {"embed.weight": 2, "layers.0.weight": 2, "layers.2.weight": 2, "outputs.logits": 3, "args.0": 2}
    ranks |= {"layers.0.bias": 1, "norm.running_mean": 1, "outputs.best": 2, "kwargs.labels": 2}
    pin, forbid = {}, {}
    for name, rank in ranks.items():
        every = [Replicate(), *map(Shard, range(rank))]
        some = chosen.sample(every, chosen.randint(1, rank))
        if chosen.random() < 0.6:
            chosen.choice((pin, forbid))[name] = some
    return pin, forbid


@given(constraints(), st.booleans())
def test_random_constraints_are_kept_and_cost_no_less(given, with_batch):
    pin, forbid = given
    axes, machines = tagger(), cluster(3e9, 1e9, 1e9)
    forbidden = [] if with_batch else ["batch"]
    problem = make_problem(axes, machines)
    pins = read_pins(pin, forbid)
    try:
        own = make_problem(axes, machines, pins=pins, forbidden_axes=forbidden).constraints
    except PlanError as error:
        assert "forbidden_axes forbids" in str(error) or "no placement" in str(error)  # noqa: PT017
        assert not with_batch
        return
    for splits in (problem.even, problem.proportional):
        free, bound = (
            problem.engine.synthesise(splits, Prices((0.5, 0.25, 0.25)), each) for each in (Constraints(), own)
        )
        assert bound.cost >= free.cost * (1 - 1e-9)
        assert bound.bound >= free.bound * (1 - 1e-9)
    plan = plan_axes(axes, machines, pin=pin, forbid=forbid, forbidden_axes=forbidden)
    found = kept(axes, plan.program)
    for name, placements in pin.items():
        assert found[name] in {each.dim if isinstance(each, Shard) else None for each in placements}
    for name, placements in forbid.items():
        assert found[name] not in {each.dim if isinstance(each, Shard) else None for each in placements}
    assert plan.search_gap == 0.0
    assert plan.lower_bound <= plan.predicted_time * (1 + 1e-9)


def test_baselines_that_break_the_constraints_are_no_candidates():
    axes, machines = tagger(), cluster(1e9, 1e9)
    plan = plan_axes(axes, machines, forbid={"layers": Replicate()})
    assert plan.obstacles["ddp_even"] == plan.obstacles["ddp_proportional"] == "impossible"
    assert plan.baselines["zero3_even"] is not None
    plan = plan_axes(axes, machines, pin={"layers": Replicate()})
    assert plan.obstacles["zero3_even"] == "impossible"
    assert plan.baselines["ddp_even"] is not None


def test_operators_share_a_required_axis_where_they_can():
    axes, machines = tagger(), cluster(3e9, 1e9)
    names = [axis.name for axis in axes.axes]
    inner = names[axes.occurrences[next(e.tensor for e in axes.graph.inputs if e.name == "layers.0.bias")][0].axis]
    for axis in (inner, "batch"):
        plan = plan_axes(axes, machines, required_axis=axis, pin={"": Replicate()})
        works = {item.operator: item.axis for item in plan.program.instructions if isinstance(item, Compute)}
        able = [
            operator.name
            for operator, choices, layout in zip(axes.graph.operators, axes.choices, axes.layout, strict=True)
            if not layout and any(choice.axis == names.index(axis) for choice in choices)
        ]
        assert len(able) > 3
        assert {works[name] for name in able} == {axis}
        assert (plan.obstacles.get("ddp_even") == "impossible") == (axis != "batch")
        assert plan.obstacles.get("tensor_even") == ("impossible" if axis == "batch" else None)
        assert f"# required axis: {axis}" in str(plan).splitlines()
        assert hap.Plan.from_json(plan.to_json()).required_axis == axis
    with pytest.raises(PlanError, match='required_axis: there is no axis "depth"; the axes are batch'):
        plan_axes(axes, machines, required_axis="depth")
    with pytest.raises(PlanError, match='required_axis: "batch" is among forbidden_axes, too'):
        plan_axes(axes, machines, required_axis="batch", forbidden_axes=["batch"])


def test_scarce_memory_moves_only_what_is_not_pinned():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Tanh(), nn.Linear(32, 32, bias=False))

        def forward(self, x):
            return self.layers(x).square().mean()

    axes = annotate(trace(Wide(), (torch.ones(512, 32),)))
    link = Link(bandwidth=1e8, latency=1e-5)

    def machines(memory):
        return Cluster([Device(flops=1e9, memory_bandwidth=1e9, memory=memory) for _ in range(2)], link=link)

    pin = {"layers.0.weight": Replicate()}
    roomy = plan_axes(axes, machines(1e12), pin=pin, optimiser=100)
    need = max(roomy.predicted_memory)
    assert kept(axes, roomy.program)["layers.2.weight"] is None
    tight = plan_axes(axes, machines(need * 0.9), pin=pin, optimiser=100)
    found = kept(axes, tight.program)
    assert found["layers.0.weight"] is None
    assert found["layers.2.weight"] is not None
    # One of the shards is left to be chosen.
    forbid = {"layers.2.weight": Shard(found["layers.2.weight"])}
    other = plan_axes(axes, machines(need * 0.9), pin=pin, forbid=forbid, optimiser=100)
    assert kept(axes, other.program)["layers.2.weight"] == 1 - found["layers.2.weight"]
    with pytest.raises(PlanError, match=r'no plan fits.* bound by pin=\{"": Replicate\(\)\}\. Use more'):
        plan_axes(axes, machines(need * 0.5), pin={"": Replicate()}, optimiser=100)


def test_plans_say_what_they_were_bound_to():
    plan = plan_axes(
        tagger(),
        cluster(3e9, 1e9),
        pin={"layers": [Replicate(), Shard(-1)], "": Replicate()},
        forbid={"args.0": Shard(0)},
        forbidden_axes=["batch"],
    )
    assert plan.pin == {"layers": ("Replicate()", "Shard(-1)"), "": ("Replicate()",)}
    assert plan.forbid == {"args.0": ("Shard(0)",)}
    assert plan.forbidden_axes == ("batch",)
    lines = str(plan).splitlines()
    assert "# forbidden axes: batch" in lines
    assert "# pinned layers: Replicate() or Shard(-1)" in lines
    assert "# pinned the whole model: Replicate()" in lines
    assert "# forbidden args.0: Shard(0)" in lines
    again = hap.Plan.from_json(plan.to_json())
    assert (again.pin, again.forbid, again.forbidden_axes) == (plan.pin, plan.forbid, plan.forbidden_axes)
    assert "pin" not in msgspec.json.decode(plan_axes(tagger(), cluster(1e9)).to_json())
    with pytest.raises(PlanError, match=r'pin.layers: "S0" is not a placement of a stored tensor: expected "Replicate'):
        hap.Plan.from_json(plan.to_json().replace("Shard(-1)", "S0"))
    with pytest.raises(PlanError, match='forbidden_axes: "depth" is not an axis'):
        hap.Plan.from_json(plan.to_json().replace('"forbidden_axes":["batch"]', '"forbidden_axes":["depth"]'))


def test_plan_takes_them():
    args, kwargs = batch()
    options = {"devices": cluster(3e9, 1e9), "example_inputs": args, "example_kwargs": kwargs}
    plan = hap.plan(Tagger(), **options, pin={"layers.0": Shard(0)}, forbid={"outputs.logits": [Replicate(), Shard(0)]})
    found = kept(tagger(), plan.program)
    assert found["layers.0.weight"] == found["layers.0.bias"] == 0
    assert found["outputs.logits"] not in (None, 0)
    with pytest.raises(HapError, match="near are"):
        hap.plan(Tagger(), **options, pin={"layers.1": Shard(0)})

"""Placements that cannot be: what is refused, and which constraints are named where several conflict."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard

from hap.errors import PlanError
from hap.planning import plan_axes
from hap.planning.engine import NoProgramError
from hap.planning.outer import search
from hap.planning.pins import Pin, conflict, read_pins
from hap.planning.progress import Progress
from hap.planning.setup import make_problem
from hap.program import SplitClass
from hap.rules import annotate, divided
from hap.trace import trace
from tests.planning.tagger import kept, tagger
from tests.planning.test_pins import cluster

WRONG = {
    "no such name": (
        {"layer.0.weight": Shard(0)},
        {},
        r'pin=\{"layer.0.weight": Shard\(0\)\}: no parameter, buffer, module, input or output is called '
        r'"layer.0.weight"; near are layers.0.weight, ',
    ),
    "no such pattern": ({}, {"blocks.*": Replicate()}, r'forbid=\{"blocks.\*": Replicate\(\)\}: no parameter'),
    "no such dimension": (
        {"layers.0.bias": Shard(1)},
        {},
        r'pin=\{"layers.0.bias": Shard\(1\)\}: the parameter "layers.0.bias" of shape \[16\] cannot be Shard\(1\), '
        r"as it has no dimension 1; there is Replicate\(\) or Shard\(0\)",
    ),
    "no such negative dimension": ({"layers.0.bias": Shard(-2)}, {}, r"it has no dimension -2"),
    "no such dimension to forbid": ({}, {"layers.0.bias": Shard(1)}, r"forbid=.* it has no dimension 1"),
    "one of several": ({"layers.0.bias": [Shard(0), Shard(1)]}, {}, r"it has no dimension 1"),
    "a module's tensor": (
        {"layers.0": Shard(1)},
        {},
        r'pin=\{"layers.0": Shard\(1\)\}: the parameter "layers.0.bias" .* it has no dimension 1; .*; list further',
    ),
    "a scalar": ({"norm.num_batches_tracked": Shard(0)}, {}, r'the buffer "norm.num_batches_tracked" of shape \[\]'),
    "the loss": (
        {"outputs.loss": Shard(0)},
        {},
        r'the output "outputs.loss" .* cannot be Shard\(0\), as gradients start from it',
    ),
    "pins that exclude each other": (
        {"layers": Shard(0), "layers.0.weight": Shard(1)},
        {},
        r'pin=\{"layers": Shard\(0\)\} and pin=\{"layers.0.weight": Shard\(1\)\} together leave the parameter '
        r'"layers.0.weight" of shape \[16, 8\] no placement; there is Replicate\(\) or Shard\(0\) or Shard\(1\)',
    ),
    "a pin and a prohibition": (
        {"embed.weight": [Shard(0), Replicate()]},
        {"head": Shard(0), "": Replicate()},
        r'pin=\{"embed.weight": \[Shard\(0\), Replicate\(\)\]\}, forbid=\{"head": Shard\(0\)\} and '
        r'forbid=\{"": Replicate\(\)\} together leave the parameter "embed.weight"',
    ),
    "everything forbidden": ({}, {"norm.bias": [Replicate(), Shard(0)]}, r'forbid=.* leaves the parameter "norm.bias"'),
    "a sum": ({"embed.weight": Partial()}, {}, r'pin=\{"embed.weight": Partial.*never kept as parts of a sum'),
    "no placement": ({"embed.weight": "S0"}, {}, r"expected Replicate\(\) or Shard\(dim\).* got str"),
    "an empty list": ({"embed.weight": []}, {}, r'pin=\{"embed.weight": \[\]\}: expected at least one placement'),
    "no name": ({0: Replicate()}, {}, r"expected names of tensors or modules as keys, got 0"),
    "no mapping": ([Replicate()], {}, r"pin: expected a mapping from names to placements, got list"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_an_error_that_says_what_can(case):
    pin, forbid, message = WRONG[case]
    with pytest.raises(PlanError, match=message):
        plan_axes(tagger(), cluster(3e9, 1e9), pin=pin, forbid=forbid)


def test_a_pin_along_a_forbidden_axis_is_an_error():
    message = (
        r'the input "args.0" .* cannot be Shard\(0\), as forbidden_axes forbids "batch", along which .*; there is '
    )
    with pytest.raises(PlanError, match=message + r"Replicate\(\) or Shard\(1\)$"):
        plan_axes(tagger(), cluster(3e9, 1e9), pin={"args.0": Shard(0)}, forbidden_axes=["batch"])
    # Its split classes are forbidden with it.
    axes = divided(tagger(), {"batch@2": SplitClass("batch", "compute")})
    with pytest.raises(PlanError, match=message + r"Replicate\(\) or Shard\(1\)$"):
        plan_axes(axes, cluster(3e9, 1e9), pin={"args.0": Shard(0)}, forbidden_axes=["batch"])
    plan = plan_axes(axes, cluster(3e9, 1e9), forbid={"args.0": Shard(0)}, forbidden_axes=["batch"])
    assert kept(axes, plan.program)["args.0"] != 0


def test_a_dimension_of_no_axis_is_an_error():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Parameter(torch.ones(1, 6))

        def forward(self, x):
            return (x * self.gate).square().mean()

    axes = annotate(trace(Gate(), (torch.ones(4, 6),)))
    message = (
        r"cannot be Shard\(0\), as its dimension 0, of size 1, holds no axis; there is Replicate\(\) or Shard\(1\)$"
    )
    with pytest.raises(PlanError, match=message):
        plan_axes(axes, cluster(3e9, 1e9), pin={"gate": Shard(0)})


def test_a_name_of_two_kinds_is_an_error():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.outputs = nn.Linear(4, 4)

        def forward(self, x):
            return self.outputs(x), self.outputs(x).square().mean()

    axes = annotate(trace(Named(), (torch.ones(6, 4),)))
    with pytest.raises(PlanError, match=r"both a part of the model and .*: name outputs.weight, outputs.bias and outp"):
        plan_axes(axes, cluster(3e9, 1e9), pin={"outputs": Replicate()})
    plan = plan_axes(axes, cluster(3e9, 1e9), pin={"outputs.weight": Shard(1)})
    assert kept(axes, plan.program)["outputs.weight"] == 1


class Refusing:
    """A core that finds no program for some pairs of constraints."""

    def __init__(self, core, *tensors):
        self.core, self.tensors = core, tensors

    def synthesise(self, machines, request, progress, warm, options):
        given = msgspec.json.decode(request)["constraints"].get("placements", {})
        if all(tensor in given for tensor in self.tensors):
            raise ValueError("nothing fits")
        return self.core.synthesise(machines, request, options=options)

    def __getattr__(self, name):
        return getattr(self.core, name)


def test_constraints_that_conflict_jointly_are_named():
    axes = tagger()
    pins = read_pins({"norm": Replicate(), "layers.0.bias": Shard(0)}, {"layers.2.bias": Replicate()})
    problem = make_problem(axes, cluster(3e9, 1e9), pins=pins)
    tensors = {entry.name: axes.graph.tensors[entry.tensor].name for entry in axes.graph.inputs}
    core = problem.engine.graph
    problem.engine.graph = Refusing(core, tensors["layers.0.bias"], tensors["layers.2.bias"])
    with pytest.raises(PlanError) as caught, Progress() as progress:
        search(problem, progress)
    assert str(caught.value) == (
        'no program: nothing fits. These conflict: pin={"layers.0.bias": Shard(0)}, '
        'forbid={"layers.2.bias": Replicate()}. Leave one of them out'
    )
    # Where there is no program without them either, they are not to blame.
    problem = make_problem(axes, cluster(3e9, 1e9), pins=pins)
    problem.engine.graph = Refusing(core)
    with pytest.raises(NoProgramError, match=r"^no program: nothing fits$"), Progress() as progress:
        search(problem, progress)


@given(st.sets(st.integers(0, 7), min_size=1), st.sets(st.integers(0, 7), min_size=1))
def test_the_smallest_conflicts_are_found_by_deletion(one, other):
    pins = [Pin("pin", str(number), ("Replicate()",)) for number in range(8)]

    def possible(given):
        numbers = {int(pin.name) for pin in given}
        return not (one <= numbers or other <= numbers)

    found = {int(pin.name) for pin in conflict(pins, possible)}
    assert found in (one, other)
    assert found == one or not one < other
    assert conflict(pins, lambda _: False) == []

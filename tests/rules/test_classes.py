"""Further split classes of axes in annotated graphs."""

import json

import pytest

from hap._core import Graph
from hap.errors import PlanError
from hap.program import SplitClass
from hap.rules import annotate, divided
from hap.rules.classes import class_name
from hap.trace import trace
from tests import models


@pytest.fixture(scope="module")
def axes():
    return annotate(trace(*models.mlp()))


@pytest.mark.parametrize("role", ["compute", "storage"])
def test_a_class_stands_where_its_axis_does(axes, role):
    inner = next(axis.name for axis in axes.axes if axis.name != "batch")
    name = class_name(inner, role)
    both = divided(axes, {name: SplitClass(inner, role)})
    Graph(both.to_json())
    new, old = both.axes[-1], next(i for i, axis in enumerate(axes.axes) if axis.name == inner)
    assert (new.name, new.of, new.size) == (name, old, axes.axes[old].size)
    held = [False] * len(axes.occurrences)
    for tensor, own in enumerate(both.occurrences):
        base = [each for each in own if each.axis == old]
        also = [each for each in own if each.axis == len(both.axes) - 1]
        held[tensor] = bool(also)
        assert not also or [each.place for each in also] == [each.place for each in base]
        assert own[: len(axes.occurrences[tensor])] == axes.occurrences[tensor]
    stands = [any(each.axis == old for each in own) for own in axes.occurrences]
    rest = [entry.tensor for entry in axes.graph.inputs if entry.kind == "parameter"]
    rest += [entry.tensor for entry in axes.graph.outputs if entry.kind == "gradient"]
    assert all(held[tensor] == stands[tensor] for tensor in rest)
    assert (held == stands) == (role == "compute")
    computing = [
        index for index, choices in enumerate(both.choices) if any(each.axis == len(both.axes) - 1 for each in choices)
    ]
    along = [index for index, choices in enumerate(axes.choices) if any(each.axis == old for each in choices)]
    assert computing == along if role == "compute" else all(axes.layout[index] for index in computing)


def test_the_fingerprint_is_that_of_the_graph_and_classes_add_up(axes):
    first, second = SplitClass("batch", "compute"), SplitClass("batch", "storage")
    one = divided(divided(axes, {"one": first}), {"two": second})
    two = divided(axes, {"one": first, "two": second})
    assert one.to_json() == two.to_json() != axes.to_json()
    assert one.fingerprint == axes.fingerprint
    assert [axis["of"] for axis in json.loads(one.to_json())["axes"][-2:]] == [0, 0]
    assert divided(one, {"one": first}).to_json() == one.to_json()


@pytest.mark.parametrize(("name", "of"), [("batch@2", "samples"), ("batch", "batch")])
def test_wrong_classes_are_named(axes, name, of):
    with pytest.raises(PlanError, match=f'"{name}": expected a new name .* got one of "{of}"'):
        divided(axes, {name: SplitClass(of, "compute")})

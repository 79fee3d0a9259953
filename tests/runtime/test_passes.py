"""Passes over lowered graphs: each fires where it should, changes no value, and writes to no memory read by others."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import fx, nn

import hap
from hap.runtime import lower
from hap.runtime.passes import PASSES, cross_entropy, in_place, rows, views
from hap.runtime.passes.aliases import Aliases, owned
from hap.runtime.passes.values import note

aten = torch.ops.aten
DEVICE = hap.Cluster([hap.Device(flops=1e11, memory_bandwidth=1e10, memory=1e12)])


class Writer:
    """Writes a graph whose values are noted, and computes it step by step."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self.graph = fx.Graph()
        self.values: dict[fx.Node, torch.Tensor] = {}
        for value in inputs:
            self.add(self.graph.placeholder(f"input_{len(self.values)}"), value)

    def add(self, node: fx.Node, value: torch.Tensor) -> fx.Node:
        note(node, value.shape, value.dtype)
        self.values[node] = value
        return node

    def call(self, target: Any, *args: Any) -> fx.Node:
        value = target(*fx.node.map_arg(args, self.values.__getitem__))
        return self.add(self.graph.call_function(target, args), value)

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        return fx.GraphModule(nn.Module(), self.graph)(*inputs)


INPUTS = (torch.arange(6.0).view(2, 3) + 1, torch.arange(6.0).view(3, 2) - 2)
UNARY = (aten.relu.default, aten.neg.default, aten.tanh.default)
BINARY = (aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor, aten.tanh_backward.default)


def random_graph(generator: random.Random) -> Writer:
    """Elementwise operators, views of all kinds, and writes of rows, on whatever was made before."""
    writer = Writer(INPUTS)
    for _ in range(generator.randint(3, 14)):
        numbers = [node for node, value in writer.values.items() if value.is_floating_point()]
        one = generator.choice(numbers)
        value = writer.values[one]
        other = generator.choice([node for node in numbers if writer.values[node].shape == value.shape])
        match generator.randint(0, 6):
            case 0:
                writer.call(generator.choice(UNARY), one)
            case 1 | 2:
                writer.call(generator.choice(BINARY), one, other)
            case 3:
                writer.call(aten.permute.default, one, list(reversed(range(value.dim()))))
            case 4:
                shape = generator.choice([[value.numel()], list(value.shape), list(reversed(value.shape))])
                kinds = [aten.reshape.default, *([aten._unsafe_view.default] if value.is_contiguous() else [])]
                writer.call(generator.choice(kinds), one, shape)
            case 5:
                row = writer.call(aten.select.int, one, 0, 0) if value.dim() > 1 else one
                writer.call(aten.expand.default, row, [2, *writer.values[row].shape])
            case 6:
                rows = writer.call(aten.arange.default, value.shape[0])
                zeros = writer.call(aten.full.default, list(value.shape), 0.0)
                writer.call(aten.index_add.default, zeros, 0, rows, other)
    writer.graph.output(generator.sample(list(writer.values), k=generator.randint(1, 3)))
    writer.graph.eliminate_dead_code()
    return writer


@given(seed=st.integers(0, 2**32))
def test_random_graphs_keep_their_values(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(20):
        writer = random_graph(generator)
        inputs = [value.clone() for value in INPUTS]
        results = writer.run(inputs)
        # Copies in the same order in memory, gaps and all.
        expected = [value.as_strided(value.shape, value.stride()) for value in copy.deepcopy(results)]
        for one in PASSES:
            one(writer.graph, lambda graph=writer.graph: Aliases(graph))
        for found, wanted in zip(writer.run(inputs), expected, strict=True):
            assert torch.equal(found, wanted), writer.graph
            assert found.stride() == wanted.stride(), writer.graph
        assert all(torch.equal(now, before) for now, before in zip(inputs, INPUTS, strict=True))


def written(graph: fx.Graph) -> list[str]:
    """Names of the nodes that write to the memory of another."""
    return [
        node.name for node in graph.nodes if getattr(node.target, "_schema", None) and node.target._schema.is_mutable
    ]


def test_memory_is_written_to_only_where_nobody_reads_it_any_more() -> None:
    writer = Writer(INPUTS[:1])
    (x,) = writer.values
    from_outside = writer.call(aten.neg.default, x)
    read_later = writer.call(aten.tanh.default, from_outside)
    view = writer.call(aten.reshape.default, read_later, [3, 2])
    through_view = writer.call(aten.relu.default, read_later)
    repeated = writer.call(aten.expand.default, writer.call(aten.reshape.default, through_view, [1, 2, 3]), [2, 2, 3])
    shown_twice = writer.call(aten.neg.default, repeated)
    dead = writer.call(aten.mul.Tensor, shown_twice, 2.0)
    bare = writer.call(aten.tanh.default, view)
    unknown = writer.add(writer.graph.call_function(torch.neg, (bare,)), writer.values[bare])
    given_away = writer.call(aten.relu.default, bare)
    writer.graph.output([dead, unknown, given_away])
    assert in_place.reuse(writer.graph, lambda: Aliases(writer.graph)) == 3
    assert written(writer.graph) == [read_later.name, dead.name, bare.name]


def test_what_is_saved_belongs_to_the_backward_unless_others_have_it() -> None:
    writer = Writer(INPUTS[:1])
    (x,) = writer.values
    output = writer.call(aten.neg.default, x)
    alone, both, repeated = (writer.call(aten.neg.default, output) for _ in range(3))
    views = [writer.call(aten.reshape.default, of, [6]) for of in (x, output, both)]
    expanded = writer.call(aten.expand.default, repeated, [2, 2, 3])
    writer.graph.output([output, views[0], views[1], alone, both, views[2], repeated, expanded])
    assert owned(writer.graph, 7) == [{2}, {3, 4}]


def test_saved_views_of_one_memory_are_all_read_before_it_is_written_to() -> None:
    writer = Writer((INPUTS[0], INPUTS[0].view(6)))
    first, second = writer.values
    early = writer.call(aten.neg.default, first)
    late = writer.call(aten.neg.default, second)
    writer.graph.output([early, late])
    assert in_place.reuse(writer.graph, lambda: Aliases(writer.graph, [{0, 1}])) == 1
    assert written(writer.graph) == [late.name]


def test_reshapes_that_cannot_copy_are_one() -> None:
    writer = Writer(INPUTS)
    product = writer.call(aten.mm.default, *writer.values)
    same = writer.call(aten.reshape.default, writer.call(aten.reshape.default, product, [4]), [2, 2])
    turned = writer.call(aten.permute.default, product, [1, 0])
    other = writer.call(aten.reshape.default, writer.call(aten.reshape.default, turned, [4]), [2, 2])
    results = [writer.call(aten.neg.default, one) for one in (same, other)]
    writer.graph.output(results)
    assert views.drop(writer.graph, lambda: Aliases(writer.graph)) == 2
    assert [one.args for one in results] == [(product,), (other,)]


@pytest.mark.parametrize(("shape", "dim"), [((5, 7), 1), ((2, 7, 3), 1)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradient_of_cross_entropy_is_that_of_torch(shape: tuple[int, ...], dim: int, reduction: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    one_each = shape[:dim] + shape[dim + 1 :]
    labels = torch.randint(7, one_each)
    labels.view(-1)[1] = -100
    weight = torch.tensor(0.5 if reduction == "sum" else 0.5 / (labels != -100).sum().item(), dtype=torch.float64)
    (0.5 * F.cross_entropy(logits, labels, reduction=reduction)).backward()
    logs = logits.detach().log_softmax(dim)
    there = (labels != -100).unsqueeze(dim)
    weights = torch.where(there, weight, 0.0)
    labels = torch.where(there, labels.unsqueeze(dim), 0)
    for reuse in (False, True):
        found = cross_entropy.gradient(logs, dim, labels, -1.0, weights, reuse=reuse)
        torch.testing.assert_close(found, logits.grad)
        assert (found.data_ptr() == logs.data_ptr()) == reuse


@pytest.mark.parametrize("padding", [-1, 2])
def test_rows_are_added_as_an_embedding_adds_them(padding: int) -> None:
    torch.manual_seed(0)
    table, gradient, at = torch.randn(5, 3), torch.randn(2, 4, 3), torch.randint(5, (2, 4))
    expected = table + aten.embedding_dense_backward(gradient, at, 5, padding, False)
    torch.testing.assert_close(rows.add_rows_(table, gradient, at, padding), expected)


class Language(nn.Module):
    """A language model of one layer, its head tied to its embedding; the logits stay inside."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8, padding_idx=3)
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(x)
        hidden = hidden + F.gelu(self.layer(hidden))
        return F.cross_entropy((hidden @ self.embedding.weight.t()).flatten(0, 1), x.flatten())


def test_passes_fire_on_a_model_and_its_training_stays_that_of_one_device() -> None:
    torch.manual_seed(0)
    module = Language().double()
    plain = copy.deepcopy(module)
    x = torch.randint(11, (2, 5))
    counts = {one.__module__.rpartition(".")[2]: 0 for one in PASSES}

    def counting(one: Any) -> Any:
        def run(*given: Any) -> None:
            counts[one.__module__.rpartition(".")[2]] += one(*given)

        return run

    with mock.patch.object(lower, "PASSES", [counting(one) for one in PASSES]):
        model = hap.parallelize(module, DEVICE, (x,))
    assert counts["cross_entropy"] == counts["rows"] == 1, counts
    assert min(counts["views"], counts["in_place"]) > 0, counts
    for _ in range(2):  # the second accumulates
        losses = [one(x) for one in (plain, model)]
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(*losses)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)

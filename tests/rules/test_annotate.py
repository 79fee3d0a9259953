"""The annotated graph: names, warnings, costs, local code and what is written for the core."""

from __future__ import annotations

import json
import logging
import math
import random
from dataclasses import replace

import pytest
import torch

from hap import _core
from hap.graph import Graph, Input, Operator, Output, Ref, Tensor
from hap.placement import PARTIAL, REPLICATE, shard
from hap.rules import AxisGraph, LocalCall, Value, annotate, pieces
from hap.rules.local import run
from hap.trace import trace
from tests.rules.sketch import Sketch

aten = torch.ops.aten


def layer(dtype: torch.dtype = torch.float32) -> Graph:
    """``loss = sum(relu(x @ w))`` and the gradient of ``w``: x is [3, 4], w is [4, 5]."""
    graph = Graph()

    def tensor(name: str, *shape: int) -> Ref:
        graph.tensors.append(Tensor(name, shape, dtype))
        return Ref(len(graph.tensors) - 1)

    def call(name: str, target: torch._ops.OpOverload, args: tuple[object, ...], *shape: int) -> Ref:
        result = tensor(name, *shape)
        graph.operators.append(Operator(name, target, args, {}, (result.tensor,), source=f"model.py:7: {name}"))
        return result

    x, w, one = tensor("x", 3, 4), tensor("w", 4, 5), tensor("one")
    graph.inputs = [Input("parameter", "fc.weight", w.tensor), Input("input", "args.0", x.tensor)]
    graph.inputs += [Input("tangent", "loss", one.tensor)]
    h = call("mm", aten.mm.default, (x, w), 3, 5)
    y = call("relu", aten.relu.default, (h,), 3, 5)
    loss = call("sum", aten.sum.default, (y,))
    spread = call("expand", aten.expand.default, (one, [3, 5]), 3, 5)
    grad_h = call("threshold_backward", aten.threshold_backward.default, (spread, y, 0), 3, 5)
    x_t = call("permute", aten.permute.default, (x, [1, 0]), 4, 3)
    grad_w = call("mm_1", aten.mm.default, (x_t, grad_h), 4, 5)
    graph.outputs = [Output("loss", "", loss.tensor), Output("gradient", "fc.weight", grad_w.tensor, w.tensor)]
    return graph


def index(axes: AxisGraph, name: str) -> int:
    return next(i for i, operator in enumerate(axes.graph.operators) if operator.name == name)


def test_axes_are_named_after_the_first_tensor_that_holds_them() -> None:
    axes = annotate(layer())
    assert [(axis.name, axis.size) for axis in axes.axes] == [("batch", 3), ("fc.weight.0", 4), ("fc.weight.1", 5)]
    assert [o.axis for o in axes.occurrences[1]] == [1, 2]


def test_products_are_numbered_and_names_are_unique() -> None:
    sketch = Sketch(random.Random(0))
    x = sketch.product((2, 3), (4,))
    sketch.graph.inputs[0] = Input("parameter", "a", 0)
    sketch.graph.inputs.append(Input("parameter", "a.0", sketch.hold(torch.zeros(5), "other").tensor))
    sketch.graph.inputs.append(Input("parameter", "a.0", sketch.hold(torch.zeros(5), "another").tensor))
    sketch.call(aten.neg.default, x)
    names = [axis.name for axis in annotate(sketch.graph).axes]
    assert names == ["a.0", "a.1", "a.2", "a.0.0", "a.0.0#2"]


def test_the_first_input_names_the_batch() -> None:
    graph = layer()
    graph.inputs[1] = Input("buffer", "x", 0)
    assert [axis.name for axis in annotate(graph).axes] == ["fc.weight.0", "fc.weight.1", "x.0"]


def test_operators_without_a_rule_are_replicated_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    graph = Graph([Tensor("a", (3, 3), torch.float64), Tensor("b", (), torch.uint64)])
    graph.inputs = [Input("input", "args.0", 0)]
    hashed = aten.hash_tensor.default
    graph.operators = [Operator("hashed", hashed, (Ref(0),), {}, (1,), source="model.py:3: y = hash_tensor(x)")]
    with caplog.at_level(logging.WARNING, logger="hap"):
        axes = annotate(graph)
    assert axes.replicated == (0,)
    assert [(r.levelname, r.name) for r in caplog.records] == [("WARNING", "hap")]
    for part in ["hashed", "aten.hash_tensor.default", "no rule", "model.py:3: y = hash_tensor(x)"]:
        assert part in caplog.text
    (choice,) = axes.choices[0]
    assert (choice.inputs, choice.outputs) == ((REPLICATE,), (REPLICATE,))
    code = axes.local_code(0, choice, {axis.name: [1, 2] for axis in axes.axes}, 0)
    value = torch.eye(3, dtype=torch.float64)
    assert torch.equal(run([code], [[value]])[0][0], hashed(value))


def test_arguments_that_a_rule_does_not_cover(caplog: pytest.LogCaptureFixture) -> None:
    """A failed guard means fallback, never a wrong rule."""
    s = Sketch(random.Random(0))
    s.call(aten.index.Tensor, s.tensor(3), [s.tensor(3, dtype=torch.bool)])
    with caplog.at_level(logging.WARNING, logger="hap"):
        axes = annotate(s.graph)
    assert axes.replicated == (0,)
    assert "arguments that its rule does not cover" in caplog.text


def test_what_the_core_reads() -> None:
    axes = annotate(layer())
    data = axes.to_json()
    assert data == annotate(layer()).to_json()
    _core.Graph(data)
    written = json.loads(data)
    assert written["format"] == "hap-graph-1"
    product = written["operators"][0]
    assert product == {
        "name": "mm", "target": "aten.mm.default", "operands": [0, 1], "results": [3], "flops": 2.0 * 3 * 4 * 5,
        "operand_bytes": [48.0, 80.0], "result_bytes": [60.0], "dtype": "float32", "family": "matmul", "layout": False,
        "choices": [
            {"inputs": [["R"], ["R"]], "outputs": [["R"]], "axis": None},
            {"inputs": [["P"], ["R"]], "outputs": [["P"]], "axis": None},
            {"inputs": [["R"], ["P"]], "outputs": [["P"]], "axis": None},
            {"inputs": [["S0"], ["R"]], "outputs": [["S0"]], "axis": 0},
            {"inputs": [["S1"], ["S0"]], "outputs": [["P"]], "axis": 1},
            {"inputs": [["R"], ["S1"]], "outputs": [["S1"]], "axis": 2},
        ],
    }  # fmt: skip
    assert written["outputs"][1] == {"kind": "gradient", "name": "fc.weight", "tensor": 9, "of": 1}


class Fused(torch.nn.Module):
    """Queries of four heads beside keys and values of two, from one product."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(16, 32, bias=False), torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, features = x.shape
        parts = zip(self.qkv(x).split([16, 8, 8], -1), (2, 1, 1), strict=True)
        heads = [part.view(batch, length, 2, count, 4).expand(batch, length, 2, 2, 4) for part, count in parts]
        query, key, value = (each.reshape(batch, length, 4, 4).transpose(1, 2) for each in heads)
        made = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return self.out(made.transpose(1, 2).reshape(batch, length, features)).square().mean()


def test_the_core_is_told_whose_shares_lie_scattered() -> None:
    """Against where the elements of two shares of the outermost axis are."""
    axes = annotate(trace(Fused(), (torch.randn(2, 3, 16),)))
    scattered = {each["name"] for each in json.loads(axes.to_json())["tensors"] if each.get("scattered")}
    assert "qkv.weight" in scattered
    for tensor, own in zip(axes.graph.tensors, axes.occurrences, strict=True):
        if own:
            size, places = axes.axes[own[0].axis].size, torch.arange(math.prod(tensor.shape))
            shares = pieces.split(places.view(tensor.shape), own[0], (1, size - 1))
            together = torch.cat([share.flatten() for share in shares])
            assert torch.equal(together, places) == (tensor.name not in scattered), tensor.name


def test_gradients_that_nobody_computes_are_left_out() -> None:
    graph = layer()
    graph.outputs.append(Output("gradient", "unused", None, 1))
    axes = annotate(graph)
    assert len(json.loads(axes.to_json())["outputs"]) == 2
    _core.Graph(axes.to_json())


def test_the_fingerprint_tells_arguments_and_constants_apart() -> None:
    graph = layer()
    same = annotate(graph).fingerprint
    assert same == annotate(layer()).fingerprint
    assert len(same) == 64
    other = layer()
    other.operators[4] = replace(other.operators[4], args=(*other.operators[4].args[:2], 1))
    assert annotate(other).fingerprint != same
    fingerprints = set()
    for value in [1.0, 2.0]:
        constant = layer()
        constant.inputs[2] = Input("constant", "one", 2)
        constant.constants[2] = torch.tensor(value)
        fingerprints.add(annotate(constant).fingerprint)
    assert len(fingerprints) == 2


def test_costs() -> None:
    axes = annotate(layer(torch.bfloat16))
    operators = {operator["name"]: operator for operator in json.loads(axes.to_json())["operators"]}
    assert axes.layout == (False, False, False, True, False, True, False)
    assert operators["permute"]["flops"] == 0
    assert operators["permute"]["operand_bytes"] == operators["permute"]["result_bytes"] == [0.0]
    assert operators["expand"]["flops"] == 0
    assert operators["expand"]["result_bytes"] == [0.0]
    assert operators["relu"]["flops"] == 15
    assert operators["relu"]["result_bytes"] == [30.0]
    assert operators["mm"]["dtype"] == "bfloat16"


def test_results_that_nobody_reads_cost_nothing() -> None:
    def flops(dead: tuple[int, ...]) -> float:
        s = Sketch(random.Random(0))
        x, weight, grad = s.tensor(2, 3, 4, 4), s.tensor(5, 3, 2, 2), s.tensor(2, 5, 3, 3)
        rest = ([5], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True])
        s.call(aten.convolution_backward.default, grad, x, weight, *rest, dead=dead)
        return annotate(s.graph).flops[0]

    assert flops((1,)) > 0
    assert flops((0,)) + flops((1,)) == flops(())


def test_a_lookup_touches_what_it_looks_up() -> None:
    s = Sketch(random.Random(0))
    s.call(aten.embedding.default, s.tensor(100, 4), s.integers(100, 3))
    (operator,) = json.loads(annotate(s.graph).to_json())["operators"]
    assert operator["operand_bytes"] == [3 * 4 * 8.0, 3 * 8.0]


def test_local_shapes() -> None:
    axes = annotate(layer())
    splits = {"batch": [3, 0], "fc.weight.0": [1, 3], "fc.weight.1": [2, 3]}
    assert [axes.local_shape(0, shard(0), splits, rank) for rank in range(2)] == [(3, 4), (0, 4)]
    assert [axes.local_shape(1, shard(1), splits, rank) for rank in range(2)] == [(4, 2), (4, 3)]
    assert axes.local_shape(1, PARTIAL, splits, 0) == axes.local_shape(1, REPLICATE, splits, 0) == (4, 5)


def test_a_rank_without_a_share_does_not_call_the_kernel() -> None:
    axes = annotate(layer())
    splits = {"batch": [3, 0], "fc.weight.0": [4, 0], "fc.weight.1": [5, 0]}
    for choice in (c for c in axes.choices[index(axes, "mm")] if c.axis is not None):
        code = axes.local_code(index(axes, "mm"), choice, splits, 1)
        (call,) = code.calls
        assert call.target is aten.new_zeros.default
        assert code.results == (Value(2),)
        (code,) = axes.local_code(index(axes, "mm"), choice, splits, 0).calls
        assert code == LocalCall(aten.mm.default, (Value(0), Value(1)), {}, (Value(2),), False)


def test_size_arguments_become_local() -> None:
    axes = annotate(layer())
    splits = {"batch": [1, 2], "fc.weight.0": [4, 0], "fc.weight.1": [5, 0]}
    expand = index(axes, "expand")
    (choice,) = [c for c in axes.choices[expand] if c.axis == 0]
    (call,) = axes.local_code(expand, choice, splits, 1).calls
    assert call.args == (Value(0), [2, 5])


def test_a_fingerprint_is_the_same_on_every_device() -> None:
    def placed(device: str) -> Graph:
        graph = layer()
        like = graph.tensors[0]
        graph.tensors.append(Tensor("noise", like.shape, like.dtype))
        arguments = ([*like.shape], 1.0)
        made = (len(graph.tensors) - 1,)
        graph.operators.append(
            Operator("full", aten.full.default, arguments, {"device": torch.device(device)}, made, source="model.py:9")
        )
        return graph

    assert annotate(placed("cpu")).fingerprint == annotate(placed("cuda:1")).fingerprint
    assert annotate(placed("cpu")).fingerprint != annotate(layer()).fingerprint


class SeenTwoWays(torch.nn.Module):
    """A parameter of 12 that is read as [3, 4] and as [2, 6]: neither factoring fits the other."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.arange(12.0, dtype=torch.float64))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (self.w.view(3, 4) * a).square().sum() + (self.w.view(2, 6) * b).square().sum()


def test_a_gradient_keeps_the_axes_of_a_parameter_that_is_seen_in_two_ways() -> None:
    graph = trace(SeenTwoWays(), (torch.ones(3, 4, dtype=torch.float64), torch.ones(2, 6, dtype=torch.float64)))
    axes = annotate(graph)
    assert axes.cuts
    output = next(o for o in graph.outputs if o.kind == "gradient")
    assert output.tensor is not None
    assert output.of is not None
    assert axes.occurrences[output.tensor] == axes.occurrences[output.of]
    _core.Graph(axes.to_json())

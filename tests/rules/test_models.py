"""Axes and choices of whole models, forward and backward, in training mode."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch

import hap
from hap.graph import Graph
from hap.interpret import bind
from hap.rules import AxisGraph, annotate
from hap.rules.costs import formula
from hap.rules.proof import mismatch, whole_results
from tests import models

BUILDERS: dict[str, Any] = {
    "gpt2": models.gpt2,
    "bert": models.bert,
    "bert_eager": lambda **options: models.bert(attention="eager", **options),
    "llama": models.llama,
    "mlp": models.mlp,
    "vgg19": models.vgg19,
    "vgg19_batch_norm": lambda **options: models.vgg19(batch_norm=True, **options),
}
TRACES = [
    ("gpt2", 0.1), ("gpt2", 0.0), ("bert", 0.1), ("bert", 0.0), ("bert_eager", 0.1), ("llama", 0.0), ("llama", 0.1),
    ("mlp", 0.1), ("mlp", 0.0), ("vgg19", 0.1), ("vgg19_batch_norm", 0.0),
]  # fmt: skip
every_model = pytest.mark.parametrize(("name", "dropout"), TRACES)


@cache
def annotated(name: str, dropout: float) -> tuple[AxisGraph, dict[int, torch.Tensor]]:
    """The annotated graph of a small model, and the values of its inputs."""
    torch.set_num_threads(1)
    module, args, kwargs = BUILDERS[name](dropout=dropout)
    graph = hap.trace(module, args, kwargs)
    return annotate(graph), bind(graph, module, args, kwargs, rng=(3, 1))


def parameter(graph: Graph, name: str) -> int:
    return next(value.tensor for value in graph.inputs if value.name == name)


def sizes(axes: AxisGraph, tensor: int) -> list[list[int]]:
    """Sizes of the axes in each dimension."""
    dims: list[list[int]] = [[] for _ in axes.graph.tensors[tensor].shape]
    for occurrence in axes.occurrences[tensor]:
        dims[occurrence.dim].append(axes.axes[occurrence.axis].size)
    return dims


@every_model
def test_nothing_is_replicated_for_want_of_a_rule(name: str, dropout: float) -> None:
    axes, _ = annotated(name, dropout)
    assert [axes.graph.operators[i].name for i in axes.replicated] == []
    assert [axes.graph.operators[i].name for i in axes.cuts] == []


@every_model
@pytest.mark.parametrize("forbidden", ["", "batch"])
def test_all_products_can_be_sharded(name: str, dropout: float, forbidden: str) -> None:
    """Every product, convolution and attention has a choice along some axis, also along another than the batch."""
    axes, _ = annotated(name, dropout)
    whole = [
        operator.name
        for operator, choices in zip(axes.graph.operators, axes.choices, strict=True)
        if formula(operator.target) is not None
        and not any(c.axis is not None and axes.axes[c.axis].name != forbidden for c in choices)
    ]
    assert whole == []
    shared = sum(
        flops
        for flops, choices in zip(axes.flops, axes.choices, strict=True)
        if any(c.axis is not None and axes.axes[c.axis].name != forbidden for c in choices)
    )
    assert shared >= 0.999 * sum(axes.flops)


@every_model
def test_gradients_have_the_axes_of_their_parameters(name: str, dropout: float) -> None:
    axes, _ = annotated(name, dropout)
    linked = [o for o in axes.graph.outputs if o.tensor is not None and o.of is not None]
    assert linked
    for output in linked:
        assert output.tensor is not None
        assert output.of is not None
        assert axes.occurrences[output.tensor] == axes.occurrences[output.of], output.name


@every_model
def test_every_choice_of_every_operator(name: str, dropout: float) -> None:
    """Node by node on the values of a step: a sample of all choices, one of each kind first."""
    axes, values = annotated(name, dropout)
    values = dict(values)
    rng = random.Random(5)
    seen: set[Any] = set()
    wrong, checks = [], 0
    with torch.no_grad():
        for index, operator in enumerate(axes.graph.operators):
            operands = [values[t] for t in operator.operands]
            for choice in axes.choices[index]:
                shapes = tuple(axes.graph.tensors[t].shape for t in operator.operands)
                kind = (operator.target, choice.inputs, choice.outputs, shapes)
                if kind in seen and rng.random() < 0.95:
                    continue
                seen.add(kind)
                checks += 1
                problem = mismatch(axes, index, choice, operands, rng.choice([1, 2, 3, 4]), rng)
                if problem is not None:
                    wrong.append(f"{operator.name} ({operator.target}) {choice}: {problem}")
            results = whole_results(axes.graph, index, operands)
            values.update(zip([t for t in operator.results if t is not None], results, strict=True))
    assert wrong == []
    assert checks > 2 * len({operator.target for operator in axes.graph.operators})


def test_gpt2_shares_heads_through_the_fused_projection() -> None:
    axes, _ = annotated("gpt2", 0.0)
    graph = axes.graph
    assert sizes(axes, parameter(graph, "transformer.h.0.attn.c_attn.weight")) == [[16], [3, 4, 4, 48, 16]]
    assert sizes(axes, parameter(graph, "transformer.h.0.attn.c_proj.weight")) == [[4, 4, 16], [16]]
    assert axes.axes[0].name == "batch"
    named = {axis.name: axis.size for axis in axes.axes}
    assert named["transformer.wte.weight.0"] == 20
    assert named["transformer.wte.weight.1"] == 16
    # batch, sequence, vocabulary, hidden; in each layer 3 x heads x features and the hidden axis of the MLP; labels
    assert len([axis for axis in axes.axes if not axis.parts]) <= 4 + 2 * 5 + 8
    hidden = axes.occurrences[parameter(graph, "transformer.wte.weight")][1].axis
    for name in ["transformer.h.0.ln_1.weight", "transformer.h.1.mlp.c_proj.bias", "transformer.wpe.weight"]:
        assert axes.occurrences[parameter(graph, name)][-1].axis == hidden


def test_llama_shares_keys_and_the_queries_of_each_apart() -> None:
    axes, _ = annotated("llama", 0.0)
    weights = [f"model.layers.0.self_attn.{p}_proj.weight" for p in "qkv"]
    queries, keys, values = (parameter(axes.graph, name) for name in weights)
    # key heads, queries of each, and features in two halves by the rotary embedding; runs of all, and of the heads
    assert sizes(axes, queries) == [[2, 2, 2, 2, 16, 4], [16]]
    assert sizes(axes, keys) == [[2, 2, 2, 8], [16]]
    assert sizes(axes, values) == [[2, 4, 8], [16]]
    assert len({axes.occurrences[tensor][0].axis for tensor in (queries, keys, values)}) == 1


def test_residual_layers_have_one_axis_twice() -> None:
    axes, _ = annotated("mlp", 0.0)
    for layer in range(2):
        rows, columns = axes.occurrences[parameter(axes.graph, f"layers.{layer}.weight")]
        assert rows.axis == columns.axis
        assert (rows.dim, columns.dim) == (0, 1)
    assert [axis.size for axis in axes.axes] == [6, 8]


def test_batch_and_sequence_stay_apart_in_flattened_rows_and_are_a_run() -> None:
    axes, _ = annotated("bert", 0.0)
    flattened = [
        sizes(axes, t)[0]
        for operator in axes.graph.operators
        if str(operator.target) == "aten.mm.default"
        for t in operator.operands[:1]
        if axes.graph.tensors[t].shape[0] == 24
    ]
    assert flattened
    assert all(own in ([4, 6, 24], [24]) for own in flattened)
    assert [4, 6, 24] in flattened

"""A causal transformer with dropout whose program shards the sequence, or the vocabulary, and nothing else."""

from __future__ import annotations

import dataclasses
import functools
import os
import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hap import interpret
from hap.program import Compute, Program
from hap.rules import AxisGraph, annotate
from hap.runtime.emulate import emulate
from hap.trace import trace
from tests.runtime.programs import random_program, random_splits

FEW = settings(max_examples=int(os.environ.get("HAP_TEST_EXAMPLES", "3")))
ATTENTION = ("hap.sdpa.default", "hap.sdpa_backward.default")
WAYS = {
    # how the sequence is shared in attention and in its backward: the composite's name, and the letter
    "queries": ((None, "s"), (None, "s")),
    "keys": (("attention_keys", "t"), (None, "t")),
    "ring": (("attention_ring", "s"), ("attention_ring_backward", "s")),
}


VOCABULARY = {
    "aten.embedding.default", "aten.embedding_dense_backward.default", "aten.mm.default", "aten.gather.default",
    "aten.scatter.value", "aten._log_softmax.default", "aten._log_softmax_backward_data.default",
}  # fmt: skip
"""What must be sharded along the vocabulary: no logits of all words stand anywhere."""


class Layer(nn.Module):
    """Attention with two queries to a key, and a perceptron."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.q, self.kv = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.out, self.first, self.second = (nn.Linear(hidden, hidden) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def heads(y: torch.Tensor, count: int) -> torch.Tensor:
            return y.unflatten(-1, (count, -1)).transpose(1, 2)

        y = self.norms[0](x)
        k, v = (heads(part, self.heads // 2) for part in self.kv(y).chunk(2, -1))
        q, p = heads(self.q(y), self.heads), self.dropout
        y = F.scaled_dot_product_attention(q, k, v, None, 2 * p, True, enable_gqa=True)
        x = x + F.dropout(self.out(y.transpose(1, 2).flatten(2)), p)
        return x + F.dropout(self.second(F.gelu(self.first(self.norms[1](x)))), p)


class Causal(nn.Module):
    """A language model; labels of -100 are ignored."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        vocabulary, hidden, length, self.dropout = 11, 8, 7, dropout
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(length, hidden)
        self.layers = nn.ModuleList(Layer(hidden, 4, dropout) for _ in range(2))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        y = F.dropout(self.tokens(x) + self.positions.weight, self.dropout)
        for layer in self.layers:
            y = layer(y)
        return F.cross_entropy((y @ self.tokens.weight.T).flatten(0, 1), labels.flatten())


def causal(dropout: float = 0.1) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        module = Causal(dropout).double()
        x, labels = torch.randint(0, 11, (2, 3, 7))
    labels[0, 2:] = -100
    return module, (x, labels)


def sequence_of(axes: AxisGraph) -> int:
    """The axis of the sequence."""
    tokens = next(value.tensor for value in axes.graph.inputs if value.kind == "input")
    (sequence,) = (o.axis for o in axes.occurrences[tokens] if o.dim == 1)
    return sequence


@functools.cache
def traced() -> tuple[AxisGraph, dict[int, torch.Tensor], dict[tuple[str, str], torch.Tensor | None]]:
    module, args = causal()
    axes = annotate(trace(module, args))
    values = interpret.bind(axes.graph, module, args, {}, rng=(3, 1))
    return axes, values, interpret.run(axes.graph, values)


def program_along(axes: AxisGraph, only: int, generator: random.Random, way: str | None = None) -> Program:
    """A random program that shards one axis alone, wherever it can; attention in this ``way``, where one is given."""
    choices = []
    for operator, offered in zip(axes.graph.operators, axes.choices, strict=True):
        sharded = [choice for choice in offered if choice.axis == only]
        kept = [offered[0], *(sharded or [choice for choice in offered[1:] if choice.axis is None])]
        if way is not None and str(operator.target) in ATTENTION:
            wanted = WAYS[way][ATTENTION.index(str(operator.target))]
            (chosen,) = (c for c in sharded if c.letter and (c.composite, c.letter[0]) == wanted)
            kept = [kept[0], chosen]
        choices.append(tuple(kept))
    forbidden = tuple(axis.name for number, axis in enumerate(axes.axes) if number != only)
    restricted = dataclasses.replace(axes, choices=tuple(choices))
    return random_program(restricted, generator, forbidden_axes=forbidden, sharded=1.0)


def check(program: Program, generator: random.Random) -> None:
    """The outputs of the program on random splits are those of one device."""
    axes, values, reference = traced()
    ranks = generator.randint(2, 4)
    for output in emulate(axes, program, random_splits(axes, ranks, generator), ranks, values):
        expected = reference[output.kind, output.name]
        assert expected is not None
        for copy in output.copies:
            torch.testing.assert_close(copy, expected, rtol=1e-9, atol=1e-11, msg=f"{output.kind} {output.name}")


@pytest.mark.parametrize("way", WAYS)
@FEW
@given(seed=st.integers(0, 2**32))
def test_a_program_that_shards_the_sequence_equals_one_device(way: str, seed: int) -> None:
    axes, *_ = traced()
    generator, sequence = random.Random(seed), sequence_of(axes)
    program = program_along(axes, sequence, generator, way)
    computed = [i for i in program.instructions if isinstance(i, Compute)]
    assert {i.axis for i in computed} <= {axes.axes[sequence].name, None}
    assert [i.axis for i in computed if i.target in ATTENTION] == [axes.axes[sequence].name] * 4
    check(program, generator)


@FEW
@given(seed=st.integers(0, 2**32))
def test_a_program_that_shards_the_vocabulary_equals_one_device(seed: int) -> None:
    axes, *_ = traced()
    table = next(value.tensor for value in axes.graph.inputs if value.name == "tokens.weight")
    (vocabulary,) = (o.axis for o in axes.occurrences[table] if o.dim == 0)
    generator = random.Random(seed)
    program = program_along(axes, vocabulary, generator)
    sharded = {i.target for i in program.instructions if isinstance(i, Compute) and i.axis is not None}
    assert sharded >= VOCABULARY
    check(program, generator)

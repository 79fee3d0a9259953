"""A causal transformer with dropout whose program shards the sequence and nothing else, against one device."""

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


def sequence_program(axes: AxisGraph, way: str, generator: random.Random) -> Program:
    """A random program that shards the sequence alone; attention in this ``way``."""
    sequence = sequence_of(axes)
    choices = []
    for operator, offered in zip(axes.graph.operators, axes.choices, strict=True):
        kept = [choice for choice in offered if choice.axis in (None, sequence)]
        if str(operator.target) in ATTENTION:
            wanted = WAYS[way][ATTENTION.index(str(operator.target))]
            (chosen,) = (c for c in kept if c.letter and (c.composite, c.letter[0]) == wanted and c.axis == sequence)
            kept = [kept[0], chosen]
        choices.append(tuple(kept))
    only = dataclasses.replace(axes, choices=tuple(choices))
    forbidden = tuple(axis.name for number, axis in enumerate(axes.axes) if number != sequence)
    return random_program(only, generator, forbidden_axes=forbidden, sharded=1.0)


@pytest.mark.parametrize("way", WAYS)
@FEW
@given(seed=st.integers(0, 2**32))
def test_a_program_that_shards_the_sequence_equals_one_device(way: str, seed: int) -> None:
    axes, values, reference = traced()
    generator = random.Random(seed)
    ranks = generator.randint(2, 4)
    splits = random_splits(axes, ranks, generator)
    name = axes.axes[sequence_of(axes)].name
    program = sequence_program(axes, way, generator)
    attention = [i for i in program.instructions if isinstance(i, Compute) and i.target in ATTENTION]
    assert len(attention) == 4
    assert {i.axis for i in attention} == {name}
    assert {i.axis for i in program.instructions if isinstance(i, Compute)} <= {name, None}
    for output in emulate(axes, program, splits, ranks, values):
        expected = reference[output.kind, output.name]
        assert expected is not None
        for copy in output.copies:
            torch.testing.assert_close(copy, expected, rtol=1e-9, atol=1e-11, msg=f"{output.kind} {output.name}")

"""Dimensions that are ordered sums of products: the union-find, and fused attention from one end to the other."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hap.rules import Axis
from hap.rules.axes import Factor, axes, entries, leaves, product, total, unify
from tests.runtime.one_device import Step, step
from tests.runtime.programs import random_program, random_splits
from tests.zoo.plans import RANKS, best_plan, sharded

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def fused(parts: list[list[int]], shared: list[Factor]) -> Factor:
    """A sum whose blocks each hold the shared axes inside of their own."""
    return total([product([*map(Factor, own), *shared]) for own in parts])


@given(parts=st.lists(SIZES, min_size=2, max_size=3), inner=st.lists(st.integers(2, 4), max_size=2))
def test_axes_that_stand_in_each_block(parts: list[list[int]], inner: list[int]) -> None:
    shared = [Factor(size) for size in inner]
    whole = fused(parts, shared)
    assert axes([whole]) == leaves(shared)
    for entry in entries([Factor(2), whole, Factor(3)])[1:-1]:
        assert len(entry.blocks) == 2 * len(parts)
        assert sum(outer * entry.axis.size * within for outer, within in entry.blocks) == 2 * whole.size * 3


@given(parts=st.lists(SIZES, min_size=2, max_size=3), inner=st.integers(2, 4), opaque=st.booleans())
def test_sums_of_equal_blocks_are_one(parts: list[list[int]], inner: int, opaque: bool) -> None:
    left, right = fused(parts, [Factor(inner)]), fused(parts, [Factor(inner)])
    other = Factor(left.size) if opaque else right
    assert unify([left], [other])
    assert leaves([left]) == leaves([other])
    assert axes([left]) == axes([other])
    if not opaque:
        assert axes([left])[-1].size == inner


def test_blocks_fall_into_finer_ones() -> None:
    head = Factor(2)
    queries, keys, values = product([head, Factor(3)]), product([head]), product([head])
    fine, coarse = total([queries, keys, values]), total([Factor(8), Factor(2)])
    assert unify([coarse], [fine])
    assert axes([coarse]) == [head]
    across = total([Factor(7), Factor(3)])
    assert not unify([fine], [across])
    assert axes([fine]) == [head]


@given(size=st.integers(2, 5))
def test_a_sum_is_cut_where_a_product_meets_it(size: int) -> None:
    head = Factor(2)
    whole = total([product([head, Factor(size)]), head])
    assert not unify([whole], [Factor(size + 1), Factor(2)])
    assert axes([whole]) == [head]


class FusedAttention(nn.Module):
    """Phi-3's attention: one projection for queries, keys and values, whose heads share the keys' and values'."""

    def __init__(self, heads: int, groups: int, features: int, bias: bool, split: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.features, self.split = heads, groups, features, split
        self.qkv = nn.Linear(heads * features, (heads + 2 * groups) * features, bias=bias)
        self.out = nn.Linear(heads * features, heads * features)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        lengths = [n * self.features for n in (self.heads, self.groups, self.groups)]
        fused = self.qkv(x)
        if self.split:
            parts = fused.split(lengths, dim=-1)
        else:
            a, b = lengths[0], lengths[0] + lengths[1]
            parts = (fused[..., :a], fused[..., a:b], fused[..., b:])
        q, k, v = (part.view(batch, length, -1, self.features).transpose(1, 2) for part in parts)
        k, v = (part.repeat_interleave(self.heads // self.groups, dim=1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return F.mse_loss(self.out(mixed.transpose(1, 2).reshape(batch, length, -1)), y)


def attention(heads: int, groups: int, bias: bool, split: bool) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = FusedAttention(heads, groups, 3, bias, split).double()
        return module, tuple(torch.randn(2, 5, heads * 3, dtype=torch.float64) for _ in range(2))


def key_heads(whole: Step) -> Axis:
    """The only axis of the fused weight's rows that is as large as there are key heads."""
    graph = whole.axes.graph
    (weight,) = (entry.tensor for entry in graph.inputs if entry.name == "qkv.weight")
    rows = [o for o in whole.axes.occurrences[weight] if o.dim == 0]
    assert [len(o.blocks) for o in rows] == [3] * len(rows)
    assert rows[0].blocks[0][0] == 1, "outermost in the queries"
    return whole.axes.axes[rows[0].axis]


@pytest.mark.parametrize(("heads", "groups"), [(8, 2), (6, 3)])
@pytest.mark.parametrize("split", [True, False])
def test_fused_attention_shards_heads(heads: int, groups: int, split: bool) -> None:
    module, inputs = attention(heads, groups, bias=split, split=split)
    whole = step(module, inputs, {})
    axis = key_heads(whole)
    assert axis.size == groups
    assert whole.axes.cuts == ()
    others = tuple(one.name for one in whole.axes.axes if one.name != axis.name)
    for seed in range(3):
        generator = random.Random(seed)
        program = random_program(whole.axes, generator, forbidden_axes=others)
        whole.check(program, random_splits(whole.axes, 3, generator), 3, 1e-10)
    program, splits = best_plan(whole.axes, others)
    shares = sharded(whole.axes, program, splits)
    assert shares[axis.name] > 0.95
    whole.check(program, splits, RANKS, 1e-10)

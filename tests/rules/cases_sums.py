"""Cases of dimensions that are ordered sums: fused projections of unequal parts, with axes that stand in each part."""

from __future__ import annotations

import torch

from hap.graph import Ref
from tests.rules.sketch import Sketch, case

aten = torch.ops.aten


def _pair(s: Sketch, a: int, queries: Ref, keys: Ref, c: int, r: int, d: int) -> None:
    """Makes one dimension (c r d) and the other (c d)."""
    seen = [s.call(aten.view.default, queries, [a, c, r, d]), s.call(aten.view.default, keys, [a, c, 1, d])]
    s.call(aten.mul.Tensor, *seen)


def _sizes(s: Sketch) -> tuple[int, int, int, int, int, int]:
    """Rows, heads, queries of each and features; lengths of the two parts."""
    a, c, r, d = s.sizes(4)
    return a, c, r, d, c * r * d, c * d


@case("aten.split_with_sizes.default", "S0 -> S0 S0, S1 -> S1 S1, S2 -> S3 S2, P -> P P")
def _(s: Sketch) -> None:
    a, c, r, d, q, k = _sizes(s)
    _pair(s, a, *s.call(aten.split_with_sizes.default, s.tensor(a, q + k), [q, k], 1), c, r, d)


@case("aten.split.Tensor", "S0 -> S0 S0, S1 -> S1 S1, S2 -> S3 S2, P -> P P")
def _(s: Sketch) -> None:
    a, c, r, d, q, k = _sizes(s)
    _pair(s, a, *s.call(aten.split.Tensor, s.tensor(a, q + k), q, 1), c, r, d)


@case("aten.slice.Tensor", "S0 -> S0, S1 -> S1, S2 -> S2, P -> P")
def _(s: Sketch) -> None:
    a, c, r, d, q, k = _sizes(s)
    x = s.tensor(a, q + 2 * k)
    queries, values, keys = (
        s.call(aten.slice.Tensor, x, 1, start, end) for start, end in ((0, q), (q + k, 2**62), (q, q + k))
    )
    _pair(s, a, queries, keys, c, r, d)
    _pair(s, a, queries, values, c, r, d)


@case("aten.slice.Tensor", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    # unequal parts with no axis in common
    a, b = s.sizes(2)
    x = s.tensor(a, 5 * b + 2)
    s.call(aten.slice.Tensor, x, 1, 0, 3 * b + 1)
    s.call(aten.slice.Tensor, x, 1, 3 * b + 1, 5 * b + 2)


@case("aten.cat.default", "S0 S0 S0 -> S0, S1 S1 S1 -> S1, S3 S2 S2 -> S2, P P P -> P")
def _(s: Sketch) -> None:
    a, c, r, d, q, k = _sizes(s)
    queries, keys, values = (s.tensor(a, length) for length in (q, k, k))
    _pair(s, a, queries, keys, c, r, d)
    _pair(s, a, queries, values, c, r, d)
    s.call(aten.cat.default, [queries, keys, values], 1)


@case("aten.constant_pad_nd.default", "S0 -> S0, S1 -> S1, S2 -> S2, P -> P")
def _(s: Sketch) -> None:
    # the gradient of a slice: a sum of padded gradients
    a, c, r, d, q, k = _sizes(s)
    queries, keys, values = (s.tensor(a, length) for length in (q, k, k))
    _pair(s, a, queries, keys, c, r, d)
    _pair(s, a, queries, values, c, r, d)
    bounds = ((queries, [0, 2 * k]), (values, [q + k, 0]), (keys, [q, k]))
    first, second, third = (s.call(aten.constant_pad_nd.default, part, pad) for part, pad in bounds)
    s.call(aten.add.Tensor, s.call(aten.add.Tensor, first, second), third)


@case("aten.slice_scatter.default", "S0 S0 -> S0, S1 S1 -> S1, S2 S2 -> S2, P P -> P")
def _(s: Sketch) -> None:
    a, c, r, d, q, k = _sizes(s)
    x, keys = s.tensor(a, q + k), s.tensor(a, k)
    _pair(s, a, s.call(aten.slice.Tensor, x, 1, 0, q), keys, c, r, d)
    s.call(aten.slice_scatter.default, x, keys, 1, q, q + k)


@case("aten.mm.default", "S0 R -> S0, S1 S0 -> P, R S1 -> S1, R S2 -> S2, P R -> P, R P -> P")
def _(s: Sketch) -> None:
    # the axes go through the product to the weight's columns
    a, c, r, d, q, k = _sizes(s)
    x = s.call(aten.mm.default, s.tensor(a, s.sizes(1)[0] + 1), s.tensor(s.values[-1].shape[1], q + k))
    _pair(s, a, *s.call(aten.split_with_sizes.default, x, [q, k], 1), c, r, d)


@case("aten.view.default", "S0 -> S0, S1 -> S1, S2 -> S2, S3 -> S3, P -> P")
def _(s: Sketch) -> None:
    # rows are flattened beside the sum
    a, c, r, d, q, k = _sizes(s)
    b = s.sizes(1)[0]
    x = s.tensor(a, b, q + k)
    pieces = s.call(aten.split_with_sizes.default, x, [q, k], 2)
    seen = [s.call(aten.permute.default, piece, [2, 0, 1]) for piece in pieces]
    parts = [
        s.call(aten.reshape.default, seen[0], [c, r, d, a, b]),
        s.call(aten.reshape.default, seen[1], [c, 1, d, a, b]),
    ]
    s.call(aten.mul.Tensor, *parts)
    s.call(aten.view.default, x, [a * b, q + k])


@case("hap.dropout.default", "S0 R -> S0, P R -> P")
def _(s: Sketch) -> None:
    # a share of a sum is no box of its positions: the mask is not drawn in parts
    a, c, r, d, q, k = _sizes(s)
    x = s.tensor(a, q + k)
    _pair(s, a, *s.call(aten.split_with_sizes.default, x, [q, k], 1), c, r, d)
    s.call(torch.ops.hap.dropout.default, x, s.constant(torch.tensor([3, 1])), 0.5, 4)

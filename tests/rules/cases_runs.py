"""Cases of runs: adjacent axes of one dimension that are sharded as one, because a contraction can be."""

from __future__ import annotations

import torch

from hap.graph import Ref
from tests.rules.sketch import Sketch, case

aten = torch.ops.aten


def _rows(s: Sketch, a: int, b: int, k: int) -> Ref:
    """Rows (a b), as a contraction has them."""
    rows = s.product((a, b), (k,))
    s.call(aten.mm.default, rows, s.tensor(k, s.sizes(1)[0]))
    return rows


def _sizes(s: Sketch) -> tuple[int, int, int]:
    a, b, k = s.sizes(3)
    return a, b, k


@case("aten.relu.default", "S0 -> S0, S1 -> S1, S2 -> S2, S3 -> S3")
def _(s: Sketch) -> None:
    s.call(aten.relu.default, _rows(s, *_sizes(s)))


@case("aten.add.Tensor", "S0 R -> S0, S1 R -> S1, S2 S0 -> S2, S3 R -> S3, P P -> P")
def _(s: Sketch) -> None:
    # a bias lacks the rows
    a, b, k = _sizes(s)
    s.call(aten.add.Tensor, _rows(s, a, b, k), s.tensor(k))


@case("aten.sum.dim_IntList", "S0 -> P, S1 -> P, S2 -> S0, S3 -> P, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.sum.dim_IntList, _rows(s, *_sizes(s)), [0])


@case("aten._softmax.default", "S0 -> S0, S1 -> S1, S3 -> S3, S2 -> S2 softmax")
def _(s: Sketch) -> None:
    s.call(aten._softmax.default, _rows(s, *_sizes(s)), 1, False)


@case("aten._softmax.default", "S2 -> S2, S0 -> S0 softmax, S1 -> S1 softmax")
def _(s: Sketch) -> None:
    # along the rows: composites take one axis
    s.call(aten._softmax.default, _rows(s, *_sizes(s)), 0, False)


@case("aten.view.default", "S0 -> S0, S1 -> S1, S2 -> S2, S3 -> S3, P -> P")
def _(s: Sketch) -> None:
    # the rows stay in one dimension
    a, b, k = _sizes(s)
    s.call(aten.view.default, _rows(s, a, b, k), [1, a * b, k])


@case("aten.view.default", "S0 -> S0, S1 -> S1, S2 -> S2, P -> P")
def _(s: Sketch) -> None:
    # the result has them in two
    a, b, k = _sizes(s)
    s.call(aten.view.default, _rows(s, a, b, k), [a, b, k])


@case("aten.permute.default", "S0 -> S1, S1 -> S2, S2 -> S0, S3 -> S3, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.permute.default, _rows(s, *_sizes(s)), [1, 0])


@case("aten.mm.default", "S0 R -> S0, S1 S0 -> P, S2 S1 -> P, S3 S3 -> P, R S2 -> S1, P R -> P, R P -> P")
def _(s: Sketch) -> None:
    # contracted
    a, b, k = _sizes(s)
    s.call(aten.mm.default, s.tensor(k, a * b), s.product((a, b), (s.sizes(1)[0],)))


@case(
    "aten.mm.default",
    "S0 R -> S0, S1 S0 -> P, R S1 -> S1, R S2 -> S2, R S3 -> S3, R S4 -> S4, R S5 -> S5, P R -> P, R P -> P",
)
def _(s: Sketch) -> None:
    # key heads and their repetitions are a part of the columns; all the columns are a run as well
    h, r, d = _sizes(s)
    queries = s.call(aten.mm.default, s.tensor(s.sizes(1)[0], 3), s.tensor(3, h * r * d))
    heads = s.call(aten.permute.default, s.call(aten.view.default, queries, [-1, h * r, d]), [1, 0, 2])
    keys = s.product((h, r), (d,), (s.sizes(1)[0],))
    s.call(aten.bmm.default, heads, keys)


@case("hap.dropout.default", "S0 R -> S0, S1 R -> S1, S2 R -> S2, S3 R -> S3, P R -> P")
def _(s: Sketch) -> None:
    # a window of the rows as one
    rows = _rows(s, *_sizes(s))
    s.call(torch.ops.hap.dropout.default, rows, s.constant(torch.tensor([3, 1])), 0.5, 4)


@case("aten.index_select.default", "S0 R -> P, S1 R -> P, S2 R -> S1, S3 R -> P, R S0 -> S0, P R -> P")
def _(s: Sketch) -> None:
    s.call(aten.index_select.default, _rows(s, *_sizes(s)), 0, s.integers(2, 3))


@case("aten.embedding.default", "S0 R -> P, S1 R -> S2, R S0 -> S0, R S1 -> S1, R S2 -> S3, P R -> P")
def _(s: Sketch) -> None:
    # indices (a b), whose rows are multiplied
    a, b, k = _sizes(s)
    flat = s.integers(3, a, b)
    x = s.call(aten.embedding.default, s.tensor(3, k), s.call(aten.view.default, flat, [a * b]))
    s.call(aten.mm.default, x, s.tensor(k, 2))

"""Cases of looking up and scattering by index, along dimensions that are whole and that are sharded."""

from __future__ import annotations

from typing import Any

import torch

from hap.graph import Ref
from tests.rules.sketch import Sketch, add, case, cases

aten = torch.ops.aten

# ---- tables


@case("aten.embedding.default", "S0 R -> P, S1 R -> S2, R S0 -> S0, R S1 -> S1, P R -> P")
def _(s: Sketch) -> None:
    v, h, b, t = s.sizes(4)
    s.call(aten.embedding.default, s.tensor(v, h), s.integers(v, b, t), 0)


@case("aten.embedding.default", "S0 R -> P, S1 R -> P, S2 R -> P, S3 R -> S1, R S0 -> S0, P R -> P")
def _(s: Sketch) -> None:
    # the rows of the table are a product: a share of one of its axes is no stretch of rows
    u, v, w, h = s.sizes(4)
    s.call(aten.embedding.default, s.product((u, v, w), (h,)), s.integers(u * v * w, 5))


@case("aten.embedding_dense_backward.default", "R R -> S0, S2 R -> S1, S0 S0 -> P, S1 S1 -> P, P R -> P")
def _(s: Sketch) -> None:
    v, h, b, t = s.sizes(4)
    s.call(aten.embedding_dense_backward.default, s.tensor(b, t, h), s.integers(v, b, t), v, 0, False)


@case("aten.embedding_dense_backward.default", "R R -> S0, R R -> S1, S1 R -> S2, S0 S0 -> P, P R -> P")
def _(s: Sketch) -> None:
    # no padding; the table's rows are a product
    u, v, h = s.sizes(3)
    table = s.product((u, v), (h,))
    indices = s.integers(u * v, 5)
    grad = s.call(aten.embedding_dense_backward.default, s.tensor(5, h), indices, u * v, -1, False)
    s.call(aten.add.Tensor, grad, table)


@case("aten.embedding_dense_backward.default", "R R -> S0, S1 R -> S1, P R -> P")
def _(s: Sketch) -> None:
    # scaled by how often an index stands in the batch
    v, h = s.sizes(2)
    s.call(aten.embedding_dense_backward.default, s.tensor(6, h), s.integers(v, 6), v, -1, True)


def _bags(s: Sketch, mode: int, backward: bool) -> None:
    v, h = s.sizes(2)
    table, indices, offsets = s.tensor(v, h), s.integers(v, 5), s.constant(torch.tensor([0, 2, 4]))
    made = s.call(aten._embedding_bag.default, table, indices, offsets, False, mode)
    if backward:
        s.call(
            aten._embedding_bag_backward.default, s.tensor(3, h), indices, offsets, *made[1:], v, False, mode, False,
            None,
        )  # fmt: skip


add("aten._embedding_bag.default", "S1 R R -> S1 R R S1", lambda s: _bags(s, 2, False))
add("aten._embedding_bag.default", "S1 R R -> S1 R R R, P R R -> P R R R", lambda s: _bags(s, 1, False))
add("aten._embedding_bag_backward.default", "S1 R R R R S1 -> S1, P R R R R R -> P", lambda s: _bags(s, 2, True))
add("aten._embedding_bag_backward.default", "S1 R R R R R -> S1, P R R R R R -> P", lambda s: _bags(s, 0, True))


@cases("searchsorted.Tensor", "S0 S0 -> S0, R S1 -> S1")
def _(s: Sketch, target: Any) -> None:
    a, d, j = s.sizes(3)
    s.call(target, s.constant(torch.arange(a * d).view(a, d).double()), s.tensor(a, j))


@cases("searchsorted.Tensor", "R S0 R -> S0, R S1 R -> S1")
def _(s: Sketch, target: Any) -> None:
    d, i, j = s.sizes(3)
    rows = s.tensor(d)
    sorter = s.call(aten.sort.default, rows)[1]
    s.call(target, rows, s.tensor(i, j), right=True, sorter=sorter)


@cases("bucketize.Tensor", "S0 R -> S0, S1 R -> S1")
def _(s: Sketch, target: Any) -> None:
    i, j, d = s.sizes(3)
    boundaries = torch.linspace(-1, 1, d)
    boundaries[-1] = torch.nan
    s.call(target, s.tensor(i, j), s.constant(boundaries))


# ---- one index of the rank of the tensor


def _rows(s: Sketch, count: int, *shape: int) -> Ref:
    """Indices below ``count`` that do not repeat along the last dimension."""
    flat = [torch.randperm(count, generator=s.generator)[: shape[-1]] for _ in range(torch.Size(shape[:-1]).numel())]
    return s.constant(torch.stack(flat).view(shape))


@case("aten.gather.default", "S0 S0 -> S0, S1 R -> P, R S1 -> S1, S2 S2 -> S2, P R -> P")
def _(s: Sketch) -> None:
    a, v, j, b = s.sizes(4)
    s.call(aten.gather.default, s.tensor(a, v, b), 1, s.integers(v, a, j, b))


@case("aten.gather.default", "S1 R -> P, S2 R -> P, R S1 -> S1, P R -> P")
def _(s: Sketch) -> None:
    # an index of the first rows alone; what is indexed is a product
    a, v, w, j = s.sizes(4)
    s.call(aten.gather.default, s.product((a + 1,), (v, w)), -1, s.integers(v * w, a, j))


@case("aten.scatter_add.default", "S0 S0 S0 -> S0, S1 R R -> S1, P S1 S1 -> P, P R P -> P")
def _(s: Sketch) -> None:
    a, v, j = s.sizes(3)
    s.call(aten.scatter_add.default, s.tensor(a, v), 1, s.integers(v, a, j), s.tensor(a, j))


@case("aten.scatter_add.default", "S0 R R -> S0, P R P -> P")
def _(s: Sketch) -> None:
    # a source of which the first rows alone are added
    a, v, j = s.sizes(3)
    s.call(aten.scatter_add.default, s.tensor(v, a), 0, s.integers(v, j, a), s.tensor(j + 1, a + 2))


@case("aten.scatter.src", "S0 S0 S0 -> S0, S1 R R -> S1, P R P -> P")
def _(s: Sketch) -> None:
    a, v = s.sizes(2)
    s.call(aten.scatter.src, s.tensor(a, v + 1), 1, _rows(s, v + 1, a, v), s.tensor(a, v))


@case("aten.scatter.value", "S0 S0 -> S0, S1 R -> S1")
def _(s: Sketch) -> None:
    a, v = s.sizes(2)
    s.call(aten.scatter.value, s.tensor(a, v), 1, s.integers(v, a, 2), -1.0)


@case("aten.scatter.value", "S0 S0 -> S0, S1 R -> S1, S2 R -> S2, P R -> P")
def _(s: Sketch) -> None:
    a, v, w = s.sizes(3)
    s.call(aten.scatter.value, s.product((a,), (v, w)), 1, s.integers(v * w, a, 2), 0)


@cases(
    {"scatter.reduce": ("add",), "scatter_reduce.two": ("sum",)},
    "S0 S0 S0 -> S0, S1 R R -> S1, P S1 S1 -> P, P R P -> P",
)
def _(s: Sketch, target: Any, reduce: str) -> None:
    a, v, j = s.sizes(3)
    s.call(target, s.tensor(a, v), 1, s.integers(v, a, j), s.tensor(a, j), reduce=reduce)


@cases("scatter_reduce.two", "S0 S0 S0 -> S0, S1 R R -> S1, P R P -> P")
def _(s: Sketch, target: Any) -> None:
    # sums without what was there
    a, v, j = s.sizes(3)
    s.call(target, s.tensor(a, v), 1, s.integers(v, a, j), s.tensor(a, j), "sum", include_self=False)


def _reduced(s: Sketch, target: Any, reduce: str) -> None:
    a, v, j = s.sizes(3)
    s.call(target, s.tensor(a, v), 1, s.integers(v, a, j), s.tensor(a, j), reduce=reduce)


for _kind in ("prod", "mean", "amax", "amin"):
    add(
        "aten.scatter_reduce.two", "S0 S0 S0 -> S0, S1 R R -> S1",
        lambda s, kind=_kind: _reduced(s, aten.scatter_reduce.two, kind),
    )  # fmt: skip
add("aten.scatter.reduce", "S0 S0 S0 -> S0, S1 R R -> S1", lambda s: _reduced(s, aten.scatter.reduce, "multiply"))


@case("aten.scatter.value_reduce", "S0 S0 -> S0, S1 R -> S1")
def _(s: Sketch) -> None:
    a, v = s.sizes(2)
    s.call(aten.scatter.value_reduce, s.tensor(a, v), 1, s.integers(v, a, 3), 2.0, reduce="add")


@case("aten.scatter.value_reduce", "S0 S0 -> S0, S1 R -> S1, P R -> P")
def _(s: Sketch) -> None:
    a, v = s.sizes(2)
    s.call(aten.scatter.value_reduce, s.tensor(a, v), 1, s.integers(v, a, 3), 2.0, reduce="multiply")


# ---- one index of one dimension


@case("aten.index_select.default", "S0 R -> S0, S1 R -> P, R S0 -> S1, S2 R -> S2, P R -> P")
def _(s: Sketch) -> None:
    a, v, j, b = s.sizes(4)
    s.call(aten.index_select.default, s.tensor(a, v, b), 1, s.integers(v, j))


@case("aten.index_select.default", "S0 R -> P, S1 R -> S0, P R -> P")
def _(s: Sketch) -> None:
    v, b = s.sizes(2)
    s.call(aten.index_select.default, s.tensor(v, b), 0, s.integers(v))


@case("aten.index_add.default", "S0 R S0 -> S0, S1 R R -> S1, P S0 S1 -> P, P R P -> P")
def _(s: Sketch) -> None:
    a, v, j = s.sizes(3)
    s.call(aten.index_add.default, s.tensor(a, v), 1, s.integers(v, j), s.tensor(a, j), alpha=2)


@case("aten.index_copy.default", "S0 R S0 -> S0, S1 R R -> S1, P R P -> P")
def _(s: Sketch) -> None:
    a, v = s.sizes(2)
    s.call(aten.index_copy.default, s.tensor(a, v + 1), -1, _rows(s, v + 1, v), s.tensor(a, v))


@case("aten.index_fill.int_Scalar", "S0 R -> S0, S1 R -> S1, P R -> P")
def _(s: Sketch) -> None:
    a, v, j = s.sizes(3)
    s.call(aten.index_fill.int_Scalar, s.tensor(a, v), 1, s.integers(v, j), 0)


@case("aten.index_fill.int_Scalar", "S0 R -> S0, S1 R -> S1")
def _(s: Sketch) -> None:
    v, a, j = s.sizes(3)
    s.call(aten.index_fill.int_Scalar, s.tensor(v, a), 0, s.integers(v, j), 1.5)


@case("aten.index_fill.int_Scalar", "S0 R -> S0, S1 R -> S1")  # counted from the end
def _(s: Sketch) -> None:
    v, a = s.sizes(2)
    s.call(aten.index_fill.int_Scalar, s.tensor(v, a), 0, s.constant(torch.tensor([-1, 0])), 1.5)


@case("aten.index_fill.int_Tensor", "S0 R R -> S0, S1 R R -> S1, P R P -> P")
def _(s: Sketch) -> None:
    a, v, j = s.sizes(3)
    s.call(aten.index_fill.int_Tensor, s.tensor(a, v), 1, s.integers(v, j), s.tensor())


for _kind in ("prod", "mean", "amax", "amin"):
    add(
        "aten.index_reduce.default", "S0 R S0 -> S0, S1 R R -> S1",
        lambda s, kind=_kind: _index_reduced(s, kind),
    )  # fmt: skip


def _index_reduced(s: Sketch, reduce: str) -> None:
    a, v, j = s.sizes(3)
    s.call(aten.index_reduce.default, s.tensor(a, v), 1, s.integers(v, j), s.tensor(a, j), reduce)


# ---- places in the flattened tensor


@case("aten.take.default", "S0 R -> P, S1 R -> P, R S0 -> S0, R S1 -> S1, P R -> P")
def _(s: Sketch) -> None:
    a, v, i, j = s.sizes(4)
    s.call(aten.take.default, s.tensor(a, v), s.constant(torch.randint(-a * v, a * v, (i, j), generator=s.generator)))


@case("aten.put.default", "S0 R R -> S0, S1 R R -> S1, P S0 S0 -> P, P S1 S1 -> P, P R P -> P")
def _(s: Sketch) -> None:
    a, v, i, j = s.sizes(4)
    places = s.constant(torch.randint(-a * v, a * v, (i, j), generator=s.generator))
    s.call(aten.put.default, s.tensor(a, v), places, s.tensor(i, j), True)


@case("aten.put.default", "S0 R R -> S0, S1 R R -> S1, P R P -> P")
def _(s: Sketch) -> None:
    a, v = s.sizes(2)
    s.call(aten.put.default, s.tensor(a, v), _rows(s, a * v, v), s.tensor(v))


@case("aten.masked_scatter.default", "P R P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.masked_scatter.default, s.tensor(a, b), s.tensor(b, dtype=torch.bool), s.tensor(a * b + 1))


@case("aten.masked_scatter_backward.default", "P R -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.masked_scatter_backward.default, s.tensor(a, b), s.tensor(a, b, dtype=torch.bool), [a * b, 2])


# ---- indices of several dimensions


@cases(
    "index.Tensor _unsafe_index.Tensor",
    "S0 R R -> S0, S1 R R -> P, S2 R R -> P, R S0 S0 -> S1, R S1 R -> S2, S3 R R -> S3, P R R -> P",
)
def _(s: Sketch, target: Any) -> None:
    a, v, w, b, i, j = s.sizes(6)
    first = s.constant(torch.randint(-v, v, (i, j), generator=s.generator))
    s.call(target, s.tensor(a, v, w, b), [None, first, s.integers(w, i, 1)])


@cases("index.Tensor _unsafe_index.Tensor", "S0 R R -> P, S2 R R -> P, R S0 R -> S0, S1 R R -> S1, P R R -> P")
def _(s: Sketch, target: Any) -> None:
    # indices that stand apart: theirs is the first dimension
    v, a, w, i = s.sizes(4)
    s.call(target, s.tensor(v, a, w), [s.integers(v, i), None, s.integers(w, 1)])


@cases("index_put _unsafe_index_put", "S0 R R -> S0, S1 R S1 -> S1, P S0 S0 -> P, P R P -> P")
def _(s: Sketch, target: Any) -> None:
    v, a, i = s.sizes(3)
    s.call(target, s.tensor(v, a), [s.integers(v, i)], s.tensor(i, a), True)


@cases(
    "index_put _unsafe_index_put",
    "S0 R R S0 -> S0, S1 R R R -> S1, S2 R R R -> S2, S3 R R R -> S3, P S0 S0 S1 -> P, P R R P -> P",
)
def _(s: Sketch, target: Any) -> None:
    a, v, w, i = s.sizes(4)
    first = s.constant(torch.randint(-v, v, (i,), generator=s.generator))
    s.call(target, s.product((a,), (v,), (w, 3)), [None, first, s.integers(3 * w, i)], s.tensor(a, i), True)


@cases("index_put _unsafe_index_put", "S0 R R -> S0, S1 R S0 -> S1, P S0 R -> P, P R P -> P")
def _(s: Sketch, target: Any) -> None:
    # a rank without indices must not put the values anywhere
    v, a, i = s.sizes(3)
    s.call(target, s.tensor(v, a), [s.integers(v, i)], s.tensor(a), True)


@case("aten.index_put.default", "S0 R R -> S0, S1 R R -> S1, P R P -> P")
def _(s: Sketch) -> None:
    # a later value replaces an earlier one
    v, a = s.sizes(2)
    s.call(aten.index_put.default, s.tensor(v, a), [_rows(s, v, v)], s.tensor(v, 1), False)


@cases("index_put", "S0 R S0 -> S0, S1 S0 R -> S1, S2 R S1 -> S2, P R P -> P")
def _(s: Sketch, target: Any) -> None:
    # by a mask: the same values wherever it is true
    a, b, c = s.sizes(3)
    s.call(target, s.tensor(a, b, c), [None, s.tensor(b, dtype=torch.bool)], s.tensor(a, 1, c))

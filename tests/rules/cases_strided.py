"""Cases of diagonals, triangles, windows and quarter turns, and of views as copies."""

from __future__ import annotations

from typing import Any

import torch

from tests.rules.sketch import Sketch, case, cases

aten = torch.ops.aten


@cases("diagonal diagonal_copy", "S1 -> S0, P -> P")
def _(s: Sketch, target: Any) -> None:
    a, b, c = s.sizes(3)
    s.call(target, s.tensor(a + 1, b, c), 1, 0, -1)


@case("aten.diagonal_backward.default", "S0 -> S1, P -> P")
def _(s: Sketch) -> None:
    a, b, c = s.sizes(3)
    s.call(aten.diagonal_backward.default, s.tensor(b, min(a, c - 1)), [a, b, c], 1, 0, 2)


@case("aten.diagonal_scatter.default", "S1 S0 -> S1, P P -> P")
def _(s: Sketch) -> None:
    a, b, c = s.sizes(3)
    s.call(aten.diagonal_scatter.default, s.tensor(a, b, c), s.tensor(b, min(a, c)), 0, 0, 2)


@case("aten.diag_embed.default", "S0 -> S1, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.diag_embed.default, s.tensor(*s.sizes(2)), -1, 0, -1)


@case("aten.trace.default", "P -> P")
def _(s: Sketch) -> None:
    s.call(aten.trace.default, s.tensor(*s.sizes(2)))


@cases("tril triu", "S0 -> S0, S1 -> S1, S2 -> S2, P -> P")
def _(s: Sketch, target: Any) -> None:
    s.call(target, s.tensor(*s.sizes(3)), 1)


@cases("tril triu", "S0 -> S0, S1 -> S1, S2 -> S2, S3 -> S3, P -> P")
def _(s: Sketch, target: Any) -> None:
    # rows and columns that are products: a share is no one stretch of them
    a, b, c, d = s.sizes(4)
    s.call(target, s.product((a, b), (c, d)), -1)


@cases("unfold unfold_copy", "S0 -> S0, S1 -> S1, S2 -> S3, S3 -> S2, P -> P")
def _(s: Sketch, target: Any) -> None:
    # windows side by side: patches
    a, w, k, b = s.sizes(4)
    s.call(target, s.tensor(a, w * (k + 1), b), 1, k + 1, k + 1)


@cases("unfold unfold_copy", "S0 -> S0, P -> P")
def _(s: Sketch, target: Any) -> None:
    # windows that overlap
    a, b = s.sizes(2)
    s.call(target, s.tensor(a, b + 3), -1, 3, 1)


@case("aten.unfold_backward.default", "S0 -> S0, S1 -> S1, S3 -> S2, S2 -> S3, P -> P")
def _(s: Sketch) -> None:
    a, w, k, b = s.sizes(4)
    s.call(aten.unfold_backward.default, s.tensor(a, w, b, k + 1), [a, w * (k + 1), b], 1, k + 1, k + 1)


@case("aten.unfold_backward.default", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.unfold_backward.default, s.tensor(a, b + 1, 3), [a, b + 3], 1, 3, 1)


@case("aten.rot90.default", "S0 -> S2, S1 -> S1, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.rot90.default, s.tensor(*s.sizes(3)), 1, [0, 2])


@case("aten.rot90.default", "S1 -> S1, S2 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.rot90.default, s.tensor(*s.sizes(3)), -1, [0, 2])


@case("aten.rot90.default", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.rot90.default, s.tensor(*s.sizes(3)), -2, [2, 1])


@case("aten.alias_copy.default", "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.alias_copy.default, s.tensor(*s.sizes(2)))


@case("aten.expand_copy.default", "R -> S0, S0 -> S1, P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.expand_copy.default, s.tensor(b, 1), [a, b, 1])


@case("aten.permute_copy.default", "S0 -> S1, S1 -> S2, S2 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.permute_copy.default, s.tensor(*s.sizes(3)), [2, 0, 1])


@cases({"squeeze_copy": (), "squeeze_copy.dim": (1,), "squeeze_copy.dims": ([1, -1],)}, "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch, target: Any, *dims: Any) -> None:
    a, b = s.sizes(2)
    s.call(target, s.tensor(a, 1, b), *dims)


@cases({"t_copy": (), "transpose_copy.int": (0, 1)}, "S0 -> S1, S1 -> S0, P -> P")
def _(s: Sketch, target: Any, *dims: int) -> None:
    s.call(target, s.tensor(*s.sizes(2)), *dims)


@case("aten.unsqueeze_copy.default", "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.unsqueeze_copy.default, s.tensor(*s.sizes(2)), 1)


@case("aten.view_copy.default", "S0 -> S0, S1 -> S1, S2 -> S2, P -> P")
def _(s: Sketch) -> None:
    a, b, c = s.sizes(3)
    s.call(aten.view_copy.default, s.tensor(a, b, c), [a, b * c])


@case("aten.slice_copy.Tensor", "S0 -> S0, S2 -> S1, P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.slice_copy.Tensor, s.tensor(a, 3 * b), 1, b, 2 * b)


@case("aten.select_copy.int", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.select_copy.int, s.tensor(*s.sizes(2)), 1, 0)


@case("aten.unbind_copy.int", "S1 -> S0 S0, P -> P P")
def _(s: Sketch) -> None:
    s.call(aten.unbind_copy.int, s.tensor(2, *s.sizes(1)), 0)


@case("aten.unsafe_split.Tensor", "S0 -> S0 S0, S2 -> S1 S1, P -> P P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.unsafe_split.Tensor, s.tensor(a, 2 * b), b, 1)


@cases("unsafe_split_with_sizes split_with_sizes_copy", "S0 -> S0 S0, S2 -> S1 S1, P -> P P")
def _(s: Sketch, target: Any) -> None:
    a, b = s.sizes(2)
    s.call(target, s.tensor(a, 2 * b), [b, b], 1)


@case("aten.as_strided.default", "P -> P")
def _(s: Sketch) -> None:
    # windows that overlap
    a, b = s.sizes(2)
    s.call(aten.as_strided.default, s.tensor(a + 1, b), [a, 2, b], [b, b, 1])


@case("aten.as_strided_scatter.default", "P P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.as_strided_scatter.default, s.tensor(a + 1, b), s.tensor(a, b), [a, b], [b, 1], b)

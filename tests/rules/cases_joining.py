"""Cases of slices, splits and joins."""

from __future__ import annotations

import torch

from tests.rules.sketch import Sketch, case

aten = torch.ops.aten


@case("aten.slice.Tensor", "S0 -> S0, S2 -> S1, P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.slice.Tensor, s.tensor(a, 3 * b), 1, b, 2 * b)


@case("aten.slice.Tensor", "S0 -> S0, S2 -> S1, S3 -> S2, P -> P")
def _(s: Sketch) -> None:
    # one of three fused projections: [3, heads, features]
    a, h, d = s.sizes(3)
    x = s.call(aten.slice.Tensor, s.product((a,), (3, h, d)), 1, 2 * h * d, 2**62)
    s.call(aten.view.default, x, [a, h, d])


@case("aten.slice.Tensor", "S0 -> S0, S2 -> S2, P -> P")
def _(s: Sketch) -> None:
    # two of three: [2, b] of [3, b]
    a, b = s.sizes(2)
    x = s.call(aten.slice.Tensor, s.product((a,), (3, b)), 1, b, 3 * b)
    s.call(aten.view.default, x, [a, 2, b])


@case("aten.slice.Tensor", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.slice.Tensor, s.tensor(s.sizes(1)[0], 7), 1, -6, -1)


@case("aten.slice.Tensor", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.slice.Tensor, s.tensor(s.sizes(1)[0], 6), 1, 0, 6, 2)


@case("aten.slice.Tensor", "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.slice.Tensor, s.tensor(*s.sizes(2)), 1, 0, 2**62)


@case("aten.split.Tensor", "S0 -> S0 S0 S0, S2 -> S1 S1 S1, P -> P P P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.split.Tensor, s.tensor(a, 3 * b), b, 1)


@case("aten.split.Tensor", "S0 -> S0 S0, S2 -> S1 S1, S3 -> S2 S2, P -> P P")
def _(s: Sketch) -> None:
    a, h, d = s.sizes(3)
    pieces = s.call(aten.split.Tensor, s.product((a,), (3, h, d)), h * d, -1, dead=(1,))
    s.call(aten.view.default, pieces[2], [a, h, d])
    s.call(aten.view.default, pieces[0], [a, h, d])


@case("aten.split.Tensor", "S0 -> S0 S0, P -> P P")
def _(s: Sketch) -> None:
    s.call(aten.split.Tensor, s.tensor(s.sizes(1)[0], 5), 3, 1)


@case("aten.split_with_sizes.default", "S0 -> S0 S0, S2 -> S2 S1, P -> P P")
def _(s: Sketch) -> None:
    # four queries and two keys and values in a fused projection of equal features
    a, b = s.sizes(2)
    pieces = s.call(aten.split_with_sizes.default, s.product((a,), (3, b)), [2 * b, b], 1)
    s.call(aten.view.default, pieces[0], [a, 2, b])


@case("aten.split_with_sizes.default", "S0 -> S0 S0, P -> P P")
def _(s: Sketch) -> None:
    s.call(aten.split_with_sizes.default, s.tensor(s.sizes(1)[0], 5), [2, 3], 1)


@case("aten.cat.default", "S0 S0 S0 -> S0, S1 S1 S1 -> S2, P P P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.cat.default, [s.tensor(a, b), s.tensor(a, b), s.tensor(a, b)], 1)


@case("aten.cat.default", "S1 S1 -> S2, S2 S2 -> S3, S0 S0 -> S0, P P -> P")
def _(s: Sketch) -> None:
    a, h, d = s.sizes(3)
    s.call(aten.cat.default, [s.product((a,), (h, d)), s.product((a,), (h, d))], -1)


@case("aten.cat.default", "S0 S0 -> S0, P P -> P")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.cat.default, [s.tensor(a, 3), s.tensor(a, 2)], 1)


@case("aten.stack.default", "S0 S0 -> S0, S1 S1 -> S2, P P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.stack.default, [s.tensor(a, b), s.tensor(a, b)], 1)


@case("aten.select.int", "S0 -> S0, S2 -> S1, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.select.int, s.tensor(*s.sizes(3)), 1, -1)


@case("aten.unbind.int", "S0 -> S0 S0, P -> P P")
def _(s: Sketch) -> None:
    s.call(aten.unbind.int, s.tensor(*s.sizes(1), 2), 1)


@case("aten.constant_pad_nd.default", "S0 -> S0, S1 -> S2, P -> P")
def _(s: Sketch) -> None:
    # the gradient of a slice
    a, b = s.sizes(2)
    s.call(aten.constant_pad_nd.default, s.tensor(a, b), [b, 2 * b])


@case("aten.constant_pad_nd.default", "S0 -> S0, S2 -> S2")
def _(s: Sketch) -> None:
    a, c = s.sizes(2)
    s.call(aten.constant_pad_nd.default, s.tensor(a, 5, c), [0, 0, 1, 2], 1.5)


@case("aten.constant_pad_nd.default", "S1 -> S1, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.constant_pad_nd.default, s.tensor(5, *s.sizes(1)), [0, 0, -1, 3])


@case("aten.slice_scatter.default", "S0 S0 -> S0, S2 S1 -> S2, P P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.slice_scatter.default, s.tensor(a, 3 * b), s.tensor(a, b), 1, b, 2 * b)


@case("aten.slice_scatter.default", "S0 S0 -> S0, S1 S1 -> S1, P P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.slice_scatter.default, s.tensor(a, b), s.tensor(a, b), 1, 0, 2**62)


@case("aten.select_scatter.default", "S0 S0 -> S0, S2 S1 -> S2, P P -> P")
def _(s: Sketch) -> None:
    a, b, c = s.sizes(3)
    s.call(aten.select_scatter.default, s.tensor(a, b, c), s.tensor(a, c), 1, 0)


@case("aten.block_diag.default", "P P P P -> P")
def _(s: Sketch) -> None:
    a, b, c, d = s.sizes(4)
    s.call(aten.block_diag.default, [s.tensor(a, b), s.tensor(c), s.tensor(), s.tensor(1, d)])

"""Cases of reductions, contractions, convolutions, pooling, normalisation and random numbers."""

from __future__ import annotations

from typing import Any

import torch

from tests.rules.sketch import Sketch, add, case, cases

aten, own = torch.ops.aten, torch.ops.hap

# ---- reductions


@case("aten.sum.default", "S0 -> P, S1 -> P, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.sum.default, s.tensor(*s.sizes(2)))


@case("aten.sum.default", "S0 -> P")  # counts; no partial of a mask
def _(s: Sketch) -> None:
    s.call(aten.sum.default, s.tensor(*s.sizes(1), dtype=torch.bool))


@case("aten.sum.dim_IntList", "S0 -> S0, S1 -> P, S2 -> S1, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.sum.dim_IntList, s.tensor(*s.sizes(3)), [-2], True)


@case("aten.sum.dim_IntList", "S0 -> P, S1 -> S0, S2 -> P, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.sum.dim_IntList, s.tensor(*s.sizes(3)), [0, 2])


@cases("mean.dim", "S0 -> S0, P -> P")
def _(s: Sketch, target: Any) -> None:
    s.call(target, s.tensor(*s.sizes(2)), [1])


@cases("mean", "P -> P")
def _(s: Sketch, target: Any) -> None:
    s.call(target, s.tensor(*s.sizes(2)))


@cases("var.correction std.correction", "S0 -> S0")
def _(s: Sketch, target: Any) -> None:
    s.call(target, s.tensor(*s.sizes(1), 3), [1])


@case("aten.var_mean.correction", "S0 -> S0 S0")
def _(s: Sketch) -> None:
    s.call(aten.var_mean.correction, s.tensor(*s.sizes(1), 3), [1], correction=0, keepdim=True)


@cases({"sort": (), "sort.stable": ("stable",)}, "S0 -> S0 S0")
def _(s: Sketch, target: Any, *names: str) -> None:
    s.call(target, s.tensor(*s.sizes(2)), **({"stable": True} if "stable" in names else {}), dim=1)


@case("aten.topk.default", "S0 -> S0 S0")
def _(s: Sketch) -> None:
    s.call(aten.topk.default, s.tensor(*s.sizes(1), 4), 2, 1)


# ---- contractions


@case("aten.mm.default", "S0 R -> S0, S1 S0 -> P, R S1 -> S1, P R -> P, R P -> P")
def _(s: Sketch) -> None:
    i, k, j = s.sizes(3)
    s.call(aten.mm.default, s.tensor(i, k), s.tensor(k, j))


@case("aten.mm.default", "S0 R -> S0, S1 R -> S1, S3 R -> S3, S2 S0 -> P, R S1 -> S2, P R -> P, R P -> P")
def _(s: Sketch) -> None:
    # batch and sequence are sharded apart, and as one
    a, b, k, j = s.sizes(4)
    s.call(aten.mm.default, s.product((a, b), (k,)), s.tensor(k, j))


@case("aten.mm.default", "S0 R -> S0, S1 S0 -> P, R S1 -> S1, P R -> P, R P -> P")
def _(s: Sketch) -> None:
    # one axis twice in the weight: each occurrence alone
    a, h = s.sizes(2)
    x, weight = s.tensor(a, h), s.tensor(h, h)
    s.call(aten.add.Tensor, x, s.call(aten.mm.default, x, weight))
    s.call(aten.mm.default, x, weight)


@case("aten.bmm.default", "S0 S0 -> S0, S1 R -> S1, S2 S1 -> P, R S2 -> S2, P R -> P, R P -> P")
def _(s: Sketch) -> None:
    b, i, k, j = s.sizes(4)
    s.call(aten.bmm.default, s.tensor(b, i, k), s.tensor(b, k, j))


@case("aten.addmm.default", "R S0 R -> S0, P S1 S0 -> P, S0 R S1 -> S1, P P R -> P, P R P -> P")
def _(s: Sketch) -> None:
    i, k, j = s.sizes(3)
    s.call(aten.addmm.default, s.tensor(j), s.tensor(i, k), s.tensor(k, j), beta=0.5, alpha=2)


@case("aten.addmm.default", "S0 S0 R -> S0, P S1 S0 -> P, R R S1 -> S1, P P R -> P, P R P -> P")
def _(s: Sketch) -> None:
    i, k, j = s.sizes(3)
    s.call(aten.addmm.default, s.tensor(i, 1), s.tensor(i, k), s.tensor(k, j))


@case("aten.baddbmm.default", "S0 S0 S0 -> S0, S1 S1 R -> S1, P S2 S1 -> P, R R S2 -> S2, P P R -> P, P R P -> P")
def _(s: Sketch) -> None:
    b, i, k, j = s.sizes(4)
    s.call(aten.baddbmm.default, s.tensor(b, i, 1), s.tensor(b, i, k), s.tensor(b, k, j))


@case("aten.mv.default", "S0 R -> S0, S1 S0 -> P, P R -> P, R P -> P")
def _(s: Sketch) -> None:
    i, k = s.sizes(2)
    s.call(aten.mv.default, s.tensor(i, k), s.tensor(k))


@case("aten.dot.default", "S0 S0 -> P, P R -> P, R P -> P")
def _(s: Sketch) -> None:
    (k,) = s.sizes(1)
    s.call(aten.dot.default, s.tensor(k), s.tensor(k))


# ---- convolutions


def _convolution(s: Sketch, groups: int, bias: bool, transposed: bool) -> None:
    n, c, o = s.sizes(3)
    channels = s.product((n,), (groups, c), (4,), (3,))
    weight = s.product((groups, c), (o,), (2,), (2,)) if transposed else s.product((groups, o), (c,), (2,), (2,))
    s.call(
        aten.convolution.default, channels, weight, s.tensor(groups * o) if bias else None,
        [1, 1], [1, 0], [1, 1], transposed, [0, 0], groups,
    )  # fmt: skip


add(
    "aten.convolution.default", "S0 R R -> S0, S1 S1 P -> P, R S0 S0 -> S1, P R P -> P, R P P -> P",
    lambda s: _convolution(s, 1, True, False),
)  # fmt: skip
add(
    "aten.convolution.default", "S0 R R -> S0, S1 S0 P -> P, R S1 S0 -> S1, P R P -> P, R P P -> P",
    lambda s: _convolution(s, 1, True, True),
)  # fmt: skip
add(
    "aten.convolution.default", "S0 R -> S0, S1 S0 -> S1, S2 S2 -> P, R S1 -> S2, P R -> P, R P -> P",
    lambda s: _convolution(s, 2, False, False),
)  # fmt: skip


def _convolution_backward(
    s: Sketch, groups: int, transposed: bool, wanted: list[bool], dead: tuple[int, ...] = ()
) -> None:
    n, c, o = s.sizes(3)
    x = s.product((n,), (groups, c), (4,), (3,))
    weight = s.product((groups, c), (o,), (2,), (2,)) if transposed else s.product((groups, o), (c,), (2,), (2,))
    grad = s.product((n,), (groups, o), (5 if transposed else 3,), (4 if transposed else 2,))
    s.call(
        aten.convolution_backward.default, grad, x, weight, [groups * o], [1, 1], [0, 0], [1, 1], transposed, [0, 0],
        groups, wanted, dead=dead,
    )  # fmt: skip


# The bias gradient does not read the input: where input channels are sharded it is whole on every device.
add(
    "aten.convolution_backward.default",
    "S0 S0 R -> S0 P P, R S1 S1 -> S1 S1 R, S1 R S0 -> P S0 S0, P R R -> P P P",
    lambda s: _convolution_backward(s, 1, False, [True, True, True]),
)
add(
    "aten.convolution_backward.default",
    "S0 S0 R -> S0 P P, R S1 S0 -> S1 S0 R, S1 R S1 -> P S1 S0, P R R -> P P P",
    lambda s: _convolution_backward(s, 1, True, [True, True, True]),
)
add(
    "aten.convolution_backward.default",
    "S0 S0 R -> P P, S1 S1 S0 -> S0 S0, S2 R S1 -> S1 S1, R S2 S2 -> S2 R, P R R -> P P",
    lambda s: _convolution_backward(s, 2, False, [False, True, True]),
)
add(
    "aten.convolution_backward.default",
    "S0 S0 R -> P, R S1 S1 -> S1, S1 R S0 -> S0, P R R -> P",
    lambda s: _convolution_backward(s, 1, False, [True, True, False], dead=(0,)),
)

# ---- pooling


@case("aten.max_pool2d_with_indices.default", "S0 -> S0 S0, S1 -> S1 S1")
def _(s: Sketch) -> None:
    s.call(aten.max_pool2d_with_indices.default, s.tensor(*s.sizes(2), 4, 6), [2, 2])


@case("aten.max_pool2d_with_indices_backward.default", "S0 S0 S0 -> S0, S1 S1 S1 -> S1, P R R -> P")
def _(s: Sketch) -> None:
    n, c = s.sizes(2)
    x = s.tensor(n, c, 4, 6)
    _, indices = s.call(aten.max_pool2d_with_indices.default, x, [2, 2])
    s.call(
        aten.max_pool2d_with_indices_backward.default, s.tensor(n, c, 2, 3), x, [2, 2], [2, 2], [0, 0], [1, 1], False,
        indices,
    )  # fmt: skip


_AVERAGE = ([2, 2], [2, 2], [0, 0], False, True, None)


@cases({"avg_pool2d": _AVERAGE, "_adaptive_avg_pool2d": ([2, 3],)}, "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch, target: Any, *arguments: Any) -> None:
    s.call(target, s.tensor(*s.sizes(2), 4, 6), *arguments)


@case("aten.avg_pool2d.default", "S0 -> S0, S1 -> S1")  # averages of integers are truncated
def _(s: Sketch) -> None:
    s.call(aten.avg_pool2d.default, s.integers(9, *s.sizes(2), 4, 6), *_AVERAGE)


@cases(
    {"avg_pool2d_backward": _AVERAGE, "_adaptive_avg_pool2d_backward": ()}, "S0 S0 -> S0, S1 S1 -> S1, P R -> P"
)  # fmt: skip
def _(s: Sketch, target: Any, *arguments: Any) -> None:
    n, c = s.sizes(2)
    s.call(target, s.tensor(n, c, 2, 3), s.tensor(n, c, 4, 6), *arguments)

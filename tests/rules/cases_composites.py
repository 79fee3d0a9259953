"""Cases of operators that composites carry across a dimension: softmax, statistics, reductions that are no sums."""

from __future__ import annotations

from typing import Any

import torch

from tests.rules.sketch import Sketch, add, case

aten = torch.ops.aten

# ---- softmax


@case("aten._softmax.default", "S0 -> S0, S2 -> S2, S1 -> S1 softmax")
def _(s: Sketch) -> None:
    s.call(aten._softmax.default, s.tensor(*s.sizes(3)), 1, False)


@case("aten._softmax.default", "S0 -> S0, S1 -> S1 softmax, S2 -> S2 softmax")
def _(s: Sketch) -> None:
    # masked scores, of which some ranks hold nothing but masked ones; any part of the dimension
    a, b, c = s.sizes(3)
    mask = s.constant(torch.triu(torch.full((a, b * c), -torch.inf, dtype=torch.float64), 1))
    s.call(aten._softmax.default, s.call(aten.add.Tensor, s.product((a,), (b, c)), mask), -1, False)


@case("aten._log_softmax.default", "S0 -> S0, S2 -> S2, S1 -> S1 log_softmax")
def _(s: Sketch) -> None:
    s.call(aten._log_softmax.default, s.tensor(*s.sizes(3)), 1, False)


@case("aten._log_softmax.default", "S1 -> S1, S0 -> S0 log_softmax")
def _(s: Sketch) -> None:
    s.call(aten._log_softmax.default, s.tensor(*s.sizes(2), dtype=torch.bfloat16), 0, False)


@case("aten._softmax_backward_data.default", "S0 S0 -> S0, P R -> P, S1 S1 -> S1 softmax_backward")
def _(s: Sketch) -> None:
    a, d = s.sizes(2)
    s.call(aten._softmax_backward_data.default, s.tensor(a, d), s.positive(a, d), 1, torch.float64)


@case("aten._log_softmax_backward_data.default", "S0 S0 -> S0, P R -> P, S1 S1 -> S1 log_softmax_backward")
def _(s: Sketch) -> None:
    a, d = s.sizes(2)
    s.call(aten._log_softmax_backward_data.default, s.tensor(a, d), s.tensor(a, d), 1, torch.float64)


@case("aten._safe_softmax.default", "S0 -> S0, S1 -> S1 safe_softmax")
def _(s: Sketch) -> None:
    a, d = s.sizes(2)
    mask = s.constant(torch.triu(torch.full((a, d), -torch.inf, dtype=torch.float64)))  # all of the first row
    s.call(aten._safe_softmax.default, s.call(aten.add.Tensor, s.tensor(a, d), mask), 1)


# ---- reductions that are no sums


def _reduction(target: Any, composite: str, form: str, *arguments: Any, dtype: torch.dtype = torch.float64) -> None:
    """A case on two dimensions, the second a product of axes, and values that often tie.

    ``form`` is what is expected, with ``*`` for the composite.
    """

    def build(s: Sketch) -> None:
        a, b, c = s.sizes(3)
        x = s.integers(4, a, b, c, dtype=dtype)
        s.call(target, s.call(aten.view.default, x, [a, b * c]), *arguments)

    add(str(target), form.replace("*", composite), build)


_ROWS = "S0 -> S0, S1 -> R *, S2 -> R *"
_EVERYTHING = "S0 -> R *, S1 -> R *, S2 -> R *"
_reduction(aten.amax.default, "amax", _ROWS, [1])
_reduction(aten.amax.default, "amax", _EVERYTHING, [], True, dtype=torch.int64)
_reduction(aten.amin.default, "amin", _ROWS, [-1], dtype=torch.int32)
_reduction(aten.amin.default, "amin", _EVERYTHING, [1, 0])
_reduction(aten.logsumexp.default, "logsumexp", _ROWS, [1], True)
_reduction(aten.logsumexp.default, "logsumexp", _EVERYTHING, [0, 1])
_reduction(aten.max.default, "amax", _EVERYTHING)
_reduction(aten.min.default, "amin", _EVERYTHING, dtype=torch.int64)
_reduction(aten.prod.default, "prod", _EVERYTHING)
_reduction(aten.prod.dim_int, "prod", _ROWS, 1, dtype=torch.int32)
for _name in ("any", "all"):
    _packet = getattr(aten, _name)
    _reduction(_packet.default, _name, _EVERYTHING, dtype=torch.bool)
    _reduction(_packet.dim, _name, _ROWS, 1, dtype=torch.bool)
    _reduction(_packet.dims, _name, _EVERYTHING, None, True)
for _name in ("max", "min"):
    _reduction(getattr(aten, _name).dim, f"arg{_name}", "S0 -> S0 S0, S1 -> R R *", 1)
    _reduction(getattr(aten, _name).dim, f"arg{_name}", "S1 -> S0 S0, S2 -> S1 S1, S0 -> R R *", 0, dtype=torch.bool)
    _packet = getattr(aten, f"arg{_name}")
    _reduction(_packet.default, f"arg{_name}", "S0 -> S0, S1 -> R *", -1, True)
    # A position in the flattened tensor: only rows are stretches of it.
    _reduction(_packet.default, f"arg{_name}", "S0 -> R *", dtype=torch.int64)


@case("aten.max.dim", "S0 -> S0, S1 -> R argmax")
def _(s: Sketch) -> None:
    s.call(aten.max.dim, s.tensor(*s.sizes(2)), 1, dead=(0,))


@case("aten.amax.default", "S0 -> S0, S1 -> R amax")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.amax.default, s.constant(torch.full((a, b), torch.nan, dtype=torch.float64)), [1])


@case("aten.cumsum.default", "S0 -> S0, S2 -> S2, P -> P, S1 -> S1 cumsum")
def _(s: Sketch) -> None:
    s.call(aten.cumsum.default, s.tensor(*s.sizes(3)), -2)


@case("aten.cumsum.default", "S0 -> S0, S1 -> S1 cumsum")  # summands of 32 bits may wrap round
def _(s: Sketch) -> None:
    a, b, c = s.sizes(3)
    x = s.call(aten.view.default, s.tensor(a, b, c, dtype=torch.int32), [a, b * c])
    s.call(aten.cumsum.default, x, 1)


@case("aten.cumsum.default", "P -> P")
def _(s: Sketch) -> None:
    s.call(aten.cumsum.default, s.tensor(), 0)


@case("aten.cumprod.default", "S0 -> S0, S1 -> S1 cumprod")
def _(s: Sketch) -> None:
    a, b, c = s.sizes(3)
    s.call(aten.cumprod.default, s.product((a,), (b, c)), 1)


@case("aten.logcumsumexp.default", "S0 -> S0, S1 -> S1 logcumsumexp")
def _(s: Sketch) -> None:
    a, b, c = s.sizes(3)
    s.call(aten.logcumsumexp.default, s.product((a,), (b, c)), 1)


# ---- normalisation


@case("aten.native_layer_norm.default", "S0 R R -> S0 S0 S0, S1 R R -> S1 S1 S1, S2 S0 S0 -> S2 R R norm")
def _(s: Sketch) -> None:
    a, b, d = s.sizes(3)
    s.call(aten.native_layer_norm.default, s.tensor(a, b, d), [d], s.tensor(d), s.tensor(d), 1e-5)


@case("aten.native_layer_norm.default", "S0 R -> S0 S0, S1 S0 -> S1 R norm, S2 S1 -> S2 R norm")
def _(s: Sketch) -> None:
    a, d, e = s.sizes(3)
    s.call(aten.native_layer_norm.default, s.tensor(a, d, e), [d, e], s.tensor(d, e), None, 1e-5, dead=(1,))


def _layer_norm_backward(s: Sketch, affine: bool, wanted: tuple[bool, bool, bool]) -> None:
    a, d = s.sizes(2)
    x = s.tensor(a, d)
    weight, bias = (s.tensor(d), s.tensor(d)) if affine else (None, None)
    _, mean, rstd = s.call(aten.native_layer_norm.default, x, [d], weight, bias, 1e-5)
    s.call(
        aten.native_layer_norm_backward.default, s.tensor(a, d), x, [d], mean, rstd, weight, bias, list(wanted),
        dead=tuple(i for i, want in enumerate(wanted) if not want),
    )  # fmt: skip


add(
    "aten.native_layer_norm_backward.default",
    "S0 S0 S0 S0 R R -> S0 P P, P R R R R R -> P P P, S1 S1 R R S0 S0 -> S1 S0 S0 norm_backward",
    lambda s: _layer_norm_backward(s, True, (True, True, True)),
)
add(
    "aten.native_layer_norm_backward.default",
    "S0 S0 S0 S0 -> S0, P R R R -> P, S1 S1 R R -> S1 norm_backward",
    lambda s: _layer_norm_backward(s, False, (True, False, False)),
)
add(
    "aten.native_layer_norm_backward.default",
    "S0 S0 S0 S0 R R -> P P, P R R R R R -> P P, S1 S1 R R S0 S0 -> S0 S0 norm_backward",
    lambda s: _layer_norm_backward(s, True, (False, True, True)),
)


def _group_norm(s: Sketch, affine: bool, backward: bool = False, wanted: tuple[bool, bool, bool] = (True,) * 3) -> None:
    n, groups, own, height, width = s.sizes(5)
    channels = groups * own
    sizes = (n, channels, height * width, groups)
    x = s.product((n,), (groups, own), (height,), (width,))
    affine_of = [s.product((groups, own)) if affine else None for _ in range(2)]
    _, mean, rstd = s.call(aten.native_group_norm.default, x, *affine_of, *sizes, 1e-5)
    if backward:
        grad = s.product((n,), (groups, own), (height,), (width,))
        s.call(
            aten.native_group_norm_backward.default, grad, x, mean, rstd, affine_of[0], *sizes, list(wanted),
            dead=tuple(i for i, want in enumerate(wanted) if not want),
        )  # fmt: skip


add(
    "aten.native_group_norm.default",
    "S0 R R -> S0 S0 S0, S1 S0 S0 -> S1 S1 S1, S2 S1 S1 -> S2 R R norm, S3 R R -> S3 R R norm, S4 R R -> S4 R R norm",
    lambda s: _group_norm(s, affine=True),
)
add(
    "aten.native_group_norm.default",
    "S0 -> S0 S0 S0, S1 -> S1 S1 S1, S2 -> S2 R R norm, S3 -> S3 R R norm, S4 -> S4 R R norm",
    lambda s: _group_norm(s, affine=False),
)
add(
    "aten.native_group_norm_backward.default",
    "S0 S0 S0 S0 R -> S0 P P, S1 S1 S1 S1 S0 -> S1 S0 S0, P R R R R -> P P P, S2 S2 R R S1 -> S2 S1 S1 norm_backward,"
    "S3 S3 R R R -> S3 P P norm_backward, S4 S4 R R R -> S4 P P norm_backward",
    lambda s: _group_norm(s, affine=True, backward=True),
)
add(
    "aten.native_group_norm_backward.default",
    "S0 S0 S0 S0 -> S0, S1 S1 S1 S1 -> S1, P R R R -> P, S2 S2 R R -> S2 norm_backward,"
    "S3 S3 R R -> S3 norm_backward, S4 S4 R R -> S4 norm_backward",
    lambda s: _group_norm(s, affine=False, backward=True, wanted=(True, False, False)),
)

"""Cases of the pointwise rules. What is linear is said here once more, apart from the table."""

from __future__ import annotations

from typing import Any

import torch

from tests.rules.sketch import Sketch, case, cases

aten = torch.ops.aten


@cases(
    "neg clone positive conj _conj_physical conj_physical alias detach lift_fresh_copy deg2rad rad2deg",
    "S0 -> S0, S1 -> S1, P -> P",
)
def _(s: Sketch, target: Any) -> None:
    s.call(target, s.tensor(*s.sizes(2)))


@cases("_neg_view", "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch, target: Any) -> None:
    s.call(target, s.tensor(*s.sizes(2), dtype=torch.float64))


@cases("hardswish log_sigmoid", "S0 -> S0, S1 -> S1")
def _(s: Sketch, target: Any) -> None:
    s.call(target, s.positive(*s.sizes(2)))


@case("aten.hardswish_backward.default", "S0 S0 -> S0, P R -> P")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.hardswish_backward.default, s.tensor(a), s.tensor(a))


@case("aten.floor_divide.default", "S0 R -> S0, S1 S0 -> S1")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.floor_divide.default, s.tensor(a, b), s.positive(b))


@case("aten.floor_divide.Scalar", "S0 -> S0")
def _(s: Sketch) -> None:
    s.call(aten.floor_divide.Scalar, s.tensor(*s.sizes(1)), 0.4)


@cases("complex polar", "S0 R -> S0, S1 S0 -> S1")
def _(s: Sketch, target: Any) -> None:
    a, b = s.sizes(2)
    s.call(target, s.positive(a, b), s.positive(b))


@case("aten._to_copy.default", "S0 -> S0")  # summands of small integers wrap round
def _(s: Sketch) -> None:
    s.call(aten._to_copy.default, s.tensor(*s.sizes(1), dtype=torch.uint8), dtype=torch.float64)


@cases("real imag _conj", "S0 -> S0, P -> P")
def _(s: Sketch, target: Any) -> None:
    s.call(target, s.tensor(*s.sizes(1), dtype=torch.complex128))


@cases({"add.Tensor": (1.5,), "sub.Tensor": (1.5,)}, "S0 -> S0, S1 -> S1")
def _(s: Sketch, target: Any, number: float) -> None:
    # a number is added once, not once per device
    s.call(target, s.tensor(*s.sizes(2)), number)


@cases("add.Tensor sub.Tensor rsub.Tensor", "S0 R -> S0, S1 S0 -> S1, P P -> P")
def _(s: Sketch, target: Any) -> None:
    a, b = s.sizes(2)
    s.call(target, s.tensor(a, b), s.tensor(b), alpha=3)


@cases("add.Tensor sub.Tensor", "S0 R -> S0, P P -> P")
def _(s: Sketch, target: Any) -> None:
    s.call(target, s.tensor(*s.sizes(1)), s.tensor())


@case("aten.mul.Tensor", "S0 R -> S0, S1 S0 -> S1, P R -> P, R P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.mul.Tensor, s.tensor(a, b), s.tensor(b))


@case("aten.mul.Tensor", "S0 S0 -> S0, P R -> P, R P -> P")
def _(s: Sketch) -> None:
    x = s.tensor(*s.sizes(1))
    s.call(aten.mul.Tensor, x, x)


@case("aten.mul.Tensor", "S0 S0 -> S0, P R -> P")  # no partial of a mask
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.mul.Tensor, s.tensor(a), s.tensor(a, dtype=torch.bool))


@case("aten.mul.Tensor", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.mul.Tensor, s.tensor(*s.sizes(1)), 2.5)


@case("aten.mul.Scalar", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.mul.Scalar, s.tensor(*s.sizes(1)), 2.5)


@cases("div.Tensor true_divide.Tensor ldexp.Tensor", "S0 R -> S0, S1 S0 -> S1, P R -> P")
def _(s: Sketch, target: Any) -> None:
    a, b = s.sizes(2)
    s.call(target, s.tensor(a, b), s.positive(b))


@case("aten.div.Tensor", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.div.Tensor, s.tensor(*s.sizes(1)), 2.5)


@case("aten.div.Scalar", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.div.Scalar, s.tensor(*s.sizes(1)), 2.5)


@case("aten.div.Tensor_mode", "S0 S0 -> S0")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.div.Tensor_mode, s.tensor(a), s.positive(a), rounding_mode="floor")


@case("aten.div.Tensor_mode", "S0 S0 -> S0, P R -> P")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.div.Tensor_mode, s.tensor(a), s.positive(a), rounding_mode=None)


@case("aten.div.Scalar_mode", "S0 -> S0")
def _(s: Sketch) -> None:
    s.call(aten.div.Scalar_mode, s.tensor(*s.sizes(1)), 0.3, rounding_mode="trunc")


@case("aten._to_copy.default", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten._to_copy.default, s.tensor(*s.sizes(1)), dtype=torch.float64)


@cases({"_to_copy": (torch.complex128,)}, "S0 -> S0, P -> P")
@cases({"_to_copy": (torch.complex64,)}, "S0 -> S0")
def _(s: Sketch, target: Any, dtype: torch.dtype) -> None:
    # a number of 64 bits beside two of 64, or of 32
    s.call(target, s.tensor(*s.sizes(1)), dtype=dtype)


@case("aten._to_copy.default", "S0 -> S0")  # as many bytes, fewer digits
def _(s: Sketch) -> None:
    s.call(aten._to_copy.default, s.tensor(*s.sizes(1), dtype=torch.float16), dtype=torch.bfloat16)


@case("aten.sum.dim_IntList", "S0 -> P, S1 -> S0")  # truncated before they are summed; a summand's would not add up
def _(s: Sketch) -> None:
    s.call(aten.sum.dim_IntList, s.call(aten.mul.Scalar, s.tensor(*s.sizes(2)), 3), [0], dtype=torch.int64)


@case("aten.sum.dim_IntList", "S1 -> S0")  # rounded once
def _(s: Sketch) -> None:
    s.call(aten.sum.dim_IntList, s.tensor(*s.sizes(2)), [0], dtype=torch.float32)


# Each summand would be rounded, or truncated.
@cases({"_to_copy": (torch.float32,)}, "S0 -> S0")
@cases({"_to_copy": (torch.int64,)}, "S0 -> S0")
@cases({"_to_copy": (torch.bool,)}, "S0 -> S0")
def _(s: Sketch, target: Any, dtype: torch.dtype) -> None:
    s.call(target, s.tensor(*s.sizes(1)), dtype=dtype)


@case("aten._to_copy.default", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten._to_copy.default, s.tensor(*s.sizes(1), dtype=torch.float32), dtype=torch.float64)


@case("aten._to_copy.default", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten._to_copy.default, s.tensor(*s.sizes(1), dtype=torch.int64), dtype=torch.float64)


@case("aten.copy.default", "S0 R -> S0, S1 S0 -> S1, R P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.copy.default, s.tensor(a, b), s.tensor(b))


@case("aten.where.self", "S0 S0 R -> S0, R S1 S0 -> S1, R P P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.where.self, s.tensor(a, 1, dtype=torch.bool), s.tensor(a, b), s.tensor(b))


@case("aten.where.self", "S0 S0 R -> S0, R P P -> P")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(
        aten.where.self,
        s.tensor(a, dtype=torch.bool),
        s.tensor(a),
        s.constant(torch.tensor(float("-inf"), dtype=torch.float64)),
    )


@case("aten.where.ScalarOther", "S0 S0 -> S0, R P -> P")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.where.ScalarOther, s.tensor(a, dtype=torch.bool), s.tensor(a), 0.0)


@case("aten.where.ScalarOther", "S0 S0 -> S0")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.where.ScalarOther, s.tensor(a, dtype=torch.bool), s.tensor(a), 1.0)


@case("aten.where.ScalarSelf", "S0 S0 -> S0, R P -> P")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.where.ScalarSelf, s.tensor(a, dtype=torch.bool), 0.0, s.tensor(a))


@case("aten.masked_fill.Scalar", "S0 S0 -> S0, P R -> P")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.masked_fill.Scalar, s.tensor(a), s.tensor(a, dtype=torch.bool), 0)


@case("aten.masked_fill.Scalar", "S0 R -> S0, S1 S0 -> S1")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.masked_fill.Scalar, s.tensor(a, b), s.tensor(b, dtype=torch.bool), float("-inf"))


@case("aten.masked_fill.Tensor", "S0 S0 R -> S0, P R P -> P")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.masked_fill.Tensor, s.tensor(a), s.tensor(a, dtype=torch.bool), s.tensor())


@case("aten.lerp.Tensor", "S0 S0 S0 -> S0, P P R -> P")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.lerp.Tensor, s.tensor(a), s.tensor(a), s.tensor(a))


@case("aten.lerp.Scalar", "S0 S0 -> S0, P P -> P")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.lerp.Scalar, s.tensor(a), s.tensor(a), 0.3)


@case("aten.fake_quantize_per_tensor_affine_cachemask.default", "S0 -> S0 S0, S1 -> S1 S1")
def _(s: Sketch) -> None:
    s.call(aten.fake_quantize_per_tensor_affine_cachemask.default, s.tensor(*s.sizes(2)), 0.3, 1, -4, 5)


@case("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default", "S0 R R R -> S0 S0, S1 R R R -> S1 S1")
def _(s: Sketch) -> None:
    s.call(
        aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default,
        s.tensor(*s.sizes(2), dtype=torch.float32), s.constant(torch.tensor([0.3])),
        s.integers(3, 1, dtype=torch.int32), s.integers(2, 1), -4, 5,
    )  # fmt: skip


@case(
    "aten.fake_quantize_per_channel_affine_cachemask.default",
    "S0 R R -> S0 S0, S1 S0 S0 -> S1 S1, S2 R R -> S2 S2",
)
def _(s: Sketch) -> None:
    a, c, b = s.sizes(3)
    scales = s.constant(torch.rand(c, generator=s.generator) + 0.1)
    s.call(
        aten.fake_quantize_per_channel_affine_cachemask.default, s.tensor(a, c, b, dtype=torch.float32), scales,
        s.integers(3, c, dtype=torch.int32), 1, -4, 5,
    )  # fmt: skip


@cases("addcmul addcdiv", "S0 S0 S0 -> S0, P P R -> P")
def _(s: Sketch, target: Any) -> None:
    (a,) = s.sizes(1)
    s.call(target, s.tensor(a), s.tensor(a), s.positive(a), value=0.5)

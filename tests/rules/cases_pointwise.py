"""Cases of the pointwise rules. What is linear is said here once more, apart from the table."""

from __future__ import annotations

from typing import Any

import torch

from tests.rules.sketch import Sketch, case, cases

aten = torch.ops.aten


@cases(
    """
    abs acos angle asin asinh atan atanh ceil cos cosh digamma erf erfc erfinv exp exp2 expm1 floor frac gelu
    hardsigmoid hardswish hardtanh elu leaky_relu isfinite isinf isnan lgamma log log10 log1p log2 logical_not logit
    mish reciprocal relu relu6 round rsqrt selu sgn sigmoid sign silu sin sinh sqrt tan tanh trunc softplus square sinc
    i0 log_sigmoid celu softshrink hardshrink nan_to_num
    """,
    "S0 -> S0, S1 -> S1",
)
def _(s: Sketch, target: Any) -> None:
    s.call(target, s.positive(*s.sizes(2)))


@case("aten.acosh.default", "S0 -> S0")
def _(s: Sketch) -> None:
    s.call(aten.acosh.default, s.positive(*s.sizes(1), above=1.1, below=2.0))


@case("aten.bitwise_not.default", "S0 -> S0")
def _(s: Sketch) -> None:
    s.call(aten.bitwise_not.default, s.tensor(*s.sizes(1), dtype=torch.int64))


@cases("neg clone positive conj _conj_physical real alias detach lift_fresh_copy", "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch, target: Any) -> None:
    s.call(target, s.tensor(*s.sizes(2)))


# [a, b, c] with [b, 1]: broadcast to the right, and along a dimension of size one
@cases(
    """
    eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor
    bitwise_left_shift.Tensor bitwise_right_shift.Tensor gcd lcm
    """,
    "S0 R -> S0, S1 S0 -> S1, S2 R -> S2",
)
def _(s: Sketch, target: Any) -> None:
    a, b, c = s.sizes(3)
    s.call(target, s.integers(6, a, b, c), s.integers(3, b, 1))


@cases(
    """
    atan2 copysign.Tensor floor_divide fmax fmin fmod.Tensor hypot logical_and logical_or logical_xor maximum minimum
    pow.Tensor_Tensor remainder.Tensor xlogy.Tensor logaddexp logaddexp2 nextafter heaviside
    """,
    "S0 R -> S0, S1 S0 -> S1, S2 R -> S2",
)
def _(s: Sketch, target: Any) -> None:
    a, b, c = s.sizes(3)
    s.call(target, s.positive(a, b, c, above=0.3), s.positive(b, 1, above=0.3))


@cases(
    {
        "gelu_backward": (), "hardsigmoid_backward": (), "hardswish_backward": (), "hardtanh_backward": (-1.0, 1.0),
        "leaky_relu_backward": (0.1, False), "logit_backward": (), "mish_backward": (), "sigmoid_backward": (),
        "silu_backward": (), "softplus_backward": (1.0, 20.0), "tanh_backward": (), "threshold_backward": (0.0,),
        "softshrink_backward": (0.5,), "hardshrink_backward": (0.5,),
    },
    "S0 S0 -> S0, S1 S1 -> S1, P R -> P",
)  # fmt: skip
def _(s: Sketch, target: Any, *arguments: Any) -> None:
    a, b = s.sizes(2)
    s.call(target, s.tensor(a, b), s.positive(a, b), *arguments)


@case("aten.elu_backward.default", "S0 S0 -> S0, P R -> P")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.elu_backward.default, s.tensor(a), 1.0, 1.0, 1.0, False, s.tensor(a))


@cases(
    {
        "eq.Scalar": (2,), "ne.Scalar": (2,), "lt.Scalar": (2,), "le.Scalar": (2,), "gt.Scalar": (2,),
        "ge.Scalar": (2,),
        "bitwise_and.Scalar": (3,), "bitwise_or.Scalar": (3,), "bitwise_xor.Scalar": (3,),
        "bitwise_left_shift.Tensor_Scalar": (1,), "bitwise_right_shift.Tensor_Scalar": (1,),
    },
    "S0 -> S0",
)  # fmt: skip
def _(s: Sketch, target: Any, number: int) -> None:
    s.call(target, s.tensor(*s.sizes(1), dtype=torch.int64), number)


@cases(
    {
        "pow.Tensor_Scalar": (2,), "fmod.Scalar": (0.4,), "remainder.Scalar": (0.4,), "floor_divide.Scalar": (0.4,),
        "rsub.Scalar": (1.0,), "copysign.Scalar": (-1.0,), "xlogy.Scalar_Other": (2.0,), "add.Scalar": (1.5,),
        "sub.Scalar": (1.5,), "threshold": (0.5, 0.1), "clamp": (0.2, 0.6), "clamp_min": (0.4,), "clamp_max": (0.4,),
        "add.Tensor": (1.5,), "sub.Tensor": (1.5,),
    },
    "S0 -> S0, S1 -> S1",
)  # fmt: skip
def _(s: Sketch, target: Any, *arguments: Any) -> None:
    # a number is added once, not once per device
    s.call(target, s.positive(*s.sizes(2)), *arguments)


@cases("pow.Scalar remainder.Scalar_Tensor xlogy.Scalar_Self", "S0 -> S0")
def _(s: Sketch, target: Any) -> None:
    s.call(target, 1.7, s.positive(*s.sizes(1)))


@cases("add.Tensor sub.Tensor", "S0 R -> S0, S1 S0 -> S1, P P -> P")
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


@case("aten.div.Tensor", "S0 R -> S0, S1 S0 -> S1, P R -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.div.Tensor, s.tensor(a, b), s.positive(b))


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


@cases("clamp_min.Tensor clamp_max.Tensor", "S0 R -> S0, S1 S0 -> S1")
def _(s: Sketch, target: Any) -> None:
    a, b = s.sizes(2)
    s.call(target, s.tensor(a, b), s.tensor(b))


@case("aten.clamp.Tensor", "S0 S0 -> S0")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.clamp.Tensor, s.tensor(a), None, s.tensor(a))


@case("aten.lerp.Tensor", "S0 S0 S0 -> S0, P P R -> P")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.lerp.Tensor, s.tensor(a), s.tensor(a), s.tensor(a))


@case("aten.lerp.Scalar", "S0 S0 -> S0, P P -> P")
def _(s: Sketch) -> None:
    (a,) = s.sizes(1)
    s.call(aten.lerp.Scalar, s.tensor(a), s.tensor(a), 0.3)


@cases("addcmul addcdiv", "S0 S0 S0 -> S0, P P R -> P")
def _(s: Sketch, target: Any) -> None:
    (a,) = s.sizes(1)
    s.call(target, s.tensor(a), s.tensor(a), s.positive(a), value=0.5)

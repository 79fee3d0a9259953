"""Element by element, with broadcasting."""

from __future__ import annotations

from hap.rules.call import Call, Rule, Table, is_tensor

_ONE = "... -> *d"
_ONE_LINEAR = "~... -> *d"
_TWO = "..., ... -> *d"
_TWO_ADDITIVE = "+..., +... -> *d"
_TWO_FIRST_LINEAR = "~..., ... -> *d"


def _additive(call: Call) -> str:
    """Adding a number is not linear: the number would be added once per device."""
    return _TWO_ADDITIVE if len(call.operands) == 2 else _ONE


def _product(call: Call) -> str:
    return "~..., ~... -> *d" if len(call.operands) == 2 else _ONE_LINEAR


def _quotient(call: Call) -> str:
    """Linear in the dividend, unless the quotient is rounded."""
    if call.arguments.get("rounding_mode") is not None:
        return _TWO if len(call.operands) == 2 else _ONE
    return _TWO_FIRST_LINEAR if len(call.operands) == 2 else _ONE_LINEAR


def _each(call: Call) -> str:
    """Linear in none, whatever arguments are tensors."""
    return ", ".join(["..."] * len(call.operands)) + " -> *d"


def _filled(call: Call) -> str:
    """Filling with zeros is linear, with another number it is not."""
    return "~..., ... -> *d" if call["value"] == 0 else _TWO


def _chosen(call: Call) -> str:
    """``where`` with a number in one place: linear in the tensor in the other where that number is zero."""
    number = call["other"] if is_tensor(call["self"]) else call["self"]
    return "..., ~... -> *d" if number == 0 else _TWO


_UNARY = """
    abs acos acosh angle asin asinh atan atanh bitwise_not ceil cos cosh digamma erf erfc erfinv exp exp2 expm1 floor
    frac gelu hardsigmoid hardswish hardtanh elu leaky_relu isfinite isinf isnan lgamma log log10 log1p log2
    logical_not logit mish reciprocal relu relu6 round rsqrt selu sgn sigmoid sign silu sin sinh sqrt tan tanh trunc
    softplus clamp clamp_min clamp_max square sinc i0 log_sigmoid celu softshrink hardshrink nan_to_num
"""
_UNARY_LINEAR = "neg clone positive conj _conj_physical real alias detach lift_fresh_copy"
_COMPARISONS = "eq ne lt le gt ge"
_BINARY = """
    atan2 bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor bitwise_left_shift.Tensor bitwise_right_shift.Tensor
    copysign.Tensor floor_divide fmax fmin fmod.Tensor hypot logical_and logical_or logical_xor maximum minimum
    pow.Tensor_Tensor remainder.Tensor xlogy.Tensor logaddexp logaddexp2 nextafter heaviside gcd lcm
"""
_BINARY_SCALAR = """
    bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar pow.Tensor_Scalar pow.Scalar fmod.Scalar remainder.Scalar
    remainder.Scalar_Tensor floor_divide.Scalar rsub.Scalar copysign.Scalar xlogy.Scalar_Other xlogy.Scalar_Self
    bitwise_left_shift.Tensor_Scalar bitwise_right_shift.Tensor_Scalar
"""
_LINEAR_IN_GRADIENT = """
    elu_backward gelu_backward hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward
    logit_backward mish_backward sigmoid_backward silu_backward softplus_backward tanh_backward threshold_backward
    softshrink_backward hardshrink_backward
"""


def _overload(name: str) -> str:
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


RULES: Table = {
    **{_overload(name): Rule(_ONE) for name in _UNARY.split()},
    **{_overload(name): Rule(_ONE_LINEAR) for name in _UNARY_LINEAR.split()},
    **{f"aten.{name}.Tensor": Rule(_each) for name in _COMPARISONS.split()},
    **{f"aten.{name}.Scalar": Rule(_ONE) for name in _COMPARISONS.split()},
    **{_overload(name): Rule(_each) for name in _BINARY.split()},
    **{_overload(name): Rule(_ONE) for name in _BINARY_SCALAR.split()},
    **{_overload(name): Rule(_TWO_FIRST_LINEAR) for name in _LINEAR_IN_GRADIENT.split()},
    "aten._to_copy.default": Rule(_ONE_LINEAR),
    "aten.copy.default": Rule("..., ~... -> *d"),
    "aten.add.Tensor": Rule(_additive),
    "aten.sub.Tensor": Rule(_additive),
    "aten.add.Scalar": Rule(_ONE),
    "aten.sub.Scalar": Rule(_ONE),
    "aten.mul.Tensor": Rule(_product),
    "aten.mul.Scalar": Rule(_ONE_LINEAR),
    "aten.div.Tensor": Rule(_quotient),
    "aten.div.Scalar": Rule(_ONE_LINEAR),
    "aten.div.Tensor_mode": Rule(_quotient),
    "aten.div.Scalar_mode": Rule(_quotient),
    "aten.where.self": Rule("..., +..., +... -> *d"),
    "aten.where.ScalarOther": Rule(_chosen),
    "aten.where.ScalarSelf": Rule(_chosen),
    "aten.masked_fill.Scalar": Rule(_filled),
    "aten.masked_fill.Tensor": Rule("+..., ..., +... -> *d"),
    "aten.clamp.Tensor": Rule(_each),
    "aten.clamp_min.Tensor": Rule(_each),
    "aten.clamp_max.Tensor": Rule(_each),
    "aten.threshold.default": Rule(_ONE),
    "aten.lerp.Tensor": Rule("+..., +..., ... -> *d"),
    "aten.lerp.Scalar": Rule(_TWO_ADDITIVE),
    "aten.addcmul.default": Rule("+..., ~..., ... -> *d"),
    "aten.addcdiv.default": Rule("+..., ~..., ... -> *d"),
}

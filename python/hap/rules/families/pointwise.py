"""Element by element, with broadcasting.

PyTorch tags its pointwise operators (:data:`torch.Tag.pointwise`). Every functional overload with that tag has a rule,
made when it is asked for: all tensors broadcast, and nothing is linear but what the table below says. The backward of
a pointwise operator is linear in its first operand, the gradient.
"""

from __future__ import annotations

from functools import cache, partial

import torch

from hap.rules.call import Call, Local, Lowered, Rule, Table, is_tensor
from hap.rules.families.reduction import along_dim

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
    operands = ", ".join(["..."] * len(call.operands))
    return f"{operands} -> {', '.join(['*d'] * len(call.results))}"


def _gradient(call: Call) -> str:
    """Linear in the first operand."""
    return "~" + _each(call)


def _filled(call: Call) -> str:
    """Filling with zeros is linear, with another number it is not."""
    return "~..., ... -> *d" if call["value"] == 0 else _TWO


def _chosen(call: Call) -> str:
    """``where`` with a number in one place: linear in the tensor in the other where that number is zero."""
    number = call["other"] if is_tensor(call["self"]) else call["self"]
    return "..., ~... -> *d" if number == 0 else _TWO


def _in_memory(target: torch._ops.OpOverload, call: Call, local: Local) -> Lowered:
    """Another operator for one that only marks its operand, which collectives would send as it lies in memory."""
    return target, {}


_LINEAR = """
    neg clone positive _conj_physical conj_physical real imag alias detach lift_fresh_copy deg2rad rad2deg _to_copy
    mul.Scalar div.Scalar
"""
_UNTAGGED = "hardswish log_sigmoid floor_divide floor_divide.Scalar complex polar"


def _overload(name: str) -> str:
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


RULES: Table = {
    **{_overload(name): Rule(_ONE_LINEAR) for name in _LINEAR.split()},
    **{_overload(name): Rule(_each) for name in _UNTAGGED.split()},
    "aten.conj.default": Rule(_ONE_LINEAR, lower=partial(_in_memory, torch.ops.aten.conj_physical.default)),
    "aten._conj.default": Rule(_ONE_LINEAR, lower=partial(_in_memory, torch.ops.aten.conj_physical.default)),
    "aten._neg_view.default": Rule(_ONE_LINEAR, lower=partial(_in_memory, torch.ops.aten.neg.default)),
    "aten.copy.default": Rule("..., ~... -> *d"),
    "aten.add.Tensor": Rule(_additive),
    "aten.sub.Tensor": Rule(_additive),
    "aten.rsub.Tensor": Rule(_additive),
    "aten.mul.Tensor": Rule(_product),
    "aten.div.Tensor": Rule(_quotient),
    "aten.true_divide.Tensor": Rule(_quotient),
    "aten.div.Tensor_mode": Rule(_quotient),
    "aten.div.Scalar_mode": Rule(_quotient),
    "aten.ldexp.Tensor": Rule(_TWO_FIRST_LINEAR),
    "aten.where.self": Rule("..., +..., +... -> *d"),
    "aten.where.ScalarOther": Rule(_chosen),
    "aten.where.ScalarSelf": Rule(_chosen),
    "aten.masked_fill.Scalar": Rule(_filled),
    "aten.masked_fill.Tensor": Rule("+..., ..., +... -> *d"),
    "aten.lerp.Tensor": Rule("+..., +..., ... -> *d"),
    "aten.lerp.Scalar": Rule(_TWO_ADDITIVE),
    "aten.addcmul.default": Rule("+..., ~..., ... -> *d"),
    "aten.addcdiv.default": Rule("+..., ~..., ... -> *d"),
    "aten.hardswish_backward.default": Rule(_gradient),
    "aten.fake_quantize_per_tensor_affine_cachemask.default": Rule("*d -> *d, *d"),
    "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": Rule("*d, *s!, *z!, *e! -> *d, *d"),
    "aten.fake_quantize_per_channel_affine_cachemask.default": Rule(
        "*a c *b, c, c -> *a c *b, *a c *b", runs=partial(along_dim, name="axis")
    ),
}


@cache
def generated(target: torch._ops.OpOverload) -> Rule | None:
    """The rule that follows from PyTorch's tags; ``None`` where they say nothing of an overload."""
    schema = target._schema
    if target.namespace != "aten" or not _functional(schema) or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    tagged = torch.Tag.pointwise in target.tags
    name = schema.name.removeprefix("aten::")
    if name.endswith("_backward") and (tagged or _tagged_packet(name.removesuffix("_backward"))):
        return Rule(_gradient)
    return Rule(_each) if tagged else None


def _functional(schema: torch._C.FunctionSchema) -> bool:
    """Whether it takes at least one tensor, no list of them, and makes new tensors from them."""
    kinds = [str(argument.type) for argument in schema.arguments]
    return (
        "Tensor" in kinds
        and all(kind in ("Tensor", "Optional[Tensor]") for kind in kinds if "Tensor" in kind)
        and not any(argument.alias_info for argument in schema.arguments)
        and all(str(result.type) == "Tensor" for result in schema.returns)
    )


def _tagged_packet(name: str) -> bool:
    """Whether PyTorch tags an overload of this operator as pointwise."""
    packet = getattr(torch.ops.aten, name, None)
    return packet is not None and any(
        torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads()
    )


@cache
def every_generated() -> Table:
    """All generated rules of overloads without a line of their own, by name. Looks at all of ATen's overloads."""
    found: Table = {}
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace != "aten" or not hasattr(torch.ops.aten, packet):
            continue
        target = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        if target is None or str(target) in RULES:
            continue
        rule = generated(target)
        if rule is not None:
            found[str(target)] = rule
    return found

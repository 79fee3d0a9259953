"""FLOPs of an operator on one device, the bytes that it touches, and the element type that decides its speed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from hap.graph import Graph, Ref
from hap.rules.binding import Bound
from hap.rules.call import Call, Rule
from hap.rules.families import rule_of


def formula(target: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """The FLOP formula of an operator: its rule's, or PyTorch's (:mod:`torch.utils.flop_counter`), if there is one."""
    rule = rule_of(target)
    if rule is not None and rule.flops is not None:
        return rule.flops
    found = flop_registry.get(target.overloadpacket) or flop_registry.get(target)
    return found if callable(found) else None


# Families of operators that devices are measured for (hap.cluster.FAMILIES), by their targets' names; the first counts.
_FAMILIES = {
    "attention_backward": r"hap\.sdpa_backward|aten\._?(scaled_dot_product|flash|efficient)\w*attention\w*backward",
    "attention": r"hap\.sdpa|aten\._?(scaled_dot_product|flash|efficient)\w*attention",
    "convolution_backward": r"aten\.\w*convolution\w*backward",
    "convolution": r"aten\.\w*convolution",
    "copy": r"aten\.(\w+_copy|clone|constant_pad_nd|flip|roll|repeat)\b",
    "indexing": r"aten\.(embedding|gather|index|scatter)",
    "matmul": r"aten\.(mm|bmm|addmm|baddbmm|matmul|linear)\b",
    "normalisation": r"aten\.(_?(log_)?softmax|_(log_)?softmax_backward_data|native_(layer|group|batch)_norm)",
    "pooling_backward": r"aten\.\w*pool\w*backward",
    "pooling": r"aten\.\w*pool\w*",
    "transcendental_backward": r"aten\.(gelu|silu|mish|elu|softplus|log_sigmoid)_b\w+\.",
    "transcendental": r"aten\.(gelu|silu|mish|elu|softplus|tanh|(log_)?sigmoid|erf|expm?1?|log(1p)?|sin|cos)\.",
}
_PATTERNS = {family: re.compile(pattern) for family, pattern in _FAMILIES.items()}


def family(target: torch._ops.OpOverload) -> str | None:
    """The family that an operator's speed is measured in, such as ``"matmul"``; ``None`` for what memory bounds."""
    name = str(target)
    return next((family for family, pattern in _PATTERNS.items() if pattern.match(name)), None)


def contracts(bound: Bound) -> bool:
    """Whether an operator does more work than to touch its elements: contractions, convolutions, attention.

    It has a FLOP formula, and sums over a letter of its numbers.
    """
    if formula(bound.call.operator.target) is None:
        return False
    operands = [bound.call.operands[place] for place in bound.call.order]
    return any(
        letter not in result
        for tensor, letters in zip(operands, bound.operands, strict=True)
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex
        for group in letters.groups
        for letter in group
        for result in bound.results
        if result is not None
    )


def flops(graph: Graph, call: Call, rule: Rule | None) -> float:
    """Floating-point operations of a call: PyTorch's formula, else one for each element touched; none for views."""
    if rule is not None and rule.layout:
        return 0.0
    function = formula(call.operator.target)
    if function is not None:
        named = dict(zip(call.signature.names, call.operator.args, strict=False))
        if "output_mask" in named:  # the formula asks for the shape of every result that the mask names
            exist = [t is not None for t in call.results]
            named["output_mask"] = [a and b for a, b in zip(named["output_mask"], exist, strict=True)]
        args, kwargs = (_shapes(graph, value) for value in (tuple(named.values()), call.operator.kwargs))
        results = [None if t is None else t.shape for t in call.results]
        out = tuple(results) if call.signature.sequence else results[0]
        return float(function(*args, **kwargs, out_val=out))
    operands, results_touched = touched(call, rule)
    tensors = [*call.operands, *call.results]
    counts = [
        amount / tensor.dtype.itemsize
        for amount, tensor in zip([*operands, *results_touched], tensors, strict=True)
        if tensor is not None
    ]
    return max(counts, default=0.0)


def _shapes(graph: Graph, value: Any) -> Any:
    """Arguments with the shape of a tensor in its place, as the formulas take them."""
    if isinstance(value, Ref):
        return torch.Size(graph.tensors[value.tensor].shape)
    if isinstance(value, (list, tuple)):
        return type(value)(_shapes(graph, item) for item in value)
    if isinstance(value, dict):
        return {name: _shapes(graph, item) for name, item in value.items()}
    return value


def touched(call: Call, rule: Rule | None) -> tuple[list[float], list[float]]:
    """Bytes touched of each operand (in the order of the schema) and of each result."""
    if rule is not None and rule.layout:
        return [0.0] * len(call.operands), [0.0] * len(call.results)
    if rule is not None and rule.touched is not None:
        return rule.touched(call)
    return [float(t.bytes) for t in call.operands], [0.0 if t is None else float(t.bytes) for t in call.results]


def speed_dtype(call: Call) -> torch.dtype:
    """The element type that decides a device's speed: the operands' where products dominate, else the result's."""
    if formula(call.operator.target) is not None:
        for tensor in call.operands:
            if tensor.dtype.is_floating_point:
                return tensor.dtype
    result = call.first_result
    return result.dtype if result is not None else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    """PyTorch's name of an element type, ``float32``."""
    return str(dtype).removeprefix("torch.")

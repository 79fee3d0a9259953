"""Tensors made from nothing, or from the shape of another."""

from __future__ import annotations

from hap.rules.call import Call, Rule, Table


def _new(call: Call) -> str:
    """Only the type and device of the first tensor matter; its letters are its own."""
    operand = " ".join(f"s{i}!" for i in range(len(call.shape()))) or "."
    return f"{operand} -> *d size size=result"


def _fill(call: Call) -> str:
    """``fill``: the values of the first tensor do not matter, a tensor that is filled in is linear."""
    return "..., ~... -> *d" if len(call.operands) == 2 else "... -> *d"


RULES: Table = {
    "aten.full.default": Rule("-> *d size size=result"),
    "aten.zeros.default": Rule("-> *d size size=result"),
    "aten.ones.default": Rule("-> *d size size=result"),
    "aten.scalar_tensor.default": Rule("-> *d"),
    "aten.arange.default": Rule("-> *d", whole=True),
    "aten.arange.start": Rule("-> *d", whole=True),
    "aten.arange.start_step": Rule("-> *d", whole=True),
    "aten.linspace.default": Rule("-> *d", whole=True),
    "aten.eye.default": Rule("-> *d", whole=True),
    "aten.eye.m": Rule("-> *d", whole=True),
    "aten.tril_indices.default": Rule("-> *d", whole=True),
    "aten.triu_indices.default": Rule("-> *d", whole=True),
    "aten.full_like.default": Rule("... -> *d"),
    "aten.zeros_like.default": Rule("... -> *d"),
    "aten.ones_like.default": Rule("... -> *d"),
    "aten.new_full.default": Rule(_new),
    "aten.new_zeros.default": Rule(_new),
    "aten.new_ones.default": Rule(_new),
    "aten.fill.Scalar": Rule(_fill),
    "aten.fill.Tensor": Rule(_fill),
}

"""Operators that rename or repeat indices."""

from __future__ import annotations

import torch

from hap.rules.call import Call, Local, Lowered, Rule, Table


def _reshape(call: Call, local: Local) -> Lowered:
    """Some local strides cannot be viewed; the full local shape, because ``-1`` is ambiguous where a size is zero."""
    return torch.ops.aten.reshape.default, {}


def _permute(call: Call) -> str:
    rank = len(call.shape())
    operand = [f"d{i}" for i in range(rank)]
    result = [operand[d % rank] for d in call["dims"]] if rank else []
    return f"~{' '.join(operand) or '.'} -> {' '.join(result) or '.'}"


def _transpose(call: Call) -> str:
    rank = len(call.shape())
    # t swaps the two dimensions of a matrix
    swapped = [call["dim0"], call["dim1"]] if "dim0" in call.arguments else [0, -1]
    operand = [f"d{i}" for i in range(rank)]
    result = list(operand)
    if rank:
        a, b = (d % rank for d in swapped)
        result[a], result[b] = result[b], result[a]
    return f"~{' '.join(operand) or '.'} -> {' '.join(result) or '.'}"


def _squeezed(call: Call) -> list[int]:
    """The dimensions that are taken away: only those that have size one on one device."""
    asked = call.dims() if "dim" in call.arguments else list(range(len(call.shape())))
    return [d for d in asked if call.shape() and call.shape()[d] == 1]


def _squeeze(call: Call) -> str:
    taken = _squeezed(call)
    operand = ["_" if i in taken else f"d{i}" for i in range(len(call.shape()))]
    return f"~{' '.join(operand) or '.'} -> {' '.join(d for d in operand if d != '_') or '.'}"


def squeeze_local(call: Call, local: Local) -> Lowered:
    """Named dimensions: another one may have size one on this rank."""
    return torch.ops.aten.squeeze.dims, {"dim": _squeezed(call)}


def _unsqueeze(call: Call) -> str:
    rank = len(call.shape())
    operand = [f"d{i}" for i in range(rank)]
    result = list(operand)
    result.insert(call.dim(rank=rank + 1), "_")
    return f"~{' '.join(operand) or '.'} -> {' '.join(result)}"


def _repeat(call: Call) -> tuple[str, dict[str, int]]:
    repeats, shape = call["repeats"], call.shape()
    new = len(repeats) - len(shape)
    result, sizes = [], {}
    for i, count in enumerate(repeats):
        if i < new:
            result.append(f"r{i}")
        else:
            result.append(f"(r{i} d{i - new})")
        sizes[f"r{i}"] = count
    operand = " ".join(f"d{i}" for i in range(len(shape))) or "."
    return f"~{operand} -> {' '.join(result) or '.'}", sizes


def _repeat_local(call: Call, local: Local) -> Lowered:
    return call.operator.target, {"repeats": [local.size(f"r{i}") for i in range(len(call["repeats"]))]}


def _flip(call: Call) -> str:
    rank = len(call.shape())
    moved = {d % max(rank, 1) for d in call["dims"]}
    if not moved and "shifts" in call.arguments:
        moved = set(range(rank))  # roll without dims runs over the flattened tensor
    dims = " ".join(f"d{i}!" if i in moved else f"d{i}" for i in range(len(call.shape()))) or "."
    return f"~{dims} -> {dims}"


_VIEW = "~[x] -> [x] size {argument}=result"

RULES: Table = {
    "aten.view.default": Rule(_VIEW.format(argument="size"), layout=True, lower=_reshape, sums=True),
    "aten._unsafe_view.default": Rule(_VIEW.format(argument="size"), layout=True, lower=_reshape, sums=True),
    "aten.reshape.default": Rule(_VIEW.format(argument="shape"), layout=True, lower=_reshape, sums=True),
    "aten.permute.default": Rule(_permute, layout=True),
    "aten.transpose.int": Rule(_transpose, layout=True),
    "aten.t.default": Rule(_transpose, layout=True),
    "aten.squeeze.default": Rule(_squeeze, layout=True, lower=squeeze_local, sums=True),
    "aten.squeeze.dim": Rule(_squeeze, layout=True, lower=squeeze_local, sums=True),
    "aten.squeeze.dims": Rule(_squeeze, layout=True, lower=squeeze_local, sums=True),
    "aten.unsqueeze.default": Rule(_unsqueeze, layout=True),
    "aten.expand.default": Rule("~... -> *d size size=result", layout=True),
    "aten.repeat.default": Rule(_repeat, lower=_repeat_local),
    "aten.flip.default": Rule(_flip),
    "aten.roll.default": Rule(_flip),
}

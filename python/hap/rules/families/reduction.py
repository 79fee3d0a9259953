"""Reductions over dimensions, and operators along one dimension."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from hap.rules.call import Call, Rule, Table


def reduction(call: Call, mark: str, block: bool, composite: str = "") -> str:
    """Each dimension a letter; the reduced ones are gone, or of size one, in every result.

    ``composite``: what crosses each of the reduced ones (of the flattened tensor's positions, only the first).
    """
    reduced = set(call.dims()) if "dim" in call.arguments else set(range(len(call.shape())))
    keep = bool(call.arguments.get("keepdim", False))
    operand, result = [], []
    for i in range(len(call.shape())):
        operand.append(f"d{i}!" if block and i in reduced else f"d{i}")
        if i not in reduced:
            result.append(f"d{i}")
        elif keep:
            result.append("_")
    patterns = [" ".join(result) or "."] * len(call.results)
    crossed = sorted(reduced)[: 1 if composite in ("argmax", "argmin") else None] if composite else []
    clause = f" composite {', '.join(f'd{i}={composite}' for i in crossed)}" if crossed and operand else ""
    return f"{mark}{' '.join(operand) or '.'} -> {', '.join(patterns)}{clause}"


def _sum(call: Call) -> str:
    """May be shared along the dimensions that it takes."""
    return reduction(call, "~", block=False)


def _mean(call: Call) -> str:
    """Divides by the size on this rank, so the dimensions that it takes stay whole."""
    return reduction(call, "~", block=True)


def averaged(line: str, call: Call) -> str:
    """A line of an operator of weighted averages: of integers they are rounded, and so not linear."""
    return line if call.operands[0].dtype.is_floating_point else line.replace("~", "")


def whole(call: Call, composite: str = "") -> str:
    """What is reduced stays whole, unless a composite crosses it."""
    return reduction(call, "", block=True, composite=composite)


def along_dim(call: Call, name: str = "dim") -> dict[str, int]:
    """Lengths of ``*a d *b`` where an argument says which dimension ``d`` is."""
    rank = len(call.shape())
    dim = call.dim(name)
    return {"a": dim, "b": max(rank - 1 - dim, 0)}


def along(line: str) -> Callable[[Call], str]:
    """A line with ``*a d! *b``; a tensor without dimensions is a single element, on which nothing can be shared."""

    def write(call: Call) -> str:
        return line if call.shape() else re.sub(r"\*a [dk]! \*b", ".", line.partition(" composite")[0])

    return write


_NOT_LINEAR = {
    "amax": "amax.default max.default",
    "amin": "amin.default min.default",
    "argmax": "max.dim argmax.default",
    "argmin": "min.dim argmin.default",
    "any": "any.default any.dim any.dims",
    "all": "all.default all.dim all.dims",
    "prod": "prod.default prod.dim_int",
    "logsumexp": "logsumexp.default",
    "": "var.correction std.correction var_mean.correction",
}
"""By the composite that crosses what is reduced."""

RULES: Table = {
    "aten.sum.default": Rule(_sum),
    "aten.sum.dim_IntList": Rule(_sum),
    "aten.mean.default": Rule(_mean),
    "aten.mean.dim": Rule(_mean),
    **{
        f"aten.{name}": Rule(partial(whole, composite=composite))
        for composite, names in _NOT_LINEAR.items()
        for name in names.split()
    },
    "aten.cumsum.default": Rule(along("~*a d! *b -> *a d! *b composite d=cumsum"), runs=along_dim),
    "aten.cumprod.default": Rule(along("*a d! *b -> *a d! *b composite d=cumprod"), runs=along_dim),
    "aten.sort.default": Rule(along("*a d! *b -> *a d! *b, *a d! *b"), runs=along_dim),
    "aten.sort.stable": Rule(along("*a d! *b -> *a d! *b, *a d! *b"), runs=along_dim),
    "aten.topk.default": Rule(along("*a d! *b -> *a k! *b, *a k! *b"), runs=along_dim),
    "aten._softmax.default": Rule(along("*a d! *b -> *a d! *b composite d=softmax"), runs=along_dim),
    "aten._safe_softmax.default": Rule(along("*a d! *b -> *a d! *b composite d=safe_softmax"), runs=along_dim),
    "aten._log_softmax.default": Rule(along("*a d! *b -> *a d! *b composite d=log_softmax"), runs=along_dim),
    "aten._softmax_backward_data.default": Rule(
        along("~*a d! *b, *a d! *b -> *a d! *b composite d=softmax_backward"), runs=along_dim
    ),
    "aten._log_softmax_backward_data.default": Rule(
        along("~*a d! *b, *a d! *b -> *a d! *b composite d=log_softmax_backward"), runs=along_dim
    ),
}

"""Reductions over dimensions, and operators along one dimension."""

from __future__ import annotations

from collections.abc import Callable

from hap.rules.call import Call, Rule, Table


def _reduction(linear: bool) -> Callable[[Call], str | None]:
    """A sum may be shared along the dimensions that it takes; another reduction may not."""

    def line(call: Call) -> str | None:
        reduced = set(call.dims()) if "dim" in call.arguments else set(range(len(call.shape())))
        keep = bool(call.arguments.get("keepdim", False))
        operand, result = [], []
        for i in range(len(call.shape())):
            operand.append(f"d{i}" if linear or i not in reduced else f"d{i}!")
            if i not in reduced:
                result.append(f"d{i}")
            elif keep:
                result.append("_")
        patterns = [" ".join(result) or "."] * len(call.results)
        return f"{'~' if linear else ''}{' '.join(operand) or '.'} -> {', '.join(patterns)}"

    return line


def along_dim(call: Call) -> dict[str, int]:
    """Lengths of ``*a d *b`` where the argument ``dim`` says which dimension ``d`` is."""
    rank = len(call.shape())
    dim = call.dim()
    return {"a": dim, "b": max(rank - 1 - dim, 0)}


def _along(line: str) -> Callable[[Call], str]:
    """A line with ``*a d! *b``; a tensor without dimensions is a single element, on which nothing can be shared."""

    def write(call: Call) -> str:
        return line if call.shape() else line.replace("*a d! *b", ".").replace("*a k! *b", ".")

    return write


_SUM = Rule(_reduction(linear=True))
_OTHER = Rule(_reduction(linear=False))

RULES: Table = {
    "aten.sum.default": _SUM,
    "aten.sum.dim_IntList": _SUM,
    **{
        f"aten.{name}": _OTHER
        for name in [
            "amax.default",
            "amin.default",
            "max.default",
            "min.default",
            "any.default",
            "any.dim",
            "any.dims",
            "all.default",
            "all.dim",
            "all.dims",
            "prod.default",
            "prod.dim_int",
            "logsumexp.default",
            "var_mean.correction",
            "var.correction",
            "std.correction",
            "argmax.default",
            "argmin.default",
            "max.dim",
            "min.dim",
        ]
    },
    "aten.mean.default": Rule(lambda call: "~" + _reduction(linear=False)(call)),  # type: ignore[operator]
    "aten.mean.dim": Rule(lambda call: "~" + _reduction(linear=False)(call)),  # type: ignore[operator]
    "aten.cumsum.default": Rule(_along("~*a d! *b -> *a d! *b"), runs=along_dim),
    "aten.cumprod.default": Rule(_along("*a d! *b -> *a d! *b"), runs=along_dim),
    "aten.sort.default": Rule(_along("*a d! *b -> *a d! *b, *a d! *b"), runs=along_dim),
    "aten.sort.stable": Rule(_along("*a d! *b -> *a d! *b, *a d! *b"), runs=along_dim),
    "aten.topk.default": Rule(_along("*a d! *b -> *a k! *b, *a k! *b"), runs=along_dim),
    "aten._softmax.default": Rule(_along("*a d! *b -> *a d! *b composite d=softmax"), runs=along_dim),
    "aten._safe_softmax.default": Rule(_along("*a d! *b -> *a d! *b"), runs=along_dim),
    "aten._log_softmax.default": Rule(_along("*a d! *b -> *a d! *b composite d=log_softmax"), runs=along_dim),
    "aten._softmax_backward_data.default": Rule(
        _along("~*a d! *b, *a d! *b -> *a d! *b composite d=softmax_backward"), runs=along_dim
    ),
    "aten._log_softmax_backward_data.default": Rule(
        _along("~*a d! *b, *a d! *b -> *a d! *b composite d=log_softmax_backward"), runs=along_dim
    ),
}

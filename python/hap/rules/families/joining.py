"""Slice, split, cat and padding: parts of a dimension that share its inner axes.

A stretch of a dimension is ``(k! in)`` of it, where ``in`` is an inner part that divides where the stretch starts and
ends: nothing may be sharded along ``k``, but all along ``in``, with bounds that shrink in proportion.
"""

from __future__ import annotations

from typing import Any

from hap.rules.call import Call, Inner, Local, Lowered, Rule, Table, nothing_touched

Written = tuple[str, dict[str, int]]


def _dims(rank: int) -> list[str]:
    return [f"d{i}" for i in range(rank)]


def _text(dims: list[str]) -> str:
    return " ".join(dims) or "."


def _bounds(call: Call) -> tuple[int, int, int, int]:
    """Dimension, its size, start and length of a slice; a start or end beyond the ends is moved to them."""
    dim = call.dim()
    size = call.shape()[dim]
    start = call["start"] or 0
    start = min(max(start + size if start < 0 else start, 0), size)
    return dim, size, start, call.result_shape()[dim]


def _slice(call: Call, inner: Inner) -> Written:
    dim, size, start, length = _bounds(call)
    operand = _dims(len(call.shape()))
    if length == size and call["step"] == 1:
        return f"~{_text(operand)} -> {_text(operand)}", {}
    part = 1
    if call["step"] == 1 and length:
        part = max(
            g for g in inner(("result", 0), ("operand", 0), dim) if start % g == 0 and length % g == 0 and size % g == 0
        )
    result = list(operand)
    operand[dim], result[dim] = "(k! in)", "(o! in)"
    return f"~{_text(operand)} -> {_text(result)}", {"in": part}


def _slice_local(call: Call, local: Local) -> Lowered:
    dim, _, start, length = _bounds(call)
    return call.operator.target, _local_bounds(call, local, dim, start, length)


def _local_bounds(call: Call, local: Local, dim: int, start: int, length: int) -> dict[str, Any]:
    """Start and end in proportion to the rank's share of the inner part; as traced where it holds all of it."""
    if length == call.shape()[dim] and call["step"] == 1:
        return {"start": 0, "end": local.operand(0)[dim]}
    part, share = local.whole("in"), local.size("in")
    return {} if part == share else {"start": start // part * share, "end": (start + length) // part * share}


def _common(sizes: list[list[int]]) -> int:
    """The largest size that all allow."""
    return max(set.intersection(*(set(s) for s in sizes)))


def _split(call: Call, inner: Inner) -> Written:
    dim, size = call.dim(), call.shape()[call.dim()]
    lengths = _lengths(call)
    allowed = [
        [g for g in inner(("result", i), ("operand", 0), dim) if all(n % g == 0 for n in lengths)]
        for i, tensor in enumerate(call.results)
        if tensor is not None
    ]
    part = _common(allowed) if size else 1
    operand = _dims(len(call.shape()))
    results = []
    for i in range(len(call.results)):
        result = list(operand)
        result[dim] = f"(o{i}! in)"
        results.append(_text(result))
    operand[dim] = "(k! in)"
    return f"~{_text(operand)} -> {', '.join(results)}", {"in": part}


def _lengths(call: Call) -> list[int]:
    """Lengths of the pieces of a split."""
    if "split_sizes" in call.arguments:
        return list(call["split_sizes"])
    size, step = call.shape()[call.dim()], call["split_size"]
    return [min(step, size - start) for start in range(0, size, step)] or [0]


def _split_local(call: Call, local: Local) -> Lowered:
    part, share = local.whole("in"), local.size("in")
    if "split_sizes" in call.arguments:
        return call.operator.target, {"split_sizes": [n // part * share for n in _lengths(call)]}
    if part == share:
        return call.operator.target, {}
    return call.operator.target, {"split_size": call["split_size"] // part * share}


def _cat(call: Call, inner: Inner) -> Written | None:
    rank = len(call.result_shape())
    if any(len(tensor.shape) != rank for tensor in call.operands):
        return None  # an empty list of numbers may stand beside tensors of any shape
    dim = call.dim(rank=rank)
    size = call.result_shape()[dim]
    lengths = [tensor.shape[dim] for tensor in call.operands]
    allowed = [
        [g for g in inner(("operand", i), ("result", 0), dim) if all(n % g == 0 for n in lengths)]
        for i, n in enumerate(lengths)
        if n
    ]
    part = _common(allowed) if size else 1
    patterns = []
    for i in range(len(lengths)):
        operand = _dims(rank)
        operand[dim] = f"(k{i}! in)"
        patterns.append(f"+{_text(operand)}")
    result = _dims(rank)
    result[dim] = "(k! in)"
    return f"{', '.join(patterns)} -> {_text(result)}", {"in": part}


def _stack(call: Call) -> str:
    rank = len(call.shape())
    operand = _dims(rank)
    result = list(operand)
    result.insert(call.dim(rank=rank + 1), "k!")
    return f"{', '.join(['+' + _text(operand)] * len(call.operands))} -> {_text(result)}"


def _without(call: Call) -> str:
    """``select``, ``unbind``: one dimension is taken away."""
    dim, operand = call.dim(), _dims(len(call.shape()))
    result = [d for i, d in enumerate(operand) if i != dim]
    operand[dim] += "!"
    return f"~{_text(operand)} -> {', '.join([_text(result)] * len(call.results))}"


def _padding(call: Call) -> list[tuple[int, int]]:
    """What is added before and behind each dimension."""
    rank, pad = len(call.shape()), list(call["pad"])
    pad += [0] * (2 * rank - len(pad))
    return [(pad[2 * (rank - 1 - i)], pad[2 * (rank - 1 - i) + 1]) for i in range(rank)]


def _pad(call: Call, inner: Inner) -> Written:
    operand, result, sizes = _dims(len(call.shape())), _dims(len(call.shape())), {}
    for i, (before, behind) in enumerate(_padding(call)):
        if (before, behind) == (0, 0):
            continue
        length, size = call.shape()[i], call.result_shape()[i]
        part = 1
        if min(before, behind) >= 0 and length:
            part = max(
                g
                for g in inner(("operand", 0), ("result", 0), i)
                if before % g == 0 and length % g == 0 and size % g == 0
            )
        operand[i], result[i], sizes[f"in{i}"] = f"(k{i}! in{i})", f"(o{i}! in{i})", part
    linear = "~" if not call["value"] else ""
    return f"{linear}{_text(operand)} -> {_text(result)}", sizes


def _pad_local(call: Call, local: Local) -> Lowered:
    pad: list[int] = []
    for i, (before, behind) in reversed(list(enumerate(_padding(call)))):
        if (before, behind) != (0, 0):
            part, share = local.whole(f"in{i}"), local.size(f"in{i}")
            before, behind = (before // part * share, behind // part * share) if part != share else (before, behind)
        pad += [before, behind]
    return call.operator.target, {"pad": pad}


def _scattered(call: Call, inner: Inner) -> Written:
    """``slice_scatter``: the second tensor replaces a stretch of the first."""
    dim, size, start, _ = _bounds(call)
    length = call.shape(1)[dim]
    operand = _dims(len(call.shape()))
    if length == size and call["step"] == 1:
        return f"+{_text(operand)}, +{_text(operand)} -> {_text(operand)}", {}
    part = 1
    if call["step"] == 1 and length:
        part = max(
            g
            for g in inner(("operand", 1), ("operand", 0), dim)
            if start % g == 0 and length % g == 0 and size % g == 0
        )
    source = list(operand)
    operand[dim], source[dim] = "(k! in)", "(o! in)"
    return f"+{_text(operand)}, +{_text(source)} -> {_text(operand)}", {"in": part}


def _scattered_local(call: Call, local: Local) -> Lowered:
    dim, _, start, _ = _bounds(call)
    return call.operator.target, _local_bounds(call, local, dim, start, call.shape(1)[dim])


def _select_scatter(call: Call) -> str:
    dim, operand = call.dim(), _dims(len(call.shape()))
    source = [d for i, d in enumerate(operand) if i != dim]
    operand[dim] += "!"
    return f"+{_text(operand)}, +{_text(source)} -> {_text(operand)}"


_SPLIT = Rule(_split, soft=True, lower=_split_local, touched=nothing_touched)

RULES: Table = {
    "aten.slice.Tensor": Rule(_slice, soft=True, lower=_slice_local, touched=nothing_touched),
    "aten.split.Tensor": _SPLIT,
    "aten.split_with_sizes.default": _SPLIT,
    "aten.cat.default": Rule(_cat, soft=True),
    "aten.stack.default": Rule(_stack),
    "aten.select.int": Rule(_without, touched=nothing_touched),
    "aten.unbind.int": Rule(_without, touched=nothing_touched),
    "aten.constant_pad_nd.default": Rule(_pad, soft=True, lower=_pad_local),
    "aten.slice_scatter.default": Rule(_scattered, soft=True, lower=_scattered_local),
    "aten.select_scatter.default": Rule(_select_scatter),
}

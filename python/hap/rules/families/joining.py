"""Slice, split, cat and padding: stretches of a dimension.

A dimension is the ordered sum of its stretches, ``(a | o | b)``, of which the other tensor has ``o``. Where all have
inner axes in common, it is ``((a | o | b) in)``: all axes of ``in`` may be sharded, with bounds that shrink in
proportion, and likewise an axis that stands in every stretch.
"""

from __future__ import annotations

from typing import Any

import torch

from hap.rules.call import Call, Inner, Local, Lowered, Rule, Table

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


def _sum(part: int, **lengths: int) -> tuple[str, dict[str, int]]:
    """A dimension of stretches with an inner part in common, and the sizes of its letters."""
    sizes = {name: length // part for name, length in lengths.items() if length}
    text = " | ".join(sizes)
    return (f"(({text}) in)" if len(sizes) > 1 else f"({text} in)"), {**sizes, "in": part}


def _stretch(call: Call, inner: Inner, small: tuple[str, int], length: int) -> tuple[str, str, dict[str, int]]:
    """Dims of the first operand and of the stretch of this length in it, and the sizes of their letters.

    ``small``: the tensor that is the stretch.
    """
    dim, size, start, _ = _bounds(call)
    whole = _dims(len(call.shape()))
    if length == size and call["step"] == 1:
        return _text(whole), _text(whole), {}
    stretch = list(whole)
    if call["step"] != 1 or not length:
        whole[dim], stretch[dim] = "k!", "o!"
        return _text(whole), _text(stretch), {}
    allowed = inner(small, ("operand", 0), dim)
    part = max(g for g in allowed if start % g == 0 and length % g == 0 and size % g == 0)
    whole[dim], sizes = _sum(part, a=start, o=length, b=size - start - length)
    stretch[dim] = "(o in)"
    return _text(whole), _text(stretch), sizes


def _slice(call: Call, inner: Inner) -> Written:
    operand, result, sizes = _stretch(call, inner, ("result", 0), _bounds(call)[3])
    return f"~{operand} -> {result}", sizes


def _slice_local(call: Call, local: Local) -> Lowered:
    dim, _, start, length = _bounds(call)
    return call.operator.target, _local_bounds(call, local, dim, start, length)


def _local_bounds(call: Call, local: Local, dim: int, start: int, length: int) -> dict[str, Any]:
    """Start and end of the stretch on this rank; as traced where nothing can be sharded."""
    if length == call.shape()[dim] and call["step"] == 1:
        return {"start": 0, "end": local.operand(0)[dim]}
    if call["step"] != 1 or not length:
        return {}
    part = local.size("in")
    before = local.size("a") * part if start else 0
    return {"start": before, "end": before + local.size("o") * part}


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
        result[dim] = f"(o{i} in)" if lengths[i] else "none!"
        results.append(_text(result))
    operand[dim], sizes = _sum(part, **{f"o{i}": length for i, length in enumerate(lengths)}) if size else ("k!", {})
    return f"~{_text(operand)} -> {', '.join(results)}", sizes


def _lengths(call: Call) -> list[int]:
    """Lengths of the pieces of a split."""
    if "split_sizes" in call.arguments:
        return list(call["split_sizes"])
    size, step = call.shape()[call.dim()], call["split_size"]
    return [min(step, size - start) for start in range(0, size, step)] or [0]


def _split_local(call: Call, local: Local) -> Lowered:
    lengths = [local.size(f"o{i}") * local.size("in") if length else 0 for i, length in enumerate(_lengths(call))]
    if "split_sizes" in call.arguments:
        return call.operator.target, {"split_sizes": lengths}
    return torch.ops.aten.split.sizes, {"split_size": lengths}


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
        operand[dim] = f"(o{i} in)" if lengths[i] else "none!"
        patterns.append(f"+{_text(operand)}")
    result = _dims(rank)
    result[dim], sizes = _sum(part, **{f"o{i}": length for i, length in enumerate(lengths)}) if size else ("k!", {})
    return f"{', '.join(patterns)} -> {_text(result)}", sizes


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
    operand, result = _dims(len(call.shape())), _dims(len(call.shape()))
    sizes: dict[str, int] = {}
    for i, (before, behind) in enumerate(_padding(call)):
        if (before, behind) == (0, 0):
            continue
        length, size = call.shape()[i], call.result_shape()[i]
        if min(before, behind) < 0 or not length:
            operand[i], result[i] = f"k{i}!", f"o{i}!"
            continue
        part = max(
            g for g in inner(("operand", 0), ("result", 0), i) if before % g == 0 and length % g == 0 and size % g == 0
        )
        letters = {f"a{i}": before // part, f"o{i}": length // part, f"b{i}": behind // part}
        text = " | ".join(letter for letter, count in letters.items() if count)
        operand[i], result[i] = f"(o{i} in{i})", f"(({text}) in{i})"
        sizes |= letters | {f"in{i}": part}
    linear = "~" if not call["value"] else ""
    return f"{linear}{_text(operand)} -> {_text(result)}", sizes


def _pad_local(call: Call, local: Local) -> Lowered:
    pad: list[int] = []
    for i, (before, behind) in reversed(list(enumerate(_padding(call)))):
        if min(before, behind) >= 0 != max(before, behind) and call.shape()[i]:
            part = local.size(f"in{i}")
            before, behind = (local.size(f"{letter}{i}") * part for letter in "ab")
        pad += [before, behind]
    return call.operator.target, {"pad": pad}


def _scattered(call: Call, inner: Inner) -> Written:
    """``slice_scatter``: the second tensor replaces a stretch of the first."""
    operand, source, sizes = _stretch(call, inner, ("operand", 1), call.shape(1)[call.dim()])
    return f"+{operand}, +{source} -> {operand}", sizes


def _scattered_local(call: Call, local: Local) -> Lowered:
    dim, _, start, _ = _bounds(call)
    return call.operator.target, _local_bounds(call, local, dim, start, call.shape(1)[dim])


def _select_scatter(call: Call) -> str:
    dim, operand = call.dim(), _dims(len(call.shape()))
    source = [d for i, d in enumerate(operand) if i != dim]
    operand[dim] += "!"
    return f"+{_text(operand)}, +{_text(source)} -> {_text(operand)}"


_SPLIT = Rule(_split, soft=True, lower=_split_local, sums=True, layout=True)


def _block_diagonal(call: Call) -> str:
    """Matrices, rows and numbers one behind another, with zeros beside them."""
    blocks = [["r!", "c!"][2 - len(tensor.shape) :] for tensor in call.operands]
    operands = [" ".join(f"{dim[0]}{i}!" for dim in dims) or "." for i, dims in enumerate(blocks)]
    return f"+{', +'.join(operands)} -> i! j!"


RULES: Table = {
    "aten.block_diag.default": Rule(_block_diagonal),
    "aten.slice.Tensor": Rule(_slice, soft=True, lower=_slice_local, sums=True, layout=True),
    "aten.split.Tensor": _SPLIT,
    "aten.split_with_sizes.default": _SPLIT,
    "aten.cat.default": Rule(_cat, soft=True),
    "aten.stack.default": Rule(_stack),
    "aten.select.int": Rule(_without, layout=True),
    "aten.unbind.int": Rule(_without, layout=True),
    "aten.constant_pad_nd.default": Rule(_pad, soft=True, lower=_pad_local, sums=True),
    "aten.slice_scatter.default": Rule(_scattered, soft=True, lower=_scattered_local, sums=True),
    "aten.select_scatter.default": Rule(_select_scatter),
}

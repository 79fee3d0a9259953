"""Looking up and scattering by index.

Where the indexed dimension is sharded, each rank looks up and writes the indices of its own range
(:mod:`hap.rules.ranges`): vocabulary-parallel embedding is this, and needs no collective inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch

from hap.rules import ranges
from hap.rules.call import Call, Local, Lowered, Rule, Shape, Table, broadcast


def _joined(dims: Sequence[str]) -> str:
    return " ".join(dims) or "."


def _on_range(kernel: Callable[..., torch.Tensor], letter: str = "v") -> Callable[[Call, Local], Lowered]:
    """Another kernel where the indexed letter is sharded."""

    def lower(call: Call, local: Local) -> Lowered:
        stretch = local.stretch(letter)
        return (call.operator.target, {}) if stretch is None else (kernel, {"stretch": stretch})

    return lower


# ---- indices of several dimensions


def _positions(call: Call) -> list[int]:
    """Dimensions that are indexed."""
    return [i for i, index in enumerate(call["indices"]) if index is not None]


def _by_mask(call: Call) -> bool:
    """Whether an index is a mask, not a list of places."""
    pairs = zip(call.operands, call.names, strict=True)
    return any(t.dtype in (torch.bool, torch.uint8) for t, name in pairs if name == "indices")


def _index_patterns(call: Call, block_indices: bool) -> tuple[list[str], list[str], list[str]] | None:
    """Letters of the indexed tensor, of each index, and of what is looked up; ``None`` for masks."""
    positions = _positions(call)
    tensors = [t for t, name in zip(call.operands, call.names, strict=True) if name == "indices"]
    if _by_mask(call):
        return None
    shape = broadcast(*(t.shape for t in tensors))
    block = "!" if block_indices else ""
    looked_up = [f"i{n}{block}" for n in range(len(shape))]
    indices = []
    for tensor in tensors:
        skip = len(shape) - len(tensor.shape)
        dims = [
            "_" if size == 1 and shape[skip + n] != 1 else looked_up[skip + n] for n, size in enumerate(tensor.shape)
        ]
        indices.append(_joined(dims))
    own = [f"d{n}" for n in range(len(call.shape()))]
    rest = [d for n, d in enumerate(own) if n not in positions]
    if positions == list(range(positions[0], positions[-1] + 1)):
        found = own[: positions[0]] + looked_up + own[positions[-1] + 1 :]
    else:  # indices that stand apart: theirs are the first dimensions
        found = looked_up + rest
    return own, indices, found


def _index(call: Call) -> str | None:
    patterns = _index_patterns(call, block_indices=False)
    if patterns is None:
        return None
    own, indices, found = patterns
    return f"~{_joined(own)}, {', '.join(indices)} -> {_joined(found)}"


def _put_by_mask(call: Call) -> str | None:
    """``x[mask] = values``, where the values are the same for all that is put."""
    positions, shape, values = _positions(call), call.shape(), call.shape_of("values")
    if len(positions) > 1:
        return None
    own = [f"d{n}" for n in range(len(shape))]
    first, last = positions[0], positions[0] + len(call.shape_of("indices"))
    found = [*own[:first], "_", *own[last:]]
    given = found[len(found) - len(values) :]
    sizes = dict(zip(own, shape, strict=True))
    if len(values) > len(found) or any(size not in (1, sizes.get(d, 1)) for d, size in zip(given, values, strict=True)):
        return None
    given = ["_" if size == 1 and sizes.get(d, 1) != 1 else d for d, size in zip(given, values, strict=True)]
    return f"+{_joined(own)}, {_joined(own[first:last])}, +{_joined(given)} -> {_joined(own)}"


def _index_put(call: Call) -> str | None:
    """Accumulating, the values may be shared along the index; else a later value replaces an earlier one."""
    if _by_mask(call):
        return _put_by_mask(call)
    accumulate = bool(call["accumulate"])
    patterns = _index_patterns(call, block_indices=not accumulate)
    if patterns is None:
        return None
    own, indices, found = patterns
    size = dict(zip(own, call.shape(), strict=True))
    index_shape = broadcast(*(t.shape for t, n in zip(call.operands, call.names, strict=True) if n == "indices"))
    size.update({f"i{n}": s for n, s in enumerate(index_shape)})
    shape = call.shape_of("values")
    skip = len(found) - len(shape)
    values = [
        "_" if s == 1 and size[found[skip + n].rstrip("!")] != 1 else found[skip + n] for n, s in enumerate(shape)
    ]
    mark = "~" if accumulate else "+"
    return f"+{_joined(own)}, {', '.join(indices)}, {mark}{_joined(values)} -> {_joined(own)}"


def _on_indexed_range(kernel: Callable[..., torch.Tensor]) -> Callable[[Call, Local], Lowered]:
    """Another kernel where one of the indexed dimensions is sharded."""

    def lower(call: Call, local: Local) -> Lowered:
        for dim in [] if _by_mask(call) else _positions(call):
            stretch = local.stretch(f"d{dim}")
            if stretch is not None:
                return kernel, {"dim": dim, "stretch": stretch}
        return call.operator.target, {}

    return lower


# ---- one index along ``dim``


def _along(call: Call, blocked: bool = False) -> list[str] | None:
    """Patterns of the tensor (``v`` along ``dim``), of the index (``j`` there) and of a source, all of one rank.

    An index may be shorter than the tensor along other dimensions, and than its source along any: it then speaks of
    the first rows alone, and a rank's part of the one would not meet its part of the other.
    """
    shapes = [call.shape(n) for n in range(min(len(call.operands), 3))]
    rank = len(shapes[0])
    if not rank or any(len(shape) != rank for shape in shapes):
        return None
    shapes += shapes[1:] if len(shapes) == 2 else []
    patterns: list[list[str]] = [[], [], []]
    for n, (size, indexed, given) in enumerate(zip(*shapes, strict=True)):
        if n == call.dim():
            row = "j!" if blocked or given != indexed else "j"
            letters = ("v", row, row if given == indexed else "s!")
        elif size == indexed == given:
            letters = (f"d{n}",) * 3
        else:
            letters = (f"d{n}!", f"j{n}!", f"j{n}!" if given == indexed else f"s{n}!")
        for pattern, letter in zip(patterns, letters, strict=True):
            pattern.append(letter)
    return [" ".join(pattern) for pattern in patterns]


def _gather(call: Call) -> str | None:
    patterns = _along(call)
    return None if patterns is None else f"~{patterns[0]}, {patterns[1]} -> {patterns[1]}"


def _scattered(marks: Callable[[Call], tuple[str, str]]) -> Callable[[Call], str | None]:
    """A line of the operators that write a source, or a number, at an index of their rank.

    ``marks``: of the tensor and of the source. A linear source is added, so that the index may be shared; any other
    replaces what is there or is combined with it.
    """

    def write(call: Call) -> str | None:
        mark, source_mark = marks(call)
        patterns = _along(call, blocked=source_mark != "~")
        if patterns is None:
            return None
        own, index, source = patterns
        given = f", {source_mark}{source}" if len(call.operands) == 3 else ""
        return f"{mark}{own}, {index}{given} -> {own}"

    return write


def _added(call: Call) -> tuple[str, str]:
    return "+", "~"


def _replaced(call: Call) -> tuple[str, str]:
    return "+", "+"


def _filled(call: Call) -> tuple[str, str]:
    return "~" if call["value"] == 0 else "", ""


def _combined(call: Call) -> tuple[str, str]:
    """``reduce``: sums are linear in the source, and jointly in both where the sum leaves out what was there."""
    if call["reduce"] in ("sum", "add"):
        return ("+", "~") if call.arguments.get("include_self", True) else ("+", "+")
    return "", ""


def _combined_with_number(call: Call) -> tuple[str, str]:
    return ("~", "") if call["reduce"] == "multiply" else ("", "")


def _by_row(mark: str, source_mark: str | None) -> Callable[[Call], str | None]:
    """A line of the operators with an index of one dimension; ``None``: they write a number."""

    def write(call: Call) -> str | None:
        if not call.shape() or len(call.shape(1)) > 1:
            return None
        dim = call.dim()
        own = ["v" if n == dim else f"d{n}" for n in range(len(call.shape()))]
        own_mark = mark
        row = "j" if source_mark == "~" else "j!"
        index = row if call.shape(1) else "."
        patterns = [index]
        if source_mark is None:
            own_mark = "~" if call.arguments.get("value") == 0 else ""
        elif call.names[-1] == "value":  # a number in a tensor
            patterns.append(f"{source_mark}.")
        else:
            along = row if call.shape(1) else "_"
            patterns.append(source_mark + _joined([along if n == dim else d for n, d in enumerate(own)]))
        return f"{own_mark}{_joined(own)}, {', '.join(patterns)} -> {_joined(own)}"

    return write


def _index_select(call: Call) -> str | None:
    if not call.shape() or len(call.shape(1)) > 1:
        return None
    dim = call.dim()
    own = ["v" if n == dim else f"d{n}" for n in range(len(call.shape()))]
    row = "j" if call.shape(1) else "_"
    found = [row if n == dim else d for n, d in enumerate(own)]
    return f"~{_joined(own)}, {'j' if call.shape(1) else '.'} -> {_joined(found)}"


def _written(call: Call, local: Local) -> Lowered:
    stretch = local.stretch("v")
    if stretch is None:
        return call.operator.target, {}
    return ranges.written, {"target": call.operator.target, "stretch": stretch}


def _filled_rows(call: Call, local: Local) -> Lowered:
    """Filling alone takes indices that count from the end."""
    stretch = local.stretch("v")
    return (
        (call.operator.target, {})
        if stretch is None
        else (ranges.filled, {"target": call.operator.target, "stretch": stretch})
    )


# ---- places in the flattened tensor


def _put(call: Call) -> str:
    """Not accumulating, a later value replaces an earlier one: all places stay together."""
    return "+[v], [i], ~[i] -> [v]" if call["accumulate"] else "+[v], *i!, +*j! -> [v]"


def _masked_scatter(call: Call) -> str:
    """The next value of the source goes wherever the mask is true: the places depend on all of the mask."""
    shape, letters = call.result_shape(), [f"d{n}!" for n in range(len(call.result_shape()))]

    def pattern(own: Shape) -> str:
        skip = len(shape) - len(own)
        return _joined(["_" if n == 1 and shape[skip + i] != 1 else letters[skip + i] for i, n in enumerate(own)])

    own, mask = pattern(call.shape(0)), pattern(call.shape(1))
    source = _joined([f"s{n}!" for n in range(len(call.shape(2)))])
    return f"+{own}, {mask}, +{source} -> {_joined(letters)}"


# ---- tables


def _embedding_backward(call: Call) -> str:
    """Scaled by how often an index stands in the batch, the gradient needs the whole batch."""
    block = "!" if call["scale_grad_by_freq"] else ""
    return f"~*i{block} h, *i{block} -> v h size num_weights=v"


def _bag(call: Call) -> str:
    """Bags by offsets: each feature apart. The largest rows (mode 2) are chosen for each feature."""
    largest = call["mode"] == 2
    mark, chosen = ("", "b! h") if largest else ("~", "m!{1 2}")
    return f"{mark}v! h, i!, o!, w! -> b! h, x!{{1 2}}, y!{{1 2}}, {chosen}"


def _bag_backward(call: Call) -> str:
    chosen = "b! h" if call["mode"] == 2 else "m!"
    return f"~b! h, i!, o!, x!, y!, {chosen}, w! -> v! h size num_weights=v"


def _search(call: Call) -> str | None:
    """In sorted rows, each beside its values, or in one row for all values."""
    sequence, rank = call.shape_of("sorted_sequence"), len(call.shape_of("self"))
    rows = [f"d{n}" for n in range(rank - 1)]
    own = ["d!"] if len(sequence) == 1 else [*rows, "d!"]
    values = [*rows, "j"][-rank:] if rank else []
    return f"{', '.join([_joined(own), _joined(values), _joined(own)])} -> {_joined(values)}"


def _looked_up(call: Call) -> tuple[list[float], list[float]]:
    """Of the first tensor only what is looked up is read."""
    result = call.first_result
    touched = [float(tensor.bytes) for tensor in call.operands]
    if result is not None:
        touched[0] = min(touched[0], float(prod(result.shape) * call.operands[0].dtype.itemsize))
    return touched, [float(t.bytes) if t else 0.0 for t in call.results]


_INDEX = Rule(_index, touched=_looked_up, lower=_on_indexed_range(ranges.index))
_INDEX_PUT = Rule(_index_put, lower=_on_indexed_range(ranges.index_put))

RULES: Table = {
    "aten.embedding.default": Rule("~v h, *i -> *i h", touched=_looked_up, lower=_on_range(ranges.embedding)),
    "aten.embedding_dense_backward.default": Rule(_embedding_backward, lower=_on_range(ranges.embedding_backward)),
    "aten._embedding_bag.default": Rule(_bag, touched=_looked_up),
    "aten._embedding_bag_backward.default": Rule(_bag_backward),
    "aten.gather.default": Rule(_gather, touched=_looked_up, lower=_on_range(ranges.gather)),
    "aten.index_select.default": Rule(_index_select, touched=_looked_up, lower=_on_range(ranges.index_select)),
    "aten.index.Tensor": _INDEX,
    "aten._unsafe_index.Tensor": _INDEX,
    "aten.index_put.default": _INDEX_PUT,
    "aten._unsafe_index_put.default": _INDEX_PUT,
    "aten.scatter_add.default": Rule(_scattered(_added), lower=_written),
    "aten.scatter.src": Rule(_scattered(_replaced), lower=_written),
    "aten.scatter.value": Rule(_scattered(_filled), lower=_written),
    "aten.scatter.reduce": Rule(_scattered(_combined), lower=_written),
    "aten.scatter.value_reduce": Rule(_scattered(_combined_with_number), lower=_written),
    "aten.scatter_reduce.two": Rule(_scattered(_combined), lower=_written),
    "aten.index_add.default": Rule(_by_row("+", "~"), lower=_written),
    "aten.index_copy.default": Rule(_by_row("+", "+"), lower=_written),
    "aten.index_fill.int_Scalar": Rule(_by_row("", None), lower=_filled_rows),
    "aten.index_fill.int_Tensor": Rule(_by_row("+", "+"), lower=_filled_rows),
    "aten.index_reduce.default": Rule(_by_row("", ""), lower=_written),
    "aten.take.default": Rule("~[v], *i -> *i", touched=_looked_up, lower=_on_range(ranges.take)),
    "aten.put.default": Rule(_put, lower=_on_range(ranges.put)),
    "aten.masked_scatter.default": Rule(_masked_scatter),
    "aten.masked_scatter_backward.default": Rule("~*d!, *m! -> *s!"),
    "aten.searchsorted.Tensor": Rule(_search),
    # The places in parts of the boundaries add up only where all are sorted and none is NaN.
    "aten.bucketize.Tensor": Rule("*i, d! -> *i"),
}

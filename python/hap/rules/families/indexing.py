"""Looking up and scattering by index."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from hap.rules.call import Call, Rule, Shape, Table
from hap.rules.families.reduction import along_dim


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def _positions(call: Call) -> list[int]:
    """Dimensions that are indexed."""
    return [i for i, index in enumerate(call["indices"]) if index is not None]


def _index_patterns(call: Call, block_indices: bool) -> tuple[list[str], list[str], list[str]] | None:
    """Letters of the indexed tensor, of each index, and of what is looked up; ``None`` for masks."""
    positions = _positions(call)
    tensors = [t for t, name in zip(call.operands, call.names, strict=True) if name == "indices"]
    if any(t.dtype in (torch.bool, torch.uint8) for t in tensors):
        return None
    shape = _broadcast([t.shape for t in tensors])
    block = "!" if block_indices else ""
    looked_up = [f"i{n}{block}" for n in range(len(shape))]
    indices = []
    for tensor in tensors:
        skip = len(shape) - len(tensor.shape)
        dims = [
            "_" if size == 1 and shape[skip + n] != 1 else looked_up[skip + n] for n, size in enumerate(tensor.shape)
        ]
        indices.append(" ".join(dims) or ".")
    own = [f"d{n}!" if n in positions else f"d{n}" for n in range(len(call.shape()))]
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
    return f"~{' '.join(own)}, {', '.join(indices)} -> {' '.join(found) or '.'}"


def _index_put(call: Call) -> str | None:
    """Accumulating, the values may be shared along the index; else a later value replaces an earlier one."""
    accumulate = bool(call["accumulate"])
    patterns = _index_patterns(call, block_indices=not accumulate)
    if patterns is None:
        return None
    own, indices, found = patterns
    size = {d.rstrip("!"): n for d, n in zip(own, call.shape(), strict=True)}
    index_shape = _broadcast([t.shape for t, n in zip(call.operands, call.names, strict=True) if n == "indices"])
    size.update({f"i{n}": s for n, s in enumerate(index_shape)})
    shape = call.shape_of("values")
    skip = len(found) - len(shape)
    values = [
        "_" if s == 1 and size[found[skip + n].rstrip("!")] != 1 else found[skip + n] for n, s in enumerate(shape)
    ]
    mark = "~" if accumulate else "+"
    return f"+{' '.join(own)}, {', '.join(indices)}, {mark}{' '.join(values) or '.'} -> {' '.join(own)}"


def _other_dims_equal(call: Call, others: int) -> bool:
    """Whether the index has the first tensor's sizes, but along ``dim``."""
    dim, shape = call.dim(), call.shape()
    return bool(shape) and all(
        len(call.shape(i)) == len(shape)
        and all(a == b for n, (a, b) in enumerate(zip(call.shape(i), shape, strict=True)) if n != dim)
        for i in range(1, others + 1)
    )


def _gather(call: Call) -> str | None:
    return "~*a v! *b, *a j *b -> *a j *b" if _other_dims_equal(call, 1) else None


def _scatter_add(call: Call) -> str | None:
    fits = _other_dims_equal(call, 2) and call.shape(1) == call.shape(2)
    return "+*a v! *b, *a j *b, ~*a j *b -> *a v! *b" if fits else None


def _scatter_src(call: Call) -> str | None:
    fits = _other_dims_equal(call, 2) and call.shape(1) == call.shape(2)
    return "+*a v! *b, *a j! *b, +*a j! *b -> *a v! *b" if fits else None


def _scatter_value(call: Call) -> str | None:
    if not _other_dims_equal(call, 1):
        return None
    return f"{'~' if call['value'] == 0 else ''}*a v! *b, *a j! *b -> *a v! *b"


def _looked_up(call: Call) -> tuple[list[float], list[float]]:
    """Of the first tensor only what is looked up is read."""
    result = call.first_result
    touched = [float(tensor.bytes) for tensor in call.operands]
    if result is not None:
        touched[0] = min(touched[0], float(prod(result.shape) * call.operands[0].dtype.itemsize))
    return touched, [float(t.bytes) if t else 0.0 for t in call.results]


_INDEX = Rule(_index, touched=_looked_up)

RULES: Table = {
    "aten.embedding.default": Rule("~v! h, *i -> *i h composite v=embedding", touched=_looked_up),
    "aten.embedding_dense_backward.default": Rule(
        "~*i h, *i -> v! h when not scale_grad_by_freq size num_weights=v composite v=embedding_backward"
    ),
    "aten.gather.default": Rule(_gather, runs=along_dim, touched=_looked_up),
    "aten.index_select.default": Rule("~*a v! *b, j -> *a j *b", runs=along_dim, touched=_looked_up),
    "aten.scatter_add.default": Rule(_scatter_add, runs=along_dim),
    "aten.scatter.src": Rule(_scatter_src, runs=along_dim),
    "aten.scatter.value": Rule(_scatter_value, runs=along_dim),
    "aten.index.Tensor": _INDEX,
    "aten._unsafe_index.Tensor": _INDEX,
    "aten.index_put.default": Rule(_index_put),
    "aten._unsafe_index_put.default": Rule(_index_put),
}

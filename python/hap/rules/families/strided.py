"""Diagonals, triangles, windows and quarter turns; views as copies of their own."""

# torch.ops is untyped.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hap.operators.stretch import Stretch, positions
from hap.rules.call import Call, Local, Lowered, Rule, Table
from hap.rules.families import joining, view


def _line(mark: str, operand: list[str], result: list[str]) -> str:
    return f"{mark}{' '.join(operand) or '.'} -> {' '.join(result) or '.'}"


def _diagonal_dims(call: Call, rank: int) -> tuple[list[str], list[str]]:
    """The dimensions of a tensor of matrices, and of their diagonals, which come last."""
    one, other = call.dim("dim1", rank), call.dim("dim2", rank)
    matrices = [f"d{i}!" if i in (one, other) else f"d{i}" for i in range(rank)]
    return matrices, [*(d for i, d in enumerate(matrices) if i not in (one, other)), "k!"]


def _diagonal(call: Call) -> str:
    return _line("~", *_diagonal_dims(call, len(call.shape())))


def _diagonal_backward(call: Call) -> str:
    matrices, diagonals = _diagonal_dims(call, len(call.result_shape()))
    return _line("~", diagonals, matrices) + " size input_sizes=result"


def _diagonal_embedded(call: Call) -> str:
    matrices, diagonals = _diagonal_dims(call, len(call.result_shape()))
    return _line("~", diagonals, matrices)


def _diagonal_scattered(call: Call) -> str:
    matrices, diagonals = _diagonal_dims(call, len(call.shape()))
    return _line(f"+{' '.join(matrices)}, +", diagonals, matrices)


def _triangle(lower: bool, call: Call, local: Local) -> Lowered:
    rows, columns = local.stretch("i"), local.stretch("j")
    if rows is None and columns is None:
        return call.operator.target, {}
    return triangle, {"lower": lower, "rows": rows, "columns": columns}


def triangle(x: Tensor, diagonal: int = 0, *, lower: bool, rows: Stretch | None, columns: Stretch | None) -> Tensor:
    """``aten.tril`` or ``aten.triu`` of matrices of which a rank has some rows or columns."""
    row, column = (
        torch.arange(x.shape[dim], device=x.device) if share is None else positions(share, x.device)
        for dim, share in ((-2, rows), (-1, columns))
    )
    beyond = column - row.unsqueeze(1) - diagonal
    return x.masked_fill(beyond > 0 if lower else beyond < 0, 0)


def _windows(call: Call, shape: tuple[int, ...], name: str) -> tuple[list[str], list[str], dict[str, int]]:
    """The dimensions of a tensor and of its windows, and sizes of letters.

    Windows that lie one after another are a product; for others, which overlap or leave gaps, nothing may be sharded
    along them.
    """
    rank = len(shape)
    whole = [f"d{i}" for i in range(rank)]
    windows = [*whole, "k"]
    if not rank:
        return [], ["k!"], {}
    dim, size = call.dim(name, rank), call["size"]
    if _tiled(call, shape[dim]):
        whole[dim], windows[dim] = "(w k)", "w"
        return whole, windows, {"k": size}
    whole[dim], windows[dim], windows[-1] = "d!", "w!", "k!"
    return whole, windows, {}


def _tiled(call: Call, length: int) -> bool:
    return bool(call["size"] == call["step"] and call["size"] and length % call["size"] == 0)


def _unfold(call: Call) -> tuple[str, dict[str, int]]:
    whole, windows, sizes = _windows(call, call.shape(), "dimension")
    return _line("~", whole, windows), sizes


def _unfold_backward(call: Call) -> tuple[str, dict[str, int]]:
    whole, windows, sizes = _windows(call, call.result_shape(), "dim")
    return _line("~", windows, whole) + " size input_sizes=result", sizes


def _window_local(call: Call, local: Local) -> Lowered:
    shape, name = (call.shape(), "dimension") if "dimension" in call.arguments else (call.result_shape(), "dim")
    if not shape or not _tiled(call, shape[call.dim(name, len(shape))]):
        return call.operator.target, {}
    return call.operator.target, {"size": local.size("k"), "step": local.size("k")}


def _quarter_turns(call: Call) -> str:
    """A turn swaps two dimensions and reverses one of them, two turns reverse both."""
    rank, turns = len(call.shape()), call["k"] % 4
    one, other = (dim % rank for dim in call["dims"])
    reversed_ = {0: (), 1: (other,), 2: (one, other), 3: (one,)}[turns]
    whole = [f"d{i}!" if i in reversed_ else f"d{i}" for i in range(rank)]
    turned = list(whole)
    if turns % 2:
        turned[one], turned[other] = turned[other], turned[one]
    return _line("~", whole, turned)


def strided(x: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None) -> Tensor:
    """``aten.as_strided`` of a contiguous tensor, wherever it lies in a rank's memory."""
    return x.as_strided(size, stride, x.storage_offset() + (storage_offset or 0)).clone()


def strided_scatter(
    x: Tensor, source: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> Tensor:
    """``aten.as_strided_scatter`` into such a tensor."""
    result = x.clone(memory_format=torch.contiguous_format)
    result.as_strided(size, stride, storage_offset or 0).copy_(source)
    return result


def _in_own_memory(target: Callable[..., Tensor], call: Call, local: Local) -> Lowered:
    return target, {}


def reshaped(x: Tensor, size: list[int]) -> Tensor:
    """``aten.view_copy``, also of what cannot be viewed."""
    return x.reshape(size).clone(memory_format=torch.contiguous_format)


def _squeeze_copy_local(call: Call, local: Local) -> Lowered:
    _, changes = view.squeeze_local(call, local)
    return torch.ops.aten.squeeze_copy.dims, changes


def _copies() -> Table:
    """Rules of the copies of views: those of the views, but the bytes are moved."""
    named = {
        "expand_copy.default": view.RULES["aten.expand.default"],
        "permute_copy.default": view.RULES["aten.permute.default"],
        "squeeze_copy.default": replace(view.RULES["aten.squeeze.default"], lower=_squeeze_copy_local),
        "squeeze_copy.dim": replace(view.RULES["aten.squeeze.dim"], lower=_squeeze_copy_local),
        "squeeze_copy.dims": replace(view.RULES["aten.squeeze.dims"], lower=_squeeze_copy_local),
        "t_copy.default": view.RULES["aten.t.default"],
        "transpose_copy.int": view.RULES["aten.transpose.int"],
        "unsqueeze_copy.default": view.RULES["aten.unsqueeze.default"],
        "view_copy.default": replace(view.RULES["aten.view.default"], lower=partial(_in_own_memory, reshaped)),
        "slice_copy.Tensor": joining.RULES["aten.slice.Tensor"],
        "select_copy.int": joining.RULES["aten.select.int"],
        "unbind_copy.int": joining.RULES["aten.unbind.int"],
        "unsafe_split.Tensor": joining.RULES["aten.split.Tensor"],
        "unsafe_split_with_sizes.default": joining.RULES["aten.split_with_sizes.default"],
        "split_with_sizes_copy.default": joining.RULES["aten.split_with_sizes.default"],
    }
    return {f"aten.{name}": replace(rule, layout=False) for name, rule in named.items()}


RULES: Table = {
    "aten.diagonal.default": Rule(_diagonal, layout=True),
    "aten.diagonal_copy.default": Rule(_diagonal),
    "aten.diagonal_backward.default": Rule(_diagonal_backward),
    "aten.diagonal_scatter.default": Rule(_diagonal_scattered),
    "aten.diag_embed.default": Rule(_diagonal_embedded),
    "aten.trace.default": Rule("~i! j! -> ."),
    "aten.tril.default": Rule("~*a i j -> *a i j", lower=partial(_triangle, True)),
    "aten.triu.default": Rule("~*a i j -> *a i j", lower=partial(_triangle, False)),
    "aten.unfold.default": Rule(_unfold, lower=_window_local, layout=True),
    "aten.unfold_copy.default": Rule(_unfold, lower=_window_local),
    "aten.unfold_backward.default": Rule(_unfold_backward, lower=_window_local),
    "aten.as_strided.default": Rule("~*x! -> *y!", lower=partial(_in_own_memory, strided), contiguous=True),
    "aten.as_strided_scatter.default": Rule(
        "+*x!, +*y! -> *x!", lower=partial(_in_own_memory, strided_scatter), contiguous=True
    ),
    "aten.rot90.default": Rule(_quarter_turns),
    "aten.alias_copy.default": Rule("~*d -> *d"),
    **_copies(),
}

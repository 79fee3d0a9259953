"""Pads inputs whose lengths vary, so that few shapes need a plan, and the shares of all ranks have one length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from hap.errors import HapError
from hap.runtime.local_inputs import LocalInput
from hap.trace.inputs import flatten_inputs

if TYPE_CHECKING:
    from hap.runtime.agree import Control

Padding: TypeAlias = Mapping[str, tuple[int, int, float]]
"""By the name of an input (``args.0``, ``kwargs.labels``): the dimension, what its size becomes a multiple of, and the
value of what is added."""

_Taken: TypeAlias = "tuple[list[Any], pytree.TreeSpec, dict[str, int], dict[str, int]]"


def check_padding(padding: Padding) -> None:
    """Check that a padding can be carried out.

    Raises:
        HapError: names the input.
    """
    for name, entry in padding.items():
        good = isinstance(entry, tuple) and len(entry) == 3 and all(isinstance(one, int) for one in entry[:2])
        good = good and isinstance(entry[2], (int, float))
        if not good or entry[0] < 0 or entry[1] < 1:
            raise HapError(
                f'pad_to_multiple: "{name}": expected (dimension, multiple, value) with a dimension from 0 and a '
                f"multiple from 1, got {entry!r}"
            )


def padded(
    padding: Padding, control: Control, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with inputs padded at their ends. A collective where there is something to pad.

    Shares become as long as the longest rank's.

    Raises:
        HapError: the call has none of these inputs, or one of them lacks the dimension.
        RuntimeMismatchError: that is so on another rank.
    """
    if not padding:
        return args, kwargs

    def taken() -> tuple[_Taken, list[int]]:
        flat, names, structure = flatten_inputs(args, kwargs, also=(LocalInput,))
        places = {name: names.index(name) for name in padding if name in names}
        if not places:
            raise HapError(f"pad_to_multiple names {', '.join(padding)}, but the call has {', '.join(names)}")
        sizes = {name: _size(name, flat[place], padding[name][0]) for name, place in places.items()}
        return (flat, structure, places, sizes), [sizes.get(name, 0) for name in padding]

    # Every rank sends as many numbers, whatever it is called with.
    (flat, structure, places, sizes), everybody = control.exchange(taken, len(padding), "padding the inputs of a call")
    longest = [max(each) for each in zip(*everybody, strict=True)]
    for name, size in zip(padding, longest, strict=True):
        if name in places:
            value, (dim, multiple, fill) = flat[places[name]], padding[name]
            size = size if isinstance(value, LocalInput) else sizes[name]
            flat[places[name]] = _padded(value, dim, -(-size // multiple) * multiple, fill)
    return pytree.tree_unflatten(flat, structure)  # type: ignore[no-any-return]


def _size(name: str, value: Any, dim: int) -> int:
    if not isinstance(value, (torch.Tensor, LocalInput)) or dim >= len(value.shape):
        raise HapError(f'pad_to_multiple: "{name}" has no dimension {dim}')
    if isinstance(value, LocalInput) and dim == 0:
        raise HapError(f'pad_to_multiple: dimension 0 of "{name}" is its share of the samples')
    return value.shape[dim]


def _padded(value: Any, dim: int, size: int, fill: float) -> Any:
    if isinstance(value, LocalInput):
        return LocalInput(_padded(value.tensor, dim, size, fill))
    behind = [0, 0] * (value.dim() - dim - 1)
    return F.pad(value, [*behind, 0, size - value.shape[dim]], value=fill)

"""The inputs of a call as flat, named lists."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from hap.errors import TraceError

_CONSTANTS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.memory_format,
    torch.layout,
    torch.Size,
)


def flatten_inputs(
    args: Sequence[Any], kwargs: Mapping[str, Any] | None, *, also: tuple[type, ...] = ()
) -> tuple[list[Any], list[str], pytree.TreeSpec]:
    """The flat inputs of a call, their names (``args.0``, ``kwargs.labels``), and what rebuilds ``(args, kwargs)``.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
        also: classes that stand for a tensor.

    Raises:
        TraceError: an input is neither a tensor nor a constant, such as an object of a class of the user's own. Tensors
            inside of it would become constants of the trace, and later calls would train on them in silence.
    """
    pairs, structure = pytree.tree_flatten_with_path((tuple(args), dict(kwargs or {})))
    flat, names = [], []
    for path, value in pairs:
        parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path]
        name = ".".join(["args" if parts[0] == "0" else "kwargs", *parts[1:]])
        if not isinstance(value, (torch.Tensor, *also)) and not _is_constant(value):
            raise TraceError(
                f'input "{name}" is a {type(value).__name__}, which is neither a tensor nor a plain constant: pass its '
                "tensors in tuples, lists or dicts (for example `dict(batch)`)"
            )
        names.append(name)
        flat.append(value)
    return flat, names, structure


def _is_constant(value: Any) -> bool:
    """Whether the value is all that a trace depends on, and its ``repr`` tells it from others."""
    if isinstance(value, slice):
        return all(_is_constant(part) for part in (value.start, value.stop, value.step))
    return value is None or isinstance(value, _CONSTANTS)

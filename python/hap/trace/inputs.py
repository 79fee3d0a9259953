"""The inputs of a call as flat, named lists, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from hap.errors import TraceError
from hap.trace.containers import is_constant, opened


def flatten_inputs(
    args: Sequence[Any], kwargs: Mapping[str, Any] | None, *, also: tuple[type, ...] = ()
) -> tuple[list[Any], list[str], pytree.TreeSpec]:
    """The flat inputs of a call, their names (``args.0``, ``kwargs.labels``), and what rebuilds ``(args, kwargs)``.

    Opened are tuples, lists, dicts, other mappings, dataclasses, and what is registered with PyTorch's pytree.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
        also: classes that stand for a tensor.

    Raises:
        TraceError: an input is neither a tensor nor a constant nor one of these containers. Tensors inside of it would
            become constants of the trace, and later calls would train on them in silence.
    """
    leaves = (torch.Tensor, *also)
    pairs, structure = pytree.tree_flatten_with_path(opened((tuple(args), dict(kwargs or {})), leaves))
    flat, names = [], []
    for path, value in pairs:
        parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path]
        name = ".".join(["args" if parts[0] == "0" else "kwargs", *parts[1:]])
        if not isinstance(value, leaves) and not is_constant(value):
            raise TraceError(
                f'input "{name}" is a {type(value).__name__}, which is neither a tensor nor a plain constant nor a '
                "container that hap opens: pass its tensors in tuples, lists, dicts or dataclasses"
            )
        names.append(name)
        flat.append(value)
    return flat, unique(names), structure


def check_examples(args: Any, kwargs: Any) -> None:
    """Refuses example inputs that are no arguments of a call, such as a bare tensor, which has rows.

    Raises:
        TraceError: ``args`` is no tuple or list, or ``kwargs`` no mapping from names.
    """
    if not isinstance(args, (tuple, list)):
        raise TraceError(f"example_inputs: expected a tuple of arguments, got {type(args).__name__}")
    if kwargs is None:
        return
    if not isinstance(kwargs, Mapping):
        raise TraceError(f"example_kwargs: expected a mapping from names of arguments, got {type(kwargs).__name__}")
    for name in kwargs:
        if not isinstance(name, str):
            raise TraceError(f"example_kwargs: expected names of arguments as keys, got {name!r}")


def map_inputs(
    function: Callable[[Any], Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    *,
    also: tuple[type, ...] = (),
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with ``function`` of each tensor and constant; arguments as in :func:`flatten_inputs`."""
    flat, _, structure = flatten_inputs(args, kwargs, also=also)
    return pytree.tree_unflatten([function(value) for value in flat], structure)  # type: ignore[no-any-return]


def unique(names: Sequence[str]) -> list[str]:
    """The names with numbers behind those that stand before: ``{"a.b": x, "a": {"b": y}}`` has two paths ``a.b``."""
    found: dict[str, None] = {}
    for name in names:
        distinct, number = name, 1
        # Not the name of a later one either, so that only what meets is renamed.
        while distinct in found or (number > 1 and distinct in names):
            distinct, number = f"{name}_{number}", number + 1
        found[distinct] = None
    return list(found)

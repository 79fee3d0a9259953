"""The inputs of a call as flat, named lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils import _pytree as pytree


def flatten_inputs(
    args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[list[Any], list[str], pytree.TreeSpec]:
    """The flat inputs of a call, their names (``args.0``, ``kwargs.labels``), and what rebuilds ``(args, kwargs)``."""
    pairs, structure = pytree.tree_flatten_with_path((tuple(args), dict(kwargs or {})))
    flat, names = [], []
    for path, value in pairs:
        parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path]
        names.append(".".join(["args" if parts[0] == "0" else "kwargs", *parts[1:]]))
        flat.append(value)
    return flat, names, structure

"""Containers of the user's own classes, which PyTorch's pytree cannot open: mappings and dataclasses."""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

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


def is_constant(value: Any) -> bool:
    """Whether the value is all that a trace depends on, and its ``repr`` tells it from others."""
    if isinstance(value, slice):
        return all(is_constant(part) for part in (value.start, value.stop, value.step))
    return value is None or isinstance(value, _CONSTANTS)


class _Form(NamedTuple):
    """What rebuilds a container from its entries.

    Attributes:
        cls: its class.
        keys: the keys of its items, as a mapping.
        attributes: the names of its attributes that are rebuilt.
        private: those that are not, such as what a tokeniser remembers; they become ``None``.
    """

    cls: type
    keys: tuple[Any, ...] = ()
    attributes: tuple[str, ...] = ()
    private: tuple[str, ...] = ()


class _Open:
    """A container that pytree opens: its entries, and the form that rebuilds the container itself from others."""

    def __init__(self, form: _Form, entries: list[Any]) -> None:
        self.form = form
        self.entries = entries


def _paths(container: _Open) -> tuple[list[tuple[Any, Any]], _Form]:
    form = container.form
    keys = [*map(pytree.MappingKey, form.keys), *map(pytree.GetAttrKey, form.attributes)]
    return list(zip(keys, container.entries, strict=True)), form


def _closed(entries: Any, form: _Form) -> Any:
    """The container with these entries, made without the constructor, which may do anything; Dynamo can trace it."""
    entries = list(entries)
    items = dict(zip(form.keys, entries, strict=False))
    if form.cls is types.MappingProxyType:
        return types.MappingProxyType(items)
    made = form.cls(items) if issubclass(form.cls, dict) else object.__new__(form.cls)
    if issubclass(form.cls, collections.UserDict):
        object.__setattr__(made, "data", items)
    for name, value in zip(form.attributes, entries[len(items) :], strict=True):
        # Also where the dataclass is frozen.
        object.__setattr__(made, name, value)
    for name in form.private:
        object.__setattr__(made, name, None)
    return made


pytree.register_pytree_node(
    _Open,
    lambda container: (container.entries, container.form),
    _closed,
    flatten_with_keys_fn=_paths,
)


def opened(value: Any, leaves: tuple[type, ...]) -> Any:
    """``value`` with its mappings and dataclasses as nodes of pytree, at every depth, but for ``leaves``."""

    def node(inner: Any) -> Any:
        if isinstance(inner, (*leaves, type)):
            return inner
        form = _form(inner)
        if form is None:
            return inner
        entries = [inner[key] for key in form.keys] + [getattr(inner, name) for name in form.attributes]
        return _Open(form, [opened(entry, leaves) for entry in entries])

    return pytree.tree_map(node, value)


def _form(value: Any) -> _Form | None:
    cls = type(value)
    if isinstance(value, types.MappingProxyType):
        return _Form(cls, keys=tuple(value))
    attributes: dict[str, Any] = dict(getattr(value, "__dict__", {}))
    if isinstance(value, (dict, collections.UserDict)):
        if isinstance(value, collections.UserDict):
            del attributes["data"]
        private = tuple(name for name, x in attributes.items() if name.startswith("_") and not is_constant(x))
        return _Form(cls, tuple(value), tuple(name for name in attributes if name not in private), private)
    if dataclasses.is_dataclass(value):
        return _Form(cls, attributes=tuple(dict.fromkeys([f.name for f in dataclasses.fields(value)]) | attributes))
    return _Form(cls, attributes=tuple(attributes)) if isinstance(value, Mapping) else None

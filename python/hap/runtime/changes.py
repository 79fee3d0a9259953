"""Notices that a module is no longer the one that was traced."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import torch
from torch import nn

from hap.runtime.hooks import Hooks

_BEFORE, _AFTER = "_forward_pre_hooks", "_forward_hooks"
_HOOKS = (_BEFORE, _AFTER, "_backward_pre_hooks", "_backward_hooks")
# Followed, or seen by the hooks themselves.
_IGNORED = ("training", "_is_full_backward_hook")
_LATER = "after hap.parallelize took the module"
_PLAIN = (int, float, bool, str, type(None))


class _Part:
    """One submodule as it was: its submodules, parameters, hooks and plain attributes."""

    def __init__(self, path: str, part: nn.Module) -> None:
        self.path = path
        self.part = part
        self.submodules = dict(part._modules)
        # Kept, so that no other can come to have its address; pieces take the place of a parameter in the same object.
        self.parameters = list(part._parameters.values())
        self.addresses = [*map(id, self.parameters)]
        self.hooks = tuple(tuple(getattr(part, name)) for name in _HOOKS)
        self.plain = {
            name: value for name, value in vars(part).items() if isinstance(value, _PLAIN) and name not in _IGNORED
        }
        # One comparison in C per part: this runs at every call.
        self.now: Callable[[dict[str, Any]], tuple[Any, ...]] = _getter(tuple(self.plain))
        self.before = tuple(self.plain.values())

    def same(self) -> bool:
        """Whether nothing has changed."""
        found = self.part.__dict__
        if found["_modules"] != self.submodules:
            return False
        if [*map(id, found["_parameters"].values())] != self.addresses:
            return False
        for name, before in zip(_HOOKS, self.hooks, strict=True):
            hooks = found[name]
            if (hooks or before) and self.traced(name, hooks) != before:
                return False
        try:
            return self.now(found) == self.before
        except KeyError:
            return False

    def traced(self, name: str, hooks: Mapping[int, Any]) -> tuple[int, ...]:
        """Of hooks those that must be as they were; the module itself may get some that run outside of the graph.

        Where the graph begins with hooks there is no place for more between them and the forward.
        """
        before = self.hooks[_HOOKS.index(name)]
        if not self.path and (name == _AFTER or (name == _BEFORE and not before)):
            return tuple(hooks)[: len(before)]
        return tuple(hooks)

    def change(self) -> str:
        """What has changed, in words."""
        prefix = f"{self.path}." if self.path else ""
        for name in {**self.submodules, **self.part._modules}:
            if self.part._modules.get(name) is not self.submodules.get(name):
                return f'the submodule "{prefix}{name}" was replaced, added or removed'
        if len(self.part._parameters) != len(self.parameters):
            return f'parameters of "{self.path or type(self.part).__name__}" were added or removed'
        for (name, parameter), address in zip(self.part._parameters.items(), self.addresses, strict=True):
            if id(parameter) != address:
                return f'the parameter "{prefix}{name}" was replaced by another (load values with load_state_dict)'
        for name, before in zip(_HOOKS, self.hooks, strict=True):
            if self.traced(name, getattr(self.part, name)) != before:
                first = not self.path and name == _BEFORE and before
                why = (
                    " (what it had before is part of the graph, which has no place for more behind it)" if first else ""
                )
                return f'a hook of "{self.path or type(self.part).__name__}" ({name}) was added or removed{why}'
        found = vars(self.part)
        for name, value in self.plain.items():
            if name not in found:
                return f'the attribute "{prefix}{name}" was removed'
            if found[name] is not value and found[name] != value:
                return f'the attribute "{prefix}{name}" was {value!r} and is {_short(found[name])}'
        return f'the order of the submodules of "{self.path}"'


class Changes:
    """A module as it was, to compare it with what it is.

    Compared are submodules and parameters by identity, hooks, and the attributes that are numbers, strings or ``None``;
    attributes that are new are not, as a training loop may leave its notes there.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._tensors: dict[str, _PlainTensor] = {}
        self._parts = [_Part(path, part) for path, part in module.named_modules()]

    def find(self) -> str | None:
        """The first change in words, and what to do; ``None`` if nothing has changed."""
        for part in self._parts:
            if not part.same():
                return f"{part.change()} {_LATER}: change it before, then call hap.parallelize"
        for path, one in self._tensors.items():
            change = one.change()
            if change:
                what = f'the tensor "{path}", which the forward reads, {change}'
                return f"{what} {_LATER}: make it a buffer or an input, or change it before"
        return None

    def later_hooks(self) -> tuple[Hooks, Hooks]:
        """Forward hooks that the module itself has got since, which run before and after the graph."""
        root = self._parts[0]
        before, after = (
            [*getattr(self._module, name).items()][len(root.hooks[_HOOKS.index(name)]) :] for name in (_BEFORE, _AFTER)
        )
        return before, after

    def watch(self, plain: Mapping[str, str], traced: nn.Module) -> None:
        """Compares from now on the plain tensors that a trace reads, which are its constants, too.

        Args:
            plain: see :class:`hap.graph.Graph`.
            traced: the module that was traced, whose tensors are still those of when the module was taken.
        """
        from hap.trace.root import scope, stand_in

        there, here = scope(stand_in(traced)), scope(stand_in(self._module))
        for path, expression in plain.items():
            if path not in self._tensors:
                at = compile(expression, path, "eval")
                before, now = _found(at, there), _found(at, here)
                if isinstance(before, torch.Tensor):
                    self._tensors[path] = _PlainTensor(at, here, before, now)


class _PlainTensor:
    """A tensor of the user's that is neither a parameter nor a buffer, as it was."""

    def __init__(self, at: types.CodeType, scope: dict[str, Any], before: torch.Tensor, now: object) -> None:
        self.at = at
        self.scope = scope
        self.tensor = now
        # The module may have changed between being taken and being traced.
        same = isinstance(now, torch.Tensor) and (now is before or _equal(now, before))
        self.version = _version(now) if same else -1

    def change(self) -> str:
        """What has changed, in words; empty if nothing has."""
        now = _found(self.at, self.scope)
        if now is None:
            return "was removed"
        if now is not self.tensor:
            return "was replaced by another"
        return "" if _version(now) == self.version else "was changed in place"


def _found(at: types.CodeType, scope: dict[str, Any]) -> object:
    """The value of an expression, ``None`` where there is none."""
    try:
        return eval(at, scope)
    except Exception:
        return None


def _version(value: object) -> int:
    """How often a tensor was changed in place; those made in inference mode do not count it."""
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


def _equal(value: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        value.shape == other.shape
        and value.dtype == other.dtype
        and bool(value.eq(other).logical_or(value.ne(value)).all())
    )


def _getter(names: tuple[str, ...]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    if not names:
        return lambda found: ()
    if len(names) == 1:
        return lambda found: (found[names[0]],)
    return itemgetter(*names)


def _short(value: object) -> str:
    return repr(value) if isinstance(value, _PLAIN) else f"of type {type(value).__name__}"

"""Notices that a module is no longer the one that was traced."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from torch import nn

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
# Followed, or seen by the hooks themselves.
_IGNORED = ("training", "_is_full_backward_hook")
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
            if (hooks or before) and tuple(hooks) != before:
                return False
        try:
            return self.now(found) == self.before
        except KeyError:
            return False

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
            if tuple(getattr(self.part, name)) != before:
                return f'a hook of "{self.path or type(self.part).__name__}" ({name}) was added or removed'
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
        self._parts = [_Part(path, part) for path, part in module.named_modules()]

    def find(self) -> str | None:
        """The first change in words, or ``None``."""
        for part in self._parts:
            if not part.same():
                return part.change()
        return None


def _getter(names: tuple[str, ...]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    if not names:
        return lambda found: ()
    if len(names) == 1:
        return lambda found: (found[names[0]],)
    return itemgetter(*names)


def _short(value: object) -> str:
    return repr(value) if isinstance(value, _PLAIN) else f"of type {type(value).__name__}"

"""The module that is captured in place of the user's: its inputs and outputs are flat lists of tensors.

Dynamo captures flat lists of tensors from more modules than structures of the user's own classes. What the structure
was comes out as a string constant (see :mod:`hap.trace.outputs`).
"""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

TENSOR = object()
"""Stands for a tensor among the flat example inputs."""

_CLASSES: list[Any] = []


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _class_number(cls: Any) -> int:
    """Remembers a class; its number can stand in the string that describes the structure."""
    if cls not in _CLASSES:
        _CLASSES.append(cls)
    return _CLASSES.index(cls)


def remembered_class(number: int) -> Any:
    """The class that a capture met under this number."""
    return _CLASSES[number]


def _describe(value: Any, path: str, found: list[tuple[str, Tensor]]) -> str:
    """Appends the tensors inside ``value`` with their paths to ``found``; returns the structure as a Python literal."""
    if isinstance(value, torch.Tensor):
        found.append((path, value))
        return f"('tensor', {len(found) - 1})"
    if type(value) is float:
        # Not as a literal: there is none for NaN and the infinities.
        return f"('float', '{value!r}')"
    if value is None or type(value) in (bool, int, str):
        return f"('constant', {value!r})"
    prefix = path + "." if path else ""
    if isinstance(value, Mapping):
        kind = "mapping"
        parts = [f"({k!r}, {_describe(v, prefix + str(k), found)})" for k, v in value.items()]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        kind = "named_tuple"
        parts = [f"({k!r}, {_describe(v, prefix + k, found)})" for k, v in zip(value._fields, value, strict=True)]
    elif isinstance(value, (list, tuple)):
        kind = "sequence"
        parts = [f"({i}, {_describe(v, prefix + str(i), found)})" for i, v in enumerate(value)]
    elif dataclasses.is_dataclass(value):
        kind = "dataclass"
        parts = [
            f"({field.name!r}, {_describe(getattr(value, field.name), prefix + field.name, found)})"
            for field in dataclasses.fields(value)
        ]
    else:
        return f"('left_out', {path!r}, {_class_number(type(value))})"
    # What makes the entries that are missing is remembered as classes are.
    factory = _class_number(value.default_factory) if isinstance(value, collections.defaultdict) else None
    return f"('{kind}', {_class_number(type(value))}, [{', '.join(parts)}], {factory})"


class NoGradientError(Exception):
    """Nothing in the module's output can be differentiated."""


class Root(nn.Module):
    """Calls ``module`` on flat tensors; returns its output tensors and a string: paths, roles and structure.

    Where there is a loss (``loss``, else the differentiable scalars), other outputs are detached, unless ``every`` one
    is to be differentiated: else the logits would get a tangent and an addition to their whole gradient. Where there
    are several differentiable outputs each is cloned: outputs that alias each other would share one tangent.
    """

    def __init__(self, module: nn.Module, structure: pytree.TreeSpec, flat: Sequence[Any], *, every: bool) -> None:
        super().__init__()
        self.every = every
        self.module = module
        self.structure = structure
        self.flat = list(flat)
        self.buffer_names = [name for name, _ in module.named_buffers()]
        # Not train(): that would be recursive, and change submodules that the user has frozen.
        self.training = module.training

    def forward(self, *tensors: Tensor) -> tuple[list[Tensor], str]:
        """The flat output tensors, and ``repr`` of ``(paths, whether differentiable, structure)``."""
        rest = iter(tensors)
        args, kwargs = pytree.tree_unflatten([next(rest) if x is TENSOR else x for x in self.flat], self.structure)
        found: list[tuple[str, Tensor]] = []
        before = [self.module.get_buffer(name) for name in self.buffer_names]
        structure = _describe(self.module(*args, **kwargs), "", found)
        for name, old in zip(self.buffer_names, before, strict=True):
            new = self.module.get_buffer(name)
            # `self.total = self.total + x` makes a new tensor, which capture would drop as a change of Python state.
            if new is not old:
                old.copy_(new)
        differentiable = [i for i, (_, x) in enumerate(found) if x.requires_grad]
        if not differentiable:
            raise NoGradientError(
                f"no output of the module requires grad ({len(found)} tensors in its output): return the loss, or an "
                "output that a loss can be computed from, and check for torch.no_grad and frozen parameters. A module "
                "that is only evaluated may do so under torch.no_grad() with parameters that require grad"
            )
        losses = [i for i in differentiable if found[i][0] == "loss"]
        if not losses:
            losses = [i for i in differentiable if found[i][1].dim() == 0]
        kept = losses if losses and not self.every else differentiable
        outputs = []
        for i, (_, x) in enumerate(found):
            if i in kept:
                outputs.append(x.clone() if len(kept) > 1 else x)
            else:
                outputs.append(x.detach() if x.requires_grad else x)
        return outputs, f"({[path for path, _ in found]!r}, {kept!r}, {structure})"


def scope(root: object) -> dict[str, Any]:
    """The names in Dynamo's expressions for what a capture of ``root`` reads, a :class:`Root` or :func:`stand_in`."""
    return {"L": {"self": root}, "G": globals()}


def stand_in(module: nn.Module) -> object:
    """What Dynamo's expressions read of the :class:`Root` of a module, without one."""
    return types.SimpleNamespace(module=module, _modules={"module": module})

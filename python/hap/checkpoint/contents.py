"""What modules and optimisers put into a checkpoint, by names that no plan changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from hap.checkpoint.folder import Groups
from hap.checkpoint.piece import Piece
from hap.errors import CheckpointError
from hap.runtime.along import Along
from hap.runtime.module import ParallelModule
from hap.runtime.optimisers import mark_of
from hap.runtime.placing import Layout

Entries: TypeAlias = dict[str, Any]
"""Tensors and pieces, by name; may be nested. All other values stand in tuples of one, which are not taken apart."""


@dataclass(frozen=True)
class Lies:
    """How a tensor lies on the ranks: whole on each without a layout that splits it."""

    layout: Layout | None = None
    rank: int = 0

    def entry(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor that lies so, as a checkpoint takes it; it shares the tensor's memory."""
        value = value.detach()
        if self.layout is None or not self.layout.cut(self.rank):
            return value
        along = self.layout.along or Along(0, (), (0,) * len(self.layout.shapes))
        return Piece(value, self.layout.shape, along, self.rank)


@dataclass(frozen=True)
class Named:
    """A parameter, its name in the checkpoint, and how it lies."""

    name: str
    parameter: torch.Tensor
    lies: Lies

    def state(self, value: Any) -> Any:
        """A value of an optimiser's state: what is as large as the parameter lies as it does."""
        if not isinstance(value, torch.Tensor):
            return (value,)
        return (self.lies if value.shape == self.parameter.shape else Lies()).entry(value)

    def room(self, size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Memory for a tensor of an optimiser's state, to be read to, from the size of the whole."""
        layout = self.lies.layout
        if layout is None or not size or not layout.cut(self.lies.rank) or tuple(size) != layout.shape:
            return torch.empty(size, dtype=dtype)
        return self.lies.entry(torch.empty(self.parameter.shape, dtype=dtype))


def module_entries(module: nn.Module) -> Entries:
    """What ``module.state_dict()`` holds; tensors share their memory with the module's."""
    layouts = _layouts(module)
    return {
        name: layouts.get(id(value), Lies()).entry(value) if isinstance(value, torch.Tensor) else (value,)
        for name, value in module.state_dict(keep_vars=True).items()
    }


def awaits_values(module: nn.Module) -> bool:
    """Whether values of a module are still to come: of what is on the meta device, or from files with its first plan.

    Raises:
        HapError: its placing has failed.
    """
    if isinstance(module, ParallelModule):
        module._hap_session.check_whole()
        if not module._hap_session.placed and module._hap_session.weights is not None:
            return True
    return any(tensor.is_meta for tensor in [*module.parameters(), *module.buffers()])


def named_parameters(modules: Mapping[str, nn.Module]) -> dict[int, Named]:
    """The parameters of modules, by identity. Their names begin with the module's, whatever is saved beside it."""
    named: dict[int, Named] = {}
    for key, module in modules.items():
        layouts = _layouts(module)
        for name, parameter in module.named_parameters():
            lies = layouts.get(id(parameter), Lies())
            named.setdefault(id(parameter), Named(f"{key}.{name}", parameter, lies))
    return named


def of_optimiser(key: str, optimiser: Optimizer, named: Mapping[int, Named]) -> list[list[Named]]:
    """The parameters of each group.

    Raises:
        CheckpointError: one belongs to no module in the checkpoint.
    """
    groups = []
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in named:
                raise CheckpointError(
                    f'the optimiser "{key}" holds a parameter of shape {tuple(parameter.shape)} that no module of the '
                    "checkpoint has: give the module beside it"
                )
        groups.append([named[id(parameter)] for parameter in group["params"]])
    return groups


def groups_of(key: str, optimiser: Optimizer, named: Mapping[int, Named]) -> Groups:
    """What an optimiser is and trains.

    Raises:
        CheckpointError: as :func:`of_optimiser`.
    """
    kinds = type(optimiser).__mro__
    return Groups(
        kinds=tuple(kind.__name__ for kind in kinds if issubclass(kind, Optimizer) and kind is not Optimizer),
        names=tuple(tuple(one.name for one in group) for group in of_optimiser(key, optimiser, named)),
    )


def optimiser_entries(key: str, optimiser: Optimizer, named: Mapping[int, Named]) -> Entries:
    """As ``optimiser.state_dict()``: state by the names of parameters; groups without them (see :func:`groups_of`).

    Raises:
        CheckpointError: as :func:`of_optimiser`.
    """
    groups = of_optimiser(key, optimiser, named)
    content = optimiser.state_dict()
    numbered = {
        number: one
        for numbers, members in zip(content["param_groups"], groups, strict=True)
        for number, one in zip(numbers["params"], members, strict=True)
    }
    return {
        "state": {
            numbered[number].name: {what: numbered[number].state(value) for what, value in values.items()}
            for number, values in content["state"].items()
        },
        "param_groups": (
            [{what: value for what, value in group.items() if what != "params"} for group in content["param_groups"]],
        ),
    }


def _layouts(module: nn.Module) -> dict[int, Lies]:
    """How the split tensors of a module lie, by identity; nothing for an ordinary module."""
    if not isinstance(module, ParallelModule):
        if any(
            isinstance(part, ParallelModule) or any(map(mark_of, part.parameters(recurse=False)))
            for part in module.modules()
        ):
            raise CheckpointError(
                f"{type(module).__name__} holds, or is part of, a parallel module: give the module itself that "
                "hap.parallelize returned, not one around it or inside it"
            )
        return {}
    session = module._hap_session
    return {key: Lies(layout, session.group.rank) for key, layout in session.layouts().items()}

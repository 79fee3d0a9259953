"""``hap.load``: a training run goes on, under any plan, on any devices."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from hap.checkpoint import folder
from hap.checkpoint.contents import Named, awaits_values, groups_of, module_entries, named_parameters, of_optimiser
from hap.checkpoint.piece import Piece
from hap.checkpoint.save import carried_out, check_shared, control_of, finish_earlier, is_stateful, modules_of
from hap.errors import CheckpointError
from hap.runtime.module import ParallelModule


def load(path: str | os.PathLike[str], contents: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """Load what :func:`save` has saved. A collective: all ranks call it; each reads what it needs.

    ``rest = hap.load("checkpoint", {"model": model, "optimizer": optimizer, "scheduler": scheduler})``

    Modules may be parallel, under any plan, or ordinary ones with values; optimisers may be new. Parallel
    modules get back the state of their random numbers, too, so that training goes on as if it had not been interrupted.

    Args:
        path: the folder.
        contents: by the names in the checkpoint, what to fill: modules, their optimisers, other objects with
            ``load_state_dict``.
        strict: whether the tensors of modules must be those of the checkpoint, none missing and none more.

    Returns:
        What else the checkpoint holds, by name: plain values, and state that nothing in ``contents`` took.

    Raises:
        CheckpointError: there is no checkpoint, or it does not fit; on all ranks. Names, kinds and shapes are compared
            before anything is loaded; only where reading itself fails may ``contents`` be filled in part.
    """
    finish_earlier()
    path = Path(path)
    control = control_of(contents)
    pointer = control.settle(lambda: folder.read(path), "looking for a checkpoint")
    check_shared(control, path / pointer.data, pointer.token)
    reader = FileSystemReader(path / pointer.data)

    def prepared() -> _Reading:
        try:
            return _Reading(path, pointer, reader.read_metadata(), contents, strict)
        except OSError as error:
            raise CheckpointError(f"{path / pointer.data} cannot be read: {error}") from error

    reading = control.together(prepared, "reading a checkpoint's contents")
    carried_out(
        f"loading from {path}",
        lambda: state_dict_loader.load(
            reading.entries, storage_reader=reader, process_group=control.group, no_dist=control.group is None
        ),
    )
    rest = control.together(reading.finish, "loading a checkpoint")
    for key, state in pointer.modules.items():
        module = contents.get(key)
        if isinstance(module, ParallelModule) and state is not None:
            module.rng_state = state
    return rest


class _Reading:
    """What is read and where it goes.

    Attributes:
        entries: by the names in the checkpoint, memory for tensors; filled by reading.
    """

    def __init__(
        self, path: Path, pointer: folder.Pointer, metadata: Metadata, contents: Mapping[str, Any], strict: bool
    ) -> None:
        self.path = path
        self.pointer = pointer
        self.contents = contents
        self.strict = strict
        self.entries: dict[str, Any] = {}
        # By what was saved, its key in front, then names: the name under which the checkpoint holds it.
        self.names: dict[tuple[str, ...], str] = {
            tuple(map(str, place)): name for name, place in metadata.planner_data.items()
        }
        self.stored = metadata.state_dict_metadata
        self.named = named_parameters(modules_of(contents))
        for key, value in contents.items():
            self._check_kind(key, value)
            if isinstance(value, nn.Module):
                self._module(key, value)
            elif isinstance(value, Optimizer):
                self._optimiser(key, value)
        self.entries |= {name: None for place, name in self.names.items() if len(place) == 1}

    def finish(self) -> dict[str, Any]:
        """Hand over what was read, but for tensors of modules, which were read in place. What nothing takes."""
        for key, value in self.contents.items():
            if isinstance(value, nn.Module):
                self._set_extra_state(key, value)
            elif isinstance(value, Optimizer):
                value.load_state_dict(self._optimiser_state(key, value))
            else:
                value.load_state_dict(self._value(key))
        rest = [place[0] for place in self.names if len(place) == 1 and place[0] not in self.contents]
        return {key: self._value(key) for key in rest}

    def _check_kind(self, key: str, value: Any) -> None:
        """Raise where the checkpoint holds nothing of this name, or what is of another kind."""
        keys = {place[0] for place in self.names} | self.pointer.modules.keys()
        if key not in keys:
            raise CheckpointError(f'{self.path} holds no "{key}", only {_listed(keys)}')
        here = "a module" if isinstance(value, nn.Module) else "an optimiser" if isinstance(value, Optimizer) else None
        there = (
            "a module" if key in self.pointer.modules else "an optimiser" if key in self.pointer.optimisers else None
        )
        if here is None and not is_stateful(value):
            raise CheckpointError(
                f'"{key}": expected a module, an optimiser or an object with load_state_dict, got '
                f"{type(value).__name__}; other values come back as the result"
            )
        if here != there:
            raise CheckpointError(
                f'"{key}" is {there or "neither module nor optimiser"} in {self.path}, and {type(value).__name__} here'
            )

    def _value(self, *place: str) -> Any:
        """What stands in a tuple of one."""
        (value,) = self.entries[self.names[place]]
        return value

    def _under(self, key: str) -> dict[tuple[str, ...], str]:
        return {place[1:]: name for place, name in self.names.items() if place[0] == key}

    def _module(self, key: str, module: nn.Module) -> None:
        entries = module_entries(module)
        session = module._hap_session if isinstance(module, ParallelModule) else None
        if awaits_values(module) or (session is not None and not session.placed and session.group.size > 1):
            raise CheckpointError(
                f'"{key}" has not been placed yet, and what is loaded now would be lost: give hap.parallelize example '
                "inputs, or call the module once, before it is loaded"
            )
        wanted, saved = {(name,) for name in entries}, self._under(key)
        if self.strict and wanted != saved.keys():
            lacks, more = (
                _listed(".".join(place) for place in found) for found in (wanted - saved.keys(), saved.keys() - wanted)
            )
            raise CheckpointError(
                f'{self.path} does not fit the module "{key}": it lacks {lacks}, and holds {more} that the module does '
                "not have; strict=False loads the rest"
            )
        for name, value in entries.items():
            if (name,) in saved:
                self._check(saved[name,], value)
                self.entries[saved[name,]] = value

    def _check(self, name: str, value: Any) -> None:
        """Raise where an entry of a module is not what the checkpoint holds."""
        stored, here = self.stored[name], tuple(value.size()) if isinstance(value, torch.Tensor) else None
        there = tuple(stored.size) if isinstance(stored, TensorStorageMetadata) else None
        if here != there:
            texts = ["no tensor" if shape is None else f"of the shape {shape}" for shape in (there, here)]
            raise CheckpointError(f'{self.path}: "{name}" is {texts[0]} there, and {texts[1]} in the module')

    def _set_extra_state(self, key: str, module: nn.Module) -> None:
        for (name,), flat in self._under(key).items():
            value = self.entries.get(flat)
            if value is not None and not isinstance(value, torch.Tensor):
                module.get_submodule(name.rpartition(".")[0]).set_extra_state(value[0])

    def _optimiser(self, key: str, optimiser: Optimizer) -> None:
        there, here = self.pointer.optimisers[key], groups_of(key, optimiser, self.named)
        if not set(there.kinds) & set(here.kinds):
            raise CheckpointError(
                f'{self.path} does not fit the optimiser "{key}": {there.kinds[0]} there, and {here.kinds[0]} here'
            )
        if [sorted(names) for names in there.names] != [sorted(names) for names in here.names]:
            raise CheckpointError(
                f'{self.path} does not fit the optimiser "{key}": its groups hold {_groups(there.names)} there, and '
                f"{_groups(here.names)} here"
            )
        owners = {one.name: one for group in of_optimiser(key, optimiser, self.named) for one in group}
        for place, name in self._under(key).items():
            self.entries[name] = _room(self.stored[name], owners[place[1]]) if place[0] == "state" else None

    def _optimiser_state(self, key: str, optimiser: Optimizer) -> dict[str, Any]:
        """What ``optimiser.load_state_dict`` takes: parameters have numbers, in the order of the groups."""
        here = groups_of(key, optimiser, self.named).names
        numbers = {name: number for number, name in enumerate(name for names in here for name in names)}
        state: dict[int, dict[str, Any]] = {}
        for place, flat in self._under(key).items():
            if place[0] == "state":
                value = self.entries[flat]
                value = value.local if isinstance(value, Piece) else value[0] if isinstance(value, tuple) else value
                state.setdefault(numbers[place[1]], {})[place[2]] = value
        return {
            "state": state,
            "param_groups": [
                group | {"params": [numbers[name] for name in names]}
                for group, names in zip(self._value(key, "param_groups"), here, strict=True)
            ],
        }


def _room(stored: Any, owner: Named) -> Any:
    """Memory for a tensor of an optimiser's state; other values bring their own."""
    return owner.room(stored.size, stored.properties.dtype) if isinstance(stored, TensorStorageMetadata) else None


def _groups(groups: Iterable[Iterable[str]]) -> str:
    """The names in groups, for an error."""
    return "; ".join(f"({_listed(names)})" for names in groups)


def _listed(names: Iterable[str]) -> str:
    """Names for an error, not too many."""
    names = sorted(names)
    if not names:
        return "nothing"
    shown = ", ".join(f'"{name}"' for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"

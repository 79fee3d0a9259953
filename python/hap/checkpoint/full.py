"""Whole states from the ranks' shards, tensor by tensor: for plain PyTorch, and as safetensors."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from hap.checkpoint.contents import awaits_values
from hap.errors import CheckpointError
from hap.runtime.module import ParallelModule
from hap.runtime.session import Session

SHARD_SIZE = 5 * 10**9
"""Bytes of one file of an export, as Hugging Face has it."""
_INDEX = "model.safetensors.index.json"
_EXPORTED = re.compile(r"model(-\d{5,}-of-\d{5,})?\.safetensors(\.index\.json)?(\.part)?")
"""Names of the files of an export; such as are not yet in their places end in ``.part``."""


def full_state_dict(model: nn.Module) -> dict[str, Any]:
    """The whole state of a parallel module on rank 0, which plain PyTorch loads with ``strict=True``. A collective.

    Tensors are gathered one by one and kept in the host's memory of rank 0; the other ranks get an empty dictionary.
    What the module has under several names stays one tensor.

    Raises:
        CheckpointError: the module is not parallel, or not placed yet; on all ranks.
    """
    session = _session(model)
    kept: dict[int, Any] = {}
    state: dict[str, Any] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in kept:
            kept[id(value)] = _gathered(session, name, value) if isinstance(value, torch.Tensor) else value
        state[name] = kept[id(value)]
    return state if session.group.rank == 0 else {}


def export_safetensors(model: nn.Module, path: str | os.PathLike[str], *, shard_size: int = SHARD_SIZE) -> None:
    """Write the whole state of a parallel module as safetensors, which Hugging Face's libraries read. A collective.

    Into a folder, ``model.safetensors``, or ``model-00001-of-00003.safetensors`` and so on with their index. Rank 0
    writes, and holds the tensors of one file at a time. What the module has under several names is written under the
    first one; the file's metadata names the others as ``safetensors.torch.save_model`` does, so that its ``load_model``
    finds them.

    Files of an earlier export are taken away when all of the new ones are written; an export that is cut off before
    leaves them as they were.

    Args:
        model: the parallel module.
        path: the folder; made if it is not there. It may hold other files, but no other index of safetensors.
        shard_size: bytes of the largest file, but for a tensor that is larger.

    Raises:
        CheckpointError: the module is not parallel or not placed yet, has state that is no tensor, or a file cannot be
            written; on all ranks.
    """
    session, path = _session(model), Path(path)
    tensors, aliases = _unique(model)
    sizes = {name: _bytes(session, value) for name, value in tensors.items()}
    files = _grouped(sizes, shard_size)

    def on_rank_0(write: Callable[[], object], target: Path) -> None:
        def attempt() -> None:
            try:
                write()
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{target} cannot be written: {error}") from error

        session.control.settle(attempt, f"writing {target}")

    on_rank_0(lambda: _made(path), path)
    where: dict[str, str] = {}
    for number, names in enumerate(files, 1):
        file = "model.safetensors" if len(files) == 1 else f"model-{number:05}-of-{len(files):05}.safetensors"
        metadata = {"format": "pt"} | {alias: name for alias, name in aliases.items() if name in names}
        whole = {name: _gathered(session, name, tensors[name]) for name in names}
        on_rank_0(partial(save_file, whole, _part(path / file), metadata=metadata), path / file)
        where |= dict.fromkeys(names, file)
    written = sorted(set(where.values()))
    if len(files) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(where.items()))}
        on_rank_0(lambda: _part(path / _INDEX).write_text(json.dumps(index, indent=2) + "\n"), path / _INDEX)
        written.append(_INDEX)
    on_rank_0(lambda: _replace(path, written), path)


def _made(path: Path) -> None:
    """Make the folder of an export, and check that its files will be the ones that are found there."""
    path.mkdir(parents=True, exist_ok=True)
    for other in sorted(path.glob("*.safetensors.index.json")):
        if other.name != _INDEX:
            raise CheckpointError(f"{path} holds {other.name}, which readers would take: export to another folder")


def _replace(path: Path, written: list[str]) -> None:
    """Put the files of a new export in the places of an earlier one's; an index comes last."""
    for entry in path.iterdir():
        if _EXPORTED.fullmatch(entry.name) and entry.name not in [_part(path / name).name for name in written]:
            entry.unlink()
    for name in written:
        _part(path / name).replace(path / name)


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _session(model: nn.Module) -> Session:
    if not isinstance(model, ParallelModule):
        raise CheckpointError(
            f"expected a module from hap.parallelize, got {type(model).__name__}: an ordinary module's state is whole, "
            "take state_dict()"
        )
    session = model._hap_session

    def placed() -> None:
        if awaits_values(model):
            raise CheckpointError(
                "the module has not been placed yet, so that its values are still to come: give hap.parallelize "
                "example inputs, or call the module once, before its state is gathered"
            )

    session.control.together(placed, "gathering a module's state")
    return session


def _gathered(session: Session, name: str, value: torch.Tensor) -> torch.Tensor:
    """A tensor of the state as a whole in the host's memory of rank 0; nothing elsewhere."""
    layout, value = session.layouts().get(id(value)), value.detach()
    whole = value if layout is None else layout.gather(value, name, session.group)
    if session.group.rank > 0:
        return torch.empty(0)
    return whole.to("cpu", copy=whole is value).contiguous()


def _bytes(session: Session, value: torch.Tensor) -> int:
    """Of the whole tensor."""
    layout = session.layouts().get(id(value))
    return math.prod(value.shape if layout is None else layout.shape) * value.dtype.itemsize


def _unique(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of a module's state, each under its first name; by each further name, the first."""
    first: dict[int, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            raise CheckpointError(f'"{name}" is {type(value).__name__}, no tensor: safetensors cannot hold it')
        if first.setdefault(id(value), name) == name:
            tensors[name] = value
        else:
            aliases[name] = first[id(value)]
    return tensors, aliases


def _grouped(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Names in order, in groups of at most so many bytes."""
    groups: list[list[str]] = [[]]
    held = 0
    for name, size in sizes.items():
        if groups[-1] and held + size > most:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    return groups

"""Where a checkpoint lies: a folder in which one file says which data is the last that was saved whole.

``checkpoint.json`` names a folder beside it. A save writes a new one and then replaces that file in one step, so that a
save that is cut off leaves the checkpoint before it as it was.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec

from hap.errors import CheckpointError

FORMAT = "hap-checkpoint-2"
POINTER = "checkpoint.json"
PATIENCE = 5.0
"""Seconds that a host may take to see what another one has written."""
_DATA = re.compile(r"data-(\d+)")
_TOKEN = "token"


class Groups(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an optimiser in a checkpoint trains, to be compared before anything is loaded into another one.

    Attributes:
        kinds: the names of its class and of those that it derives from.
        names: of the parameters in each of its groups.
    """

    kinds: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]


class Pointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What ``checkpoint.json`` holds.

    Attributes:
        format: the version of the format.
        data: the folder with the data, as :mod:`torch.distributed.checkpoint` writes it.
        token: what that folder holds in a file, unlike any other.
        modules: the modules in the checkpoint by name; of parallel ones, seed and step of their random numbers.
        optimisers: the optimisers.
    """

    format: str
    data: str
    token: str
    modules: dict[str, tuple[int, int] | None]
    optimisers: dict[str, Groups]


def read(path: Path) -> Pointer:
    """What the folder holds.

    Raises:
        CheckpointError: it holds no checkpoint, or one that cannot be read.
    """
    try:
        text = (path / POINTER).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} holds no checkpoint of hap.save: {error.strerror or error}") from error
    try:
        content: Any = msgspec.json.decode(text)
        if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
            raise CheckpointError(f"{path / POINTER}: expected the format {FORMAT!r}, got {content['format']!r}")
        pointer = msgspec.convert(content, Pointer)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{path / POINTER}: {error}") from error
    if not _DATA.fullmatch(pointer.data) or not (path / pointer.data).is_dir():
        raise CheckpointError(f"{path / POINTER} names {pointer.data!r}, which is no folder beside it")
    return pointer


def begin(path: Path) -> tuple[str, str]:
    """Make room for a new save: the name of its data's folder, and a token that lies in there.

    What saves that were cut off left is taken away.

    Raises:
        CheckpointError: the folder holds other things than a checkpoint.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = sorted(entry.name for entry in path.iterdir())
        foreign = [name for name in names if name not in (POINTER, _part(POINTER)) and not _DATA.fullmatch(name)]
        if foreign:
            raise CheckpointError(f"{path} holds {foreign[0]!r}, which is no part of a checkpoint: take another folder")
        kept = read(path).data if POINTER in names else None
        numbers = {name: int(match[1]) for name in names if (match := _DATA.fullmatch(name))}
        for name in numbers:
            if name != kept:
                shutil.rmtree(path / name)
        data, token = f"data-{max(numbers.values(), default=0) + 1}", secrets.token_hex(16)
        (path / data).mkdir()
        (path / data / _TOKEN).write_text(token)
    except OSError as error:
        raise CheckpointError(f"{path} cannot hold a checkpoint: {error}") from error
    return data, token


def sees(data: Path, token: str) -> bool:
    """Whether this host sees the folder with that token. Hosts may see late what another one has written."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            if (data / _TOKEN).read_text() == token:
                return True
        except OSError:
            pass
        if time.monotonic() > end:
            return False
        time.sleep(0.05)


def publish(path: Path, pointer: Pointer) -> None:
    """Let the checkpoint be what the pointer says, in one step; then take the data before it away."""
    try:
        part = path / _part(POINTER)
        with part.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(pointer)))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path / POINTER)
        _sync(path)
        for entry in path.iterdir():
            if _DATA.fullmatch(entry.name) and entry.name != pointer.data:
                shutil.rmtree(entry)
    except OSError as error:
        raise CheckpointError(f"the checkpoint {path} could not be completed: {error}") from error


def _part(name: str) -> str:
    return f"{name}.part"


def _sync(path: Path) -> None:
    """Have the folder's entries on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

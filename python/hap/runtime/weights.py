"""Parameters and buffers out of safetensors: one file, or several with Hugging Face's index; only what a rank needs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from hap.errors import HapError
from hap.runtime.placing import Layout

_INDEX = "*.safetensors.index.json"


class Weights:
    """The tensors of a checkpoint in safetensors.

    Args:
        path: a file; or a folder that holds ``model.safetensors``, or an index with the files that it names.

    Raises:
        HapError: there is none, or it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._files = _files(self.path)
        self.shapes: dict[str, tuple[int, ...]] = {}
        for file in sorted(set(self._files.values())):
            with _opened(file) as content:
                held = set(content.keys())
                for name in sorted(name for name, where in self._files.items() if where == file):
                    if name not in held:
                        raise HapError(f'{file} does not hold "{name}", which the index says it does')
                    self.shapes[name] = tuple(content.get_slice(name).get_shape())

    def read(self, pieces: Mapping[str, tuple[torch.Tensor, Layout | None]], rank: int) -> None:
        """Fill a rank's pieces, by name, with their values, converted to their element types.

        Each file is opened once. Without a layout that splits it a piece is the whole tensor.
        """
        for file in sorted({self._files[name] for name in pieces}):
            with _opened(file) as content:
                for name, (piece, layout) in pieces.items():
                    if self._files[name] == file:
                        _fill(piece, content.get_slice(name), layout, rank)


def _fill(piece: torch.Tensor, stored: object, layout: Layout | None, rank: int) -> None:
    if not piece.numel():
        return
    if layout is None or layout.along is None or piece.dim() == 0:
        piece.copy_(stored[...])  # type: ignore[index]
        return
    dim = layout.along.dim
    for place, local, length in layout.along.stretches(rank):
        part = stored[(*(slice(None),) * dim, slice(place, place + length))]  # type: ignore[index]
        piece.narrow(dim, local, length).copy_(part)


def _files(path: Path) -> dict[str, Path]:
    """By the name of a tensor, the file that holds it."""
    if path.is_dir():
        indices = sorted(path.glob(_INDEX))
        single = path / "model.safetensors"
        if len(indices) > 1:
            raise HapError(f"{path} holds several indices ({indices[0].name}, {indices[1].name}): name one of them")
        if indices:
            path = indices[0]
        elif single.exists():
            path = single
        else:
            raise HapError(f"{path} holds neither model.safetensors nor an index ({_INDEX})")
    if path.suffix != ".json":
        with _opened(path) as content:
            return dict.fromkeys(content.keys(), path)
    try:
        where = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): path.parent / file for name, file in where.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HapError(f"{path} is no index of safetensors: {type(error).__name__}: {error}") from error


def _opened(path: Path) -> safe_open:
    try:
        # Mapped pages would count as the rank's memory.
        return safe_open(path, "pt", backend="pread")
    except (OSError, SafetensorError) as error:
        raise HapError(f"{path} cannot be read as safetensors: {error}") from error

"""Cuts tensors along an axis of one of their dimensions, and joins the pieces.

A dimension is an ordered sum of *blocks*, and each block is viewed as ``(outer, units, inner)`` with the axis in the
middle: all blocks are cut at the same units at once. A dimension that is a product of axes has one block; the fused
queries, keys and values of an attention have three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple, Protocol

import torch

Blocks = tuple[tuple[int, int], ...]
"""Of each block, the products of what stands outside and inside of the axis."""


class Cut(Protocol):
    """Where an axis lies in a tensor."""

    @property
    def dim(self) -> int:
        """The dimension."""

    @property
    def blocks(self) -> Blocks:
        """Its blocks."""


class Place(NamedTuple):
    """Where an axis lies in a tensor, as plain data."""

    dim: int
    blocks: Blocks


class Occurrence(NamedTuple):
    """One axis, by its number, in one dimension of a tensor."""

    dim: int
    axis: int
    blocks: Blocks

    @property
    def place(self) -> Place:
        """Where it lies."""
        return Place(self.dim, self.blocks)


def leads(shape: Sequence[int], cut: Cut) -> bool:
    """Whether shares of a tensor of this shape lie one after another in memory."""
    return len(cut.blocks) == 1 and prod(shape[: cut.dim]) * cut.blocks[0][0] == 1


def row(cut: Cut) -> int:
    """Elements of the dimension for each unit of the axis."""
    return sum(outer * inner for outer, inner in cut.blocks)


def local_shape(shape: Sequence[int], cut: Cut, units: int) -> tuple[int, ...]:
    """The shape of a piece of so many units."""
    return (*shape[: cut.dim], row(cut) * units, *shape[cut.dim + 1 :])


def narrow(value: torch.Tensor, cut: Cut, start: int, length: int) -> torch.Tensor:
    """The units ``start`` to ``start + length``; a view where there can be one."""
    parts = [view.narrow(cut.dim + 1, start, length) for view in _views(value, cut)]
    return _flattened(parts, cut, local_shape(value.shape, cut, length))


def split(value: torch.Tensor, cut: Cut, lengths: Sequence[int]) -> list[torch.Tensor]:
    """All pieces, of so many units each; views where there can be such."""
    views = _views(value, cut)
    parts = zip(*(torch.split(view, list(lengths), cut.dim + 1) for view in views), strict=True)
    return [
        _flattened(part, cut, local_shape(value.shape, cut, units)) for part, units in zip(parts, lengths, strict=True)
    ]


def join(pieces: Sequence[torch.Tensor], cut: Cut) -> torch.Tensor:
    """The tensor whose pieces these are, in order: the inverse of :func:`split`. A copy, of all at once."""
    size = sum(piece.shape[cut.dim] for piece in pieces)
    shape = (*pieces[0].shape[: cut.dim], size, *pieces[0].shape[cut.dim + 1 :])
    if len(cut.blocks) == 1:
        return torch.cat([_views(piece, cut)[0] for piece in pieces], cut.dim + 1).reshape(shape)
    whole, start = pieces[0].new_empty(shape), 0
    for piece in pieces:
        write(whole, cut, start, piece)
        start += piece.shape[cut.dim] // row(cut)
    return whole


def write(whole: torch.Tensor, cut: Cut, start: int, piece: torch.Tensor) -> None:
    """Writes a piece into its place in a contiguous tensor, from the unit ``start``."""
    for place, part in _places(whole, cut, start, piece):
        place.copy_(part)


def read(whole: torch.Tensor, cut: Cut, start: int, piece: torch.Tensor) -> None:
    """Fills a contiguous piece with what is in its place, from the unit ``start``."""
    for place, part in _places(whole, cut, start, piece):
        part.copy_(place)


def _places(
    whole: torch.Tensor, cut: Cut, start: int, piece: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Where each block of a piece lies in the whole, from the unit ``start``, and the block: views of both."""
    units = piece.shape[cut.dim] // row(cut)
    for place, part in zip(_views(whole, cut), _views(piece, cut), strict=True):
        yield place.narrow(cut.dim + 1, start, units), part


def positions(cut: Cut, units: int, start: int, length: int) -> torch.Tensor:
    """Where the elements of a piece stand in the whole dimension, which has ``units`` units; ascending, int64."""
    return narrow(torch.arange(row(cut) * units), Place(0, cut.blocks), start, length)


def _views(value: torch.Tensor, cut: Cut) -> list[torch.Tensor]:
    """Each block with its dimension as three: outer, units, inner."""
    before, behind = value.shape[: cut.dim], value.shape[cut.dim + 1 :]
    units = value.shape[cut.dim] // row(cut)
    if len(cut.blocks) == 1:
        parts: Sequence[torch.Tensor] = [value]
    else:
        parts = torch.split(value, [outer * units * inner for outer, inner in cut.blocks], cut.dim)
    return [
        part.reshape(*before, outer, units, inner, *behind)
        for part, (outer, inner) in zip(parts, cut.blocks, strict=True)
    ]


def _flattened(parts: Sequence[torch.Tensor], cut: Cut, shape: Sequence[int]) -> torch.Tensor:
    """The tensor of a shape from its blocks, whose dimension stands as three."""
    if len(parts) == 1:
        return parts[0].reshape(tuple(shape))
    flat = [
        part.reshape(*shape[: cut.dim], prod(part.shape[cut.dim : cut.dim + 3]), *shape[cut.dim + 1 :])
        for part in parts
    ]
    return torch.cat(flat, cut.dim)

"""Between whole tensors and the ranks' pieces of them, outside a lowered graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hap.placement import Partial, Replicate, parse
from hap.program import Placements, Splits
from hap.rules import pieces
from hap.runtime.along import Along
from hap.runtime.collectives import all_gather, slice_share
from hap.runtime.requests import Broadcasts, Steps

if TYPE_CHECKING:
    from hap.rules import AxisGraph
    from hap.runtime.group import Group


@dataclass(frozen=True, slots=True)
class Layout:
    """How one tensor lies on all ranks.

    Attributes:
        shape: shape of the whole tensor.
        shapes: shape of each rank's piece.
        along: the occurrence that it is split along; ``None`` where each rank holds the whole.
        axis: the name of the axis that it is split along.
        idle: ranks that hold nothing that counts: no elements, or the one of a scalar, which then is no value of it.
    """

    shape: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    along: Along | None
    axis: str | None = None
    idle: tuple[int, ...] = ()

    @property
    def everywhere(self) -> bool:
        """Whether each rank holds the whole."""
        return self.along is None and not self.idle

    @property
    def first(self) -> int:
        """The first rank that is not idle."""
        return next(rank for rank in range(len(self.idle) + 1) if rank not in self.idle)

    def cut(self, rank: int) -> bool:
        """Whether a rank holds a piece, not the whole."""
        return self.along is not None or rank in self.idle

    def spread(self, devices: tuple[int, ...], ranks: int) -> Layout:
        """The same for a job of so many ranks, of which ``devices`` are those of this layout; the others are idle."""
        if len(devices) == ranks:
            return self
        places = {rank: place for place, rank in enumerate(devices)}
        idle = tuple(rank for rank in range(ranks) if rank not in places)
        along = self.along
        if along is not None:
            along = along._replace(units=spread(along.units, devices, ranks))
        shapes = (self.shapes[places[rank]] if rank in places else self._nothing(along, rank) for rank in range(ranks))
        return Layout(self.shape, tuple(shapes), along, self.axis, idle)

    def _nothing(self, along: Along | None, rank: int) -> tuple[int, ...]:
        if along is not None:
            return along.shape(self.shape, rank)
        return (0, *self.shape[1:]) if self.shape else ()

    def share(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """A rank's piece of a whole tensor; may be a view of it."""
        if self.along is None:
            return whole.new_zeros(self.shapes[rank]) if rank in self.idle else whole
        return slice_share(whole, along=self.along, rank=rank)

    def fill(self, piece: torch.Tensor, whole: torch.Tensor, rank: int) -> None:
        """Write a rank's piece of a whole tensor into memory of the piece's shape, without another copy."""
        if self.along is not None:
            dim = self.along.dim
            for place, local, length in self.along.stretches(rank):
                piece.narrow(dim, local, length).copy_(whole.narrow(dim, place, length))
        elif rank not in self.idle:
            piece.copy_(whole)
        else:
            piece.zero_()

    def assemble(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The whole tensor from the pieces of all ranks in one process."""
        return parts[0] if self.along is None else pieces.join(parts, self.along)

    def gather(self, piece: torch.Tensor, name: str, group: Group) -> torch.Tensor:
        """The whole tensor on every rank. A collective: called by all ranks."""
        if self.everywhere or group.size == 1:
            return piece
        if self.along is None:
            steps = _from_first(piece, self, group.rank)
            return group.run(f'broadcast of "{name}"', steps)
        return all_gather(piece, name=name, shape=self.shape, along=self.along, implementation="grouped", group=group)


def _from_first(piece: torch.Tensor, layout: Layout, rank: int) -> Steps:
    whole = piece.contiguous() if rank == layout.first else piece.new_empty(layout.shape)
    if whole.numel():
        yield Broadcasts(((layout.first, whole),))
    return whole


def spread(units: Sequence[int], devices: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """Units by rank of a job, from those of some ranks; the others have none."""
    held = dict(zip(devices, units, strict=True))
    return tuple(held.get(rank, 0) for rank in range(ranks))


def whole_on(shape: tuple[int, ...], devices: tuple[int, ...], ranks: int) -> Layout:
    """How a tensor lies in a job of which these ranks hold the whole."""
    return Layout(shape, (shape,) * len(devices), None).spread(devices, ranks)


def along(axes: AxisGraph, splits: Splits, tensor: int, occurrence: int) -> Along:
    """One occurrence of a tensor, split as its axis is."""
    dim, axis, blocks = axes.occurrences[tensor][occurrence]
    return Along(dim, blocks, tuple(splits[axes.axes[axis].name]))


def layout(axes: AxisGraph, splits: Splits, tensor: int, placements: Placements, ranks: int) -> Layout:
    """How a tensor in these placements lies on all ranks. ``placements`` must not be partial."""
    assert len(placements) == 1, "the mesh has one level"
    placement = parse(placements[0])
    assert not isinstance(placement, Partial), "a partial tensor is no input or output"
    shape = axes.graph.tensors[tensor].shape
    if isinstance(placement, Replicate):
        return Layout(shape, (shape,) * ranks, None)
    shapes = tuple(tuple(axes.local_shape(tensor, (placement,), splits, rank)) for rank in range(ranks))
    name = axes.axes[axes.occurrences[tensor][placement.occurrence].axis].name
    return Layout(shape, shapes, along(axes, splits, tensor, placement.occurrence), name)

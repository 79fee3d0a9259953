"""Between whole tensors and the ranks' pieces of them, outside a lowered graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hap.placement import Partial, Replicate, parse
from hap.program import Placements, Splits
from hap.rules import pieces
from hap.runtime.collectives import Along, all_gather, slice_share

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
    """

    shape: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    along: Along | None
    axis: str | None = None

    def share(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """A rank's piece of a whole tensor; may be a view of it."""
        if self.along is None:
            return whole
        return slice_share(whole, along=self.along, rank=rank)

    def assemble(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The whole tensor from the pieces of all ranks in one process."""
        return parts[0] if self.along is None else pieces.join(parts, self.along)

    def gather(self, piece: torch.Tensor, name: str, group: Group) -> torch.Tensor:
        """The whole tensor on every rank. A collective: called by all ranks."""
        if self.along is None or group.size == 1:
            return piece
        return all_gather(piece, name=name, shape=self.shape, along=self.along, implementation="grouped", group=group)


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

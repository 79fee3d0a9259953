"""An output that stays where it was made: each rank holds its piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from hap.runtime.group import Group
    from hap.runtime.placing import Layout


class ShardedTensor:
    """A tensor of which each rank holds a piece.

    What a parallel module returns beside its loss: nothing is gathered unless it is asked for.

    Attributes:
        name: path in the module's output, for errors.
        local: this rank's piece; the whole tensor where :attr:`replicated`.
    """

    def __init__(self, local: torch.Tensor, layout: Layout, name: str, group: Group) -> None:
        self.local = local
        self.name = name
        self._layout = layout
        self._group = group

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole tensor."""
        return torch.Size(self._layout.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self.local.dtype

    @property
    def replicated(self) -> bool:
        """Whether each rank holds the whole tensor."""
        return self._layout.along is None

    def size(self, dim: int | None = None) -> torch.Size | int:
        """Size of the whole tensor."""
        return self.shape if dim is None else self.shape[dim]

    def full_tensor(self) -> torch.Tensor:
        """The whole tensor on every rank. A collective: all ranks must call it."""
        return self._layout.gather(self.local, self.name, self._group)

    def __repr__(self) -> str:
        held = "whole" if self.replicated else f"{tuple(self.local.shape)} of it on rank {self._group.rank}"
        return (
            f"ShardedTensor({self.name or 'output'}: {tuple(self.shape)}, {self.dtype}, {held}; full_tensor() gathers)"
        )

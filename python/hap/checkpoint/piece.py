"""A rank's piece of a tensor, as :mod:`torch.distributed.checkpoint` asks for it."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from hap.runtime.along import Along


class Piece(torch.Tensor):
    """A tensor of the whole's size without data of its own: a rank's shards of it, each a view of the rank's piece.

    It implements the protocol by which the checkpoint's planners ask any tensor for its shards, and nothing else.

    Attributes:
        local: the rank's piece.

    Args:
        local: the rank's piece.
        shape: shape of the whole.
        along: how the whole is split.
        rank: the rank.
    """

    local: torch.Tensor
    _along: Along
    _rank: int
    _shards: dict[torch.Size, torch.Tensor]

    def __new__(cls, local: torch.Tensor, shape: tuple[int, ...], along: Along, rank: int) -> Piece:
        """A wrapper of the whole's size."""
        # The checkpoint's planners take tensors on the meta device for tensors to be made.
        whole: Piece = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=local.dtype, device=local.device)
        whole.local, whole._along, whole._rank = local, along, rank
        whole._shards = _shards(local, shape, along, rank)
        return whole

    @classmethod
    def __torch_dispatch__(cls, function: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        """Refused: there is no data to compute with."""
        raise NotImplementedError(f"{function} of a piece in a checkpoint")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Piece({tuple(self.local.shape)} of {tuple(self.shape)}, {self.dtype})"

    def staged(self) -> Piece:
        """The same with a copy of the data in the host's memory."""
        return Piece(copied(self.local), tuple(self.shape), self._along, self._rank)

    def __create_write_items__(self, fqn: str, _: Any) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.local)
        return [
            WriteItem(
                index=MetadataIndex(fqn, offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(offsets, shard.size()), properties=properties, size=self.size()
                ),
            )
            for offsets, shard in self._shards.items()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offsets, shard.size()) for offsets, shard in self._shards.items()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        assert index.offset is not None, "a shard is asked for by its place"
        return self._shards[index.offset]


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in the host's memory."""
    return tensor.detach().to("cpu", copy=True)


def _shards(local: torch.Tensor, shape: tuple[int, ...], along: Along, rank: int) -> dict[torch.Size, torch.Tensor]:
    """The stretches of the split dimension that a rank has, by the place of their first element in the whole."""
    return {
        torch.Size([place if dim == along.dim else 0 for dim in range(len(shape))]): local.detach().narrow(
            along.dim, start, length
        )
        for place, start, length in along.stretches(rank)
    }

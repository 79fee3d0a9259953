"""A rank's shards: together all of a tensor, each element once and in its place."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from hap.checkpoint.piece import Piece
from hap.rules import pieces
from hap.runtime.along import Along


@given(
    units=st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any),
    blocks=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2)), min_size=1, max_size=3),
    dim=st.integers(0, 1),
)
def test_shards_of_all_ranks_make_the_whole(units: list[int], blocks: list[tuple[int, int]], dim: int) -> None:
    along = Along(dim, tuple(blocks), tuple(units))
    shape = [2, 2]
    shape[dim] = pieces.row(along) * sum(units)
    whole = torch.arange(shape[0] * shape[1]).view(shape)
    made, count = torch.full_like(whole, -1), torch.zeros_like(whole)
    for rank in range(len(units)):
        local = pieces.narrow(whole, along, along.offset(rank), units[rank])
        piece = Piece(local, tuple(shape), along, rank)
        assert piece.size() == whole.size()
        items = {item.index: item.tensor_data.chunk for item in piece.__create_write_items__("name", piece)}
        assert list(items.values()) == piece.__create_chunk_list__()
        for index, chunk in items.items():
            place = tuple(slice(a, a + n) for a, n in zip(chunk.offsets, chunk.sizes, strict=True))
            made[place] = piece.__get_tensor_shard__(index)
            count[place] += 1
    assert torch.equal(made, whole)
    assert bool((count == 1).all())

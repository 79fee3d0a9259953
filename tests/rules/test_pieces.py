"""Pieces of tensors against slices of the whole tensor, viewed block by block."""

from __future__ import annotations

from math import prod

import torch
from hypothesis import given
from hypothesis import strategies as st

from hap.rules import pieces
from hap.rules.pieces import Place

BLOCK = st.tuples(st.integers(1, 3), st.integers(1, 3))
PLACES = st.builds(Place, st.integers(0, 2), st.lists(BLOCK, min_size=1, max_size=3).map(tuple))


@st.composite
def cuts(draw: st.DrawFn) -> tuple[torch.Tensor, Place, list[int]]:
    """A tensor, where an axis lies in it, and units that the axis falls into."""
    place = draw(PLACES)
    lengths = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    shape = draw(st.lists(st.integers(0, 3), min_size=3, max_size=3))
    shape[place.dim] = pieces.row(place) * sum(lengths)
    value = torch.arange(prod(shape), dtype=torch.float64).reshape(shape)
    return (value.transpose(0, 2).contiguous().transpose(0, 2) if draw(st.booleans()) else value), place, lengths


def sliced(value: torch.Tensor, place: Place, units: range, total: int) -> torch.Tensor:
    """The units of the axis, element by element of the dimension."""
    taken, start = [], 0
    for outer, inner in place.blocks:
        for position in range(outer * total * inner):
            if position // inner % total in units:
                taken.append(start + position)
        start += outer * total * inner
    return value.index_select(place.dim, torch.tensor(taken, dtype=torch.int64))


@given(cuts())
def test_pieces_are_slices(cut: tuple[torch.Tensor, Place, list[int]]) -> None:
    value, place, lengths = cut
    total, start = sum(lengths), 0
    split = pieces.split(value, place, lengths)
    assert len(split) == len(lengths)
    written = torch.full_like(value, -1).contiguous()
    for piece, length in zip(split, lengths, strict=True):
        expected = sliced(value, place, range(start, start + length), total)
        assert torch.equal(piece, expected)
        assert torch.equal(pieces.narrow(value, place, start, length), expected)
        assert tuple(piece.shape) == pieces.local_shape(value.shape, place, length)
        held = pieces.positions(place, total, start, length)
        assert torch.equal(value.index_select(place.dim, held), expected)
        assert torch.equal(held, held.sort().values)
        pieces.write(written, place, start, piece)
        start += length
    assert torch.equal(pieces.join(split, place), value)
    assert torch.equal(written, value)

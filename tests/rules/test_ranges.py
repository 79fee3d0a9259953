"""Indices that are out of range stay errors where the indexed dimension is sharded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hap.rules import ranges

STRETCH = [1, 6, 1, 2, 3]  # units 2 to 4 of six
TABLE = torch.arange(6.0).view(6, 1)[2:5]
aten = torch.ops.aten


@pytest.mark.parametrize("bad", [-1, 6, 7, 100])
@pytest.mark.parametrize(
    "call",
    [
        lambda index: ranges.embedding(TABLE, index, stretch=STRETCH),
        lambda index: ranges.gather(TABLE, 0, index.view(-1, 1), stretch=STRETCH),
        lambda index: ranges.index_select(TABLE, 0, index, stretch=STRETCH),
        lambda index: ranges.written(TABLE, 0, index, TABLE, target=aten.index_copy.default, stretch=STRETCH),
    ],
    ids=["embedding", "gather", "index_select", "index_copy"],
)
def test_an_index_out_of_range_is_an_error(call: Callable[[torch.Tensor], torch.Tensor], bad: int) -> None:
    call(torch.tensor([0, 2, 5]))
    with pytest.raises((IndexError, RuntimeError)):
        call(torch.tensor([0, bad, 5]))


def test_indices_from_the_end_are_out_of_range_beyond_the_start() -> None:
    index = torch.tensor([-6, -3, 5])
    assert ranges.index(TABLE, [index, None], dim=0, stretch=STRETCH).flatten().tolist() == [0, 3, 0]
    with pytest.raises(IndexError):
        ranges.index(TABLE, [torch.tensor([-7])], dim=0, stretch=STRETCH)


def test_filling_takes_indices_from_the_end() -> None:
    made = ranges.filled(TABLE, 0, torch.tensor([-1, -3]), 9.0, target=aten.index_fill.int_Scalar, stretch=STRETCH)
    assert made.flatten().tolist() == [2, 9, 4]


def test_every_index_is_served_by_one_rank() -> None:
    index = torch.arange(30)
    counts = torch.zeros(30)
    for start, length in ((0, 1), (1, 0), (1, 4)):
        _, others = ranges.local_index(index, [2, 5, 3, start, length], 0)
        counts += others.logical_not()
    assert torch.equal(counts, torch.ones(30))

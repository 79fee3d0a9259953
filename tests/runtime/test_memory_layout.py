"""Forwards that read how their inputs lie in memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import hap
from hap.errors import TraceError
from tests.runtime import jobs


class Strided(nn.Module):
    def __init__(self, offset: int | None = None) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.offset = offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).sum() * ((x + 1).as_strided((2, 2), (2, 1)) * x.as_strided((2,), (1,), self.offset)).sum()


def test_inputs_of_other_strides_are_traced_anew() -> None:
    module = Strided()
    model: Any = hap.parallelize(copy.deepcopy(module), jobs.cluster(1))
    x = torch.randn(3, 4)
    # The second begins later in its memory.
    for given in (x, torch.cat([x, x])[3:], x.clone()):
        torch.testing.assert_close(model(given), module(given))
    with pytest.raises(TraceError, match="as_strided reads the memory of a tensor that is a view of another"):
        model(torch.randn(4, 3).T)
    torch.testing.assert_close(model(x), module(x))
    # Strides of a dimension of size 1 mean nothing.
    row = torch.randn(1, 4)
    for given in (row, row.as_strided((1, 4), (7, 1))):
        torch.testing.assert_close(model(given), module(given))


def test_other_strides_do_not_matter_elsewhere() -> None:
    x = torch.randn(3, 4)
    for module, count in ((nn.Linear(4, 4), 0), (Strided(), 1)):
        assert len(hap.trace(module, (x,)).inspections) == count


def test_places_count_from_the_start_of_memory() -> None:
    x = torch.randn(6, 4)
    model: Any = hap.parallelize(Strided(offset=0), jobs.cluster(1))
    model(x[:3])
    with pytest.raises(TraceError, match="begins later: leave storage_offset out, or"):
        model(x[3:])

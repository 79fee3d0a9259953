"""Under ``torch.autograd.detect_anomaly()`` the first NaN of a step is named, by all ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hap
from hap.errors import NonFiniteError, RuntimeMismatchError
from tests.runtime import jobs

pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
anomalies = torch.autograd.detect_anomaly


class Roots(nn.Module):
    """Takes roots and logarithms of what may be below zero, or zero, under a mask of infinities."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)
        with torch.no_grad():
            for part in (self.first, self.second):
                part.weight.copy_(torch.eye(8)[: part.weight.shape[0]])
                nn.init.zeros_(part.bias)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        scores = self.second(y.sqrt()).masked_fill(~keep, float("-inf"))
        logs = y.log()
        return scores.softmax(-1).sum() + (logs - logs.detach()).sum()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    keep = torch.ones(6, 4, dtype=torch.bool)
    keep[:, 1] = False
    return torch.rand(6, 8, generator=torch.Generator().manual_seed(0)) + 0.5, keep


def check(model: Any, rank: str) -> None:
    """All that is said, on one rank or several: ``rank`` is the one that holds the last sample."""
    x, keep = inputs()
    with anomalies():
        model(x, keep).backward()  # infinities of a mask are none of its business
        wrong = x.clone()
        wrong[-1, 3] = -1.0
        with pytest.raises(NonFiniteError) as error:
            model(wrong, keep)
        assert f"the first NaN in the forward, on {rank}: " in str(error.value)
        assert "made by aten.sqrt.default from " in str(error.value)
        assert "test_finite.py" in str(error.value)
        assert "self.second(y.sqrt())" in str(error.value)
        assert "Its inputs are finite" in str(error.value)
        zero = x.clone()
        zero[-1, 3] = 0.0
        with pytest.raises(NonFiniteError) as error, torch.no_grad():
            model(zero, keep)
        assert "made by aten.sub.Tensor" in str(error.value)
        assert "but infinities, which come from" in str(error.value)
        assert "made by aten.log.default" in str(error.value)
        given = x.clone()
        given[-1, 3] = float("nan")
        with pytest.raises(NonFiniteError, match=r'the input "args\.0"'):
            model(given, keep)
        loss = model(x, keep)
        with pytest.raises(NonFiniteError, match=r'in the backward.*_softmax_backward.*which come from the tangent ""'):
            (loss * float("inf")).backward()
        with model.no_sync(), pytest.raises(NonFiniteError, match=r'backward.*which come from the tangent ""'):
            (model(x, keep) * float("inf")).backward()
        model.zero_grad()
        model(x, keep).backward()
    assert model(wrong, keep).isnan()  # nobody asks


def test_one_process() -> None:
    check(hap.parallelize(Roots(), jobs.cluster(1), inputs()), "rank 0")


def several(rank: int) -> None:
    """Run by three ranks."""
    model = hap.parallelize(Roots(), jobs.cluster(3), inputs(), required_axis="batch")
    check(model, "rank 2")
    torch.autograd.set_detect_anomaly(rank == 1)
    with pytest.raises(RuntimeMismatchError, match=r"differ in whether torch\.autograd\.detect_anomaly\(\)"):
        model(*inputs())
    torch.autograd.set_detect_anomaly(False)

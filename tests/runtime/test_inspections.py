"""``hap.parallelize`` with models that inspect their inputs' values in Python."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import nn

import hap
from hap.errors import HapError, PlanError, RuntimeMismatchError
from hap.runtime import inspected
from tests.runtime import jobs
from tests.runtime.launch import Launcher


class Encoder(nn.Module):
    """Skips the mask where nothing is padded, and cuts off what all rows pad."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = self.fc(x)
        if not mask.all():
            h = h * mask[..., None]
            h = h[:, : int(mask.sum(-1).max())]
        return self.out(h.tanh()).square().mean()


def batches(samples: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Padded and full ones by turns."""
    generator = torch.Generator().manual_seed(0)
    lengths = [[4] * samples, [4] * (samples - 1) + [2], [3] * samples, [1, 3] * (samples // 2)]
    masks = [torch.arange(4) < torch.tensor(one)[:, None] for one in lengths]
    return [(torch.randn(samples, 4, 6, generator=generator), masks[turn]) for turn in (0, 1, 0, 2, 1, 3, 0)]


def encoder() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Encoder()


def train(rank: int, ranks: int) -> dict[str, float]:
    """Steps beside the same on one device; how many kinds of calls were planned."""
    module = encoder()
    alone = copy.deepcopy(module)
    model: Any = hap.parallelize(module, jobs.cluster(ranks))
    optimisers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, alone)]
    worst = 0.0
    for x, mask in batches():
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss, expected = model(x, mask), alone(x, mask)
        loss.backward()
        expected.backward()
        for optimiser in optimisers:
            optimiser.step()
        worst = max(worst, abs(loss.item() / expected.item() - 1.0))
    return {
        "loss": worst,
        "parameters": jobs.difference(model, alone),
        "kinds": len(model._hap_session._prepared),
    }


def assert_trained(found: dict[str, float]) -> None:
    assert found["loss"] < 1e-5
    assert found["parameters"] < 1e-5
    # Full; the longest row of four; of three.
    assert found["kinds"] == 3


def differ(rank: int, ranks: int, warm: bool) -> str:
    """The message where ranks bring masks of different values."""
    model: Any = hap.parallelize(encoder(), jobs.cluster(ranks))
    full, padded, *_ = batches()
    if warm:
        model(*full)
        model(*padded)
    try:
        model(full[0], (full, padded)[rank][1])
    except RuntimeMismatchError as error:
        return str(error)
    return "none"


def test_one_process() -> None:
    assert_trained(train(0, 1))


@pytest.mark.timeout(300)
def test_two_ranks() -> None:
    with Launcher(2) as launcher:
        for found in launcher.run(train, 2, limit=200):
            assert_trained(found)
        for message in launcher.run(differ, 2, False, limit=200):
            assert 'the input "args.1" has other values on rank 1' in message
        for message in launcher.run(differ, 2, True, limit=200):
            assert "the ranks differ in the values that the forward inspects in Python" in message
            assert "rank 0: " in message
            assert "rank 1: " in message


def test_shares_are_refused() -> None:
    model: Any = hap.parallelize(encoder(), jobs.cluster(1))
    x, mask = batches()[0]
    for _ in range(2):
        with pytest.raises(
            HapError, match=r'the values of "args\.1", which are known only where all inputs are global'
        ):
            model(*model.local_inputs(x, mask))
        # Nor does what a global batch has shown count for shares.
        model(x, mask)


def test_a_plan_for_other_values() -> None:
    full, padded, *_ = batches()
    plan = hap.plan(encoder(), devices=jobs.cluster(1), example_inputs=padded)
    model = hap.parallelize(encoder(), jobs.cluster(1), plan=plan)
    with pytest.raises(PlanError, match="where the forward inspects them, of other values"):
        model(*full)
    assert model(*padded) > 0


def test_many_values_are_worth_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model: Any = hap.parallelize(encoder(), jobs.cluster(1))
    with caplog.at_level(logging.WARNING, logger="hap"):
        for length in range(1, 11):
            mask = torch.arange(11).expand(2, 11) < length
            model(torch.ones(2, 11, 6), mask)
            assert len(caplog.records) == int(length >= 8)
    assert "8 different values of its inputs here" in caplog.text
    assert "int(mask.sum(-1).max())" in caplog.text


def test_plans_for_the_last_values_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspected, "KEPT", 3)
    module = encoder()
    alone = copy.deepcopy(module)
    model: Any = hap.parallelize(module, jobs.cluster(1))
    session = model._hap_session
    x = torch.randn(2, 9, 6)
    found = []
    for length in (1, 2, 3, 1, 4, 1, 5, 2, 9):
        mask = torch.arange(9).expand(2, 9) < length
        before = set(map(id, session._prepared.values()))
        assert torch.allclose(model(x, mask), alone(x, mask))
        found.append(id(session.latest) not in before)
        assert len(session._prepared) <= 3
        assert sum(len(one._next) for one in session._inspected.values()) <= 2 + 3
    # New: the first three, the fourth length, the fifth, the second again, and the whole.
    assert found == [True, True, True, False, True, False, True, True, True]


def test_an_input_that_cannot_be_inspected() -> None:
    """The error of the inspection itself, at the first call and at later ones."""

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            scale = 2.0 if x.detach().flatten().gather(0, at).sum() > 0 else 1.0
            return self.fc(x).square().mean() * scale

    model: Any = hap.parallelize(Looks(), jobs.cluster(1))
    model(torch.ones(2, 3), torch.tensor([1]))
    for _ in range(2):
        with pytest.raises(HapError, match="out of bounds"):
            model(torch.ones(2, 3), torch.tensor([9]))

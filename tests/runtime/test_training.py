"""Training as people do it, over gloo processes with uneven shares, against one device."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard

import hap
from hap.errors import HapError, RuntimeMismatchError
from hap.runtime.optimisers import mark_of
from tests.runtime import training
from tests.runtime.jobs import cluster, difference
from tests.runtime.launch import Launcher

# The batch is shared; gradients are reduced to whole and to sharded parameters.
BATCH: dict[str, Any] = {
    "required_axis": "batch",
    "pin": {"layers.0.weight": Shard(0), "layers.4.weight": Shard(1), "layers.6": Replicate()},
}


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher(3) as started:
        yield started


@pytest.mark.timeout(400)
def test_loops(launcher: Launcher) -> None:
    loops = ["momentum", "adam", "autocast", "scaled"]
    for found in launcher.run(training.compared, 3, loops, {}, 30, limit=300):
        for name, tolerance in zip(loops, (1e-5, 1e-5, 0.02, 0.01), strict=True):
            losses, parameters = found[name]
            assert losses < tolerance, name
            # Adam makes steps of the rounding errors in gradients near zero.
            assert parameters < (5 if name == "autocast" else 1) * tolerance, name


@pytest.mark.timeout(400)
def test_accumulation(launcher: Launcher) -> None:
    for found in launcher.run(training.compared, 3, ["accumulated"], BATCH, 12, limit=300):
        assert max(found["accumulated"]) < 1e-5


@pytest.mark.timeout(400)
def test_dropout(launcher: Launcher) -> None:
    expected, parameters = training.noisy(0, 1)
    for losses, found in launcher.run(training.noisy, 3, limit=300):
        assert losses == pytest.approx(expected, rel=1e-5)
        for name, value in parameters.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.timeout(400)
def test_shares_of_python_sources(launcher: Launcher) -> None:
    expected = training.reading(0, 0)
    assert expected[-1] < 0.8 * expected[0]
    for losses in launcher.run(training.reading, 3, limit=300):
        assert losses == pytest.approx(expected, rel=1e-5)


def together(rank: int, ranks: int) -> None:
    """Norms over several modules and a parameter of none; ranks that disagree; other optimisers; bfloat16."""
    batch = training.batches(30, 1)[0]
    pins: list[dict[str, Any]] = [{"pin": {"*.weight": [Shard(0), Replicate()]}}, {"pin": {"": Replicate()}}]
    several = [
        hap.parallelize(training.classifier(), cluster(ranks, 1e9), batch, active=range(ranks), **pin) for pin in pins
    ]
    alone = [training.classifier() for _ in pins]
    plain, other = (nn.Parameter(torch.ones(3)) for _ in range(2))
    assert any(
        (mark := mark_of(parameter)) and mark[:2] == ("layers.0.weight", True) for parameter in several[0].parameters()
    )
    for one in [*several, *alone]:
        one(*batch).backward()
    for order in (2.0, float("inf")):
        for one in (plain, other):
            one.grad = torch.full((3,), 0.2)
        norm = hap.clip_grad_norm_([*several, plain], 0.1, order)
        every = [*(parameter for one in alone for parameter in one.parameters()), other]
        torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(every, 0.1, order))
        torch.testing.assert_close(plain.grad, other.grad)
    for value in (float("inf"), float("nan")):
        for order in (2.0, float("inf")):
            if rank == 1:
                shard = next(one for one in several[0].parameters() if (mark := mark_of(one)) and mark.sharded)
                assert shard.grad is not None
                shard.grad.fill_(value)
            with pytest.raises(HapError, match=f"gradients is {value}, so they cannot be clipped"):
                hap.clip_grad_norm_(several, 0.1, order, error_if_nonfinite=True)
    several[0].zero_grad()

    context = several[0].no_sync() if rank == 1 else contextlib.nullcontext()
    with (
        context,
        pytest.raises(RuntimeMismatchError, match=r"differ in whether they call the module under no_sync\(\)"),
    ):
        several[0](*batch)

    whole(several[1], alone[1], batch)
    masters(ranks)


def whole(model: Any, alone: nn.Module, batch: Any) -> None:
    """Parameters that are pinned whole may be trained by any optimiser."""
    for one in (model, alone):
        matrices = [parameter for parameter in one.parameters() if parameter.dim() == 2]
        for kind in (torch.optim.Muon, torch.optim.Adafactor):
            one.zero_grad()
            one(*batch).backward()
            kind(matrices, lr=0.01).step()
    assert difference(model, alone) < 1e-2  # Muon computes in bfloat16


def masters(ranks: int) -> None:
    """Parameters in bfloat16, with the optimiser's state and the parameters that it trains in float32."""
    module = training.classifier(dtype=torch.bfloat16)
    alone = copy.deepcopy(module)
    model = hap.parallelize(module, cluster(ranks), training.batches(30, 1, torch.bfloat16)[0])
    losses = []
    for one in (alone, model):
        wide = [parameter.detach().float() for parameter in one.parameters()]
        optimiser = torch.optim.AdamW(wide, lr=1e-3)
        for x, y in training.batches(30, 5, torch.bfloat16):
            loss = one(x, y)
            loss.backward()
            training.clip(one, 1.0, 2.0)
            for large, small in zip(wide, one.parameters(), strict=True):
                assert small.grad is not None
                large.grad, small.grad = small.grad.float(), None
            optimiser.step()
            with torch.no_grad():
                for large, small in zip(wide, one.parameters(), strict=True):
                    small.copy_(large)
            losses.append(loss.item())
    assert losses[5:] == pytest.approx(losses[:5], rel=0.02)


@pytest.mark.timeout(400)
def test_several_modules_together(launcher: Launcher) -> None:
    launcher.run(together, 3, limit=300)


@pytest.mark.parametrize("order", [0.0, -1.0, float("nan")])
def test_orders_that_are_no_norm(order: float) -> None:
    with pytest.raises(HapError, match="expected a norm_type above zero"):
        hap.clip_grad_norm_(nn.Linear(2, 2), 1.0, order)


def test_what_cannot_be_clipped() -> None:
    with pytest.raises(HapError, match="expected modules or parameters, got int"):
        hap.clip_grad_norm_([3], 1.0)  # type: ignore[list-item]

"""A loss outside of the module, of each rank's piece of its outputs: losses and gradients are those of one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

import hap
from hap.errors import HapError, PlanError
from tests.runtime.jobs import cluster, difference
from tests.runtime.launch import Launcher
from tests.runtime.training import Classifier, batches, clip

RANKS, STEPS = 3, 6
IGNORED = -100


class Scores(Classifier):
    """The classifier without its loss: scores of each sample, features beside them, and a scalar."""

    def forward(self, x: torch.Tensor) -> Any:  # type: ignore[override]
        features = self.layers[:4](x)
        scores = self.layers[4:](features)
        return {"scores": scores, "features": features, "size": scores.square().mean(), "best": scores.argmax(-1)}


def made() -> Scores:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return Scores(0.0).double()


def data(size: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Digits, of which two thirds of the labels are ignored in a part of each batch."""
    found = batches(size, count, torch.float64)
    for _, y in found:
        y[: size // 2][y[: size // 2] > 3] = IGNORED
    return found


def whole_loss(output: Any, y: torch.Tensor) -> torch.Tensor:
    """On one device."""
    return F.cross_entropy(output["scores"], y) + 0.1 * output["size"] + 0.01 * output["features"].square().mean()


def loss_of(output: Any, y: Any) -> torch.Tensor:
    """The same of the ranks' pieces: of the scores' mean, their scalar, and the whole of the features."""
    scores, features = output["scores"], output["features"]
    labels = scores.share(y)
    part = F.cross_entropy(scores.local, labels, reduction="sum")
    mean = scores.total(part) / scores.total((labels != IGNORED).sum())
    return mean + 0.1 * output["size"] + 0.01 * features.full_tensor().square().mean()


def curve(model: Any, loss: Any, size: int) -> list[float]:
    """Losses and gradients' norms of some steps of AdamW, of which every third is of two microbatches."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step, (x, y) in enumerate(data(size, STEPS)):
        if step % 3 == 2:
            parts = list(zip(x.split(size - 4), y.split(size - 4), strict=True))
            if hasattr(model, "plan"):
                with model.no_sync():
                    first = loss(model(parts[0][0]), parts[0][1])
            else:
                first = loss(model(parts[0][0]), parts[0][1])
            (first / 2).backward()
            losses.append(first.item())
            x, y = parts[1]
        value = loss(model(x), y)
        (value / (2 if step % 3 == 2 else 1)).backward()
        losses += [value.item(), clip(model, 10.0, 2.0)]
        optimiser.step()
        optimiser.zero_grad()
    return losses


WAYS: dict[str, dict[str, Any]] = {
    "by samples": {"required_axis": "batch", "active": range(RANKS)},
    "whole, one idle": {"pin": {"outputs.scores": Replicate()}, "active": [0, 2]},
    "features by their own axis": {"pin": {"outputs.features": Shard(1), "outputs.scores": Shard(0)}},
}


def trained(rank: int, ranks: int, size: int) -> dict[str, Any]:
    """By way of sharing: differences of losses and of parameters to one device; and how the outputs lay."""
    found = {}
    alone = made()
    expected = curve(alone, whole_loss, size)
    for way, options in WAYS.items():
        model = hap.parallelize(made(), cluster(ranks, 1e9), (data(size, 1)[0][0],), sharded_outputs=True, **options)
        losses = curve(model, loss_of, size)
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
        differs = difference(model, alone)
        output = model(data(size, 1)[0][0])
        assert output["scores"].requires_grad
        assert not output["best"].requires_grad
        assert output["size"].shape == ()
        facts = {
            "scores": (output["scores"].dim, output["scores"].local.shape[0]),
            "features": output["features"].dim,
            "plan": model.plan.sharded_outputs,
        }
        found[way] = (worst, differs, facts)
    return found


def shares_and_errors(rank: int, ranks: int) -> None:
    devices = cluster(ranks, 1e9)
    alone, (x, y) = made(), data(12, 1)[0]
    options: dict[str, Any] = {"required_axis": "batch", "sharded_outputs": True, "active": [0, 2]}
    plan = hap.plan(made(), devices=devices, example_inputs=(x,), **options)
    with pytest.raises(HapError, match="sharded_outputs= has no effect on a plan made before"):
        hap.parallelize(made(), plan=plan, sharded_outputs=True)
    model = hap.parallelize(made(), plan=plan)

    # Shares of any size come with their labels, also from a rank that is left out; the loss is that of the batch.
    for units in ([5, 0, 7], [4, 4, 4]):
        mine = model.local_inputs(*(value.split(units)[rank] for value in (x, y)))
        output = model(mine[0])
        held = output["scores"].local.shape[0]
        assert held == (units[rank] if units[1] == 0 else 0 if rank == 1 else held)
        loss, expected = loss_of(output, mine[1]), whole_loss(alone(x), y)
        loss.backward()
        expected.backward()
        torch.testing.assert_close(loss, expected)
        with pytest.raises(HapError, match=rf"expected a share of {units[rank]} samples, .* got one of shape \[13\]"):
            output["scores"].share(model.local_inputs(torch.zeros(13)))
    # One use of several: what has no gradient counts as zeros.
    model(x)["features"].local.sum().backward()
    alone(x)["features"].sum().backward()
    for name, parameter in alone.named_parameters():
        found = model._hap_session.whole(name, dict(model.named_parameters())[name].grad)
        torch.testing.assert_close(found, parameter.grad)

    scores, _ = model(x)["scores"], alone(x)
    with pytest.raises(HapError, match=r"scores\".share: got a share of a batch, but the inputs .* were global"):
        scores.share(model.local_inputs(y))
    with pytest.raises(HapError, match=r"along its dimension 0 \(axis \"batch\"\) of size 12, .* shape \[3, 12\]"):
        scores.share(torch.zeros(3, 12))
    with pytest.raises(HapError, match=r"scores\".total: expected a tensor, got float"):
        scores.total(1.0)
    with pytest.raises(HapError, match=r"scores\".item: expected one element, got the shape \(12, 10\): take its"):
        scores.item()
    with pytest.raises(HapError, match=r"cross_entropy was called with a hap\.ShardedTensor: take its \.local"):
        F.cross_entropy(scores, y)
    with pytest.raises(AttributeError, match=r'no attribute "argmax": take its \.local'):
        scores.argmax()
    with pytest.raises(PlanError, match=r'"outputs.scores" of shape \[12, 10\] cannot be Shard\(2\)'):
        hap.plan(made(), devices=devices, example_inputs=(x,), pin={"outputs.scores": Shard(2)}, sharded_outputs=True)
    model.eval()
    alone.eval()
    with torch.no_grad():
        output, expected = model(x), alone(x)
        torch.testing.assert_close(output["scores"].full_tensor(), expected["scores"])
        hits = output["best"].total((output["best"].local == output["best"].share(y)).sum())
        assert hits == (expected["best"] == y).sum()


def test_random_programs() -> None:
    """Outputs and their tangents lie alike, in every way."""
    x = data(6, 1)[0][0]
    result = hap.check(made(), devices=cluster(3), example_inputs=(x,), count=4, splits="random", sharded_outputs=True)
    assert result.error < 1e-10
    assert {"scores", "features", "size", "layers.0.weight"} <= {*result.errors}


@pytest.mark.timeout(300)
def test_loss_of_pieces() -> None:
    with Launcher(RANKS) as launcher:
        for rank, found in enumerate(launcher.run(trained, RANKS, 24, limit=200)):
            for way, (losses, parameters, facts) in found.items():
                assert losses < 1e-9, way
                assert parameters < 1e-7, way
                assert facts["plan"]
                dim, held = facts["scores"]
                assert dim == (None if way == "whole, one idle" else 0)
                assert way == "features by their own axis" or (held == 0) == (dim is None and rank == 1)
            assert found["features by their own axis"][2]["features"] == 1
        launcher.run(shares_and_errors, RANKS, limit=100)

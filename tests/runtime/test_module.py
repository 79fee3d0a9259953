"""A parallel module is used as any module: hooks, several in one process, losses outside, what lies where."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard
from torch.nn import functional as F

import hap
from hap.errors import HapError, RuntimeMismatchError
from hap.runtime.agree import Control
from hap.runtime.padding import padded as pad_inputs
from tests.runtime.jobs import cluster, difference
from tests.runtime.launch import Launcher


def layers(*sizes: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(sizes))
        return nn.Sequential(*(part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.Tanh()))).double()


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def adversarial(maker: nn.Module, critic: nn.Module) -> list[float]:
    """Steps of a GAN, its losses outside of both modules."""
    of_maker, of_critic = (torch.optim.Adam(one.parameters(), lr=0.05) for one in (maker, critic))

    def loss(samples: torch.Tensor, label: float) -> torch.Tensor:
        found = critic(samples)
        return F.binary_cross_entropy_with_logits(found, torch.full_like(found, label))

    losses = []
    for step in range(3):
        noise = numbers(6, 4, seed=step)
        judged = loss(numbers(6, 8, seed=9 + step), 1.0) + loss(maker(noise).detach(), 0.0)
        of_critic.zero_grad()
        judged.backward()
        of_critic.step()
        made = loss(maker(noise), 1.0)
        of_maker.zero_grad()
        made.backward()
        of_maker.step()
        losses += [judged.item(), made.item()]
    return losses


class Logits(nn.Module):
    """Its loss, and logits with and without rotation of their columns beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> Any:
        logits = self.layer(x)
        return logits.square().mean(), logits, logits.unflatten(1, (3, 4)).transpose(1, 2).flatten(1)


class Tagger(nn.Module):
    """Of sequences; labels of -100 do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(9, 6), nn.Tanh(), nn.Linear(6, 4))

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.layers(tokens).transpose(1, 2), labels)


PADDED = {"args.0": (1, 4, 0), "kwargs.labels": (1, 4, -100)}


def padding(rank: int, ranks: int) -> None:
    """Lengths that vary over calls, and over the ranks' shares of one batch."""
    torch.manual_seed(1)
    alone, several = Tagger().double(), Tagger().double()
    several.load_state_dict(alone.state_dict())
    tokens = torch.randint(0, 9, (6, 8), generator=torch.Generator().manual_seed(2))
    labels = tokens % 4
    model = hap.parallelize(
        several, cluster(ranks), (tokens[:, :6],), {"labels": labels[:, :6]}, pad_to_multiple=PADDED
    )
    for length in (5, 8, 6, 7, 4):
        loss = model(tokens[:, :length], labels=labels[:, :length])
        loss.backward()
        expected = alone(tokens[:, :length], labels[:, :length])
        expected.backward()
        torch.testing.assert_close(loss, expected)
    assert len(model._hap_session._prepared) == 2

    # Each rank's samples are as long as the longest of its own.
    lengths, counts = [5, 7, 8], [2, 4] if ranks == 2 else [6]
    start, length = sum(counts[:rank]), lengths[rank]
    mine = slice(start, start + counts[rank])
    shares = model.local_inputs(tokens[mine, :length], labels[mine, :length])
    loss = model(shares[0], labels=shares[1])
    whole = labels.clone()
    for each, count in enumerate(counts):
        whole[sum(counts[:each]) : sum(counts[:each]) + count, lengths[each] :] = -100
    torch.testing.assert_close(loss, alone(tokens, whole))


def unlike(rank: int, ranks: int) -> None:
    """Each rank with a batch of its own, which it takes for the global one."""
    batch = numbers(6, 4, seed=9)
    batch[0, 0] = float("nan")
    model = hap.parallelize(layers(4, 8), cluster(ranks), (numbers(6, 4, seed=rank),))  # examples may differ
    for mine in (numbers(6, 4, seed=rank), batch[torch.randperm(6, generator=torch.Generator().manual_seed(rank))]):
        with pytest.raises(
            RuntimeMismatchError, match=r'"args\.0" has other values on rank 1 than on rank 0, .*collate'
        ):
            model(mine)
    model(batch * (1.0 + 1e-6 * rank))


def test_wrong_padding() -> None:
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    for entry in ((1, 0, 0), (-1, 4, 0), (1, 4), 4):
        with pytest.raises(HapError, match=r'pad_to_multiple: "args\.0": expected \(dimension, multiple, value\)'):
            hap.parallelize(Tagger(), cluster(1), pad_to_multiple={"args.0": entry})  # type: ignore[dict-item]
    model = hap.parallelize(Tagger(), cluster(1), pad_to_multiple={"args.2": (1, 4, 0)})
    with pytest.raises(HapError, match=r"pad_to_multiple names args\.2, but the call has args\.0, kwargs\.labels"):
        model(tokens, labels=tokens)
    model = hap.parallelize(Tagger(), cluster(1), pad_to_multiple={"args.0": (2, 4, 0)})
    with pytest.raises(HapError, match=r'"args\.0" has no dimension 2'):
        model(tokens, tokens)
    model = hap.parallelize(Tagger(), cluster(1), pad_to_multiple={"args.0": (0, 4, 0)})
    with pytest.raises(HapError, match=r'dimension 0 of "args\.0" is its share of the samples'):
        model(*model.local_inputs(tokens, tokens))


def used(rank: int, ranks: int) -> None:
    devices = cluster(ranks)
    alone, several = ([layers(4, 16, 8), layers(8, 16, 1)] for _ in range(2))
    # Planned at their first calls, with the optimisers made before.
    models = [hap.parallelize(one, devices, pin={"0.weight": Shard(0)}) for one in several]
    assert adversarial(*models) == pytest.approx(adversarial(*alone), rel=1e-9)
    assert max(difference(model, one) for model, one in zip(models, alone, strict=True)) < 1e-8
    for model, one in zip(models, alone, strict=True):
        assert [*dict(model.named_parameters())] == [*dict(one.named_parameters())]
        assert [*model.state_dict()] == [*one.state_dict()]
        assert any(a.shape != b.shape for a, b in zip(model.parameters(), one.parameters(), strict=True))

    # Hooks on the module itself, made before it is taken, are part of it.
    hooked = layers(4, 8)
    hooked.register_forward_pre_hook(lambda _, args: (args[0] * 2.0,))
    hooked.register_forward_hook(lambda _, args, output: output + args[0].sum())
    expected = copy.deepcopy(hooked)(numbers(6, 4))
    model = hap.parallelize(hooked, devices)
    torch.testing.assert_close(model(numbers(6, 4)), expected)
    with torch.no_grad():
        assert not model(numbers(6, 4)).requires_grad

    # Outputs beside a loss say where they lie.
    logits = Logits().double()
    model = hap.parallelize(logits, devices, (numbers(6, 8),), pin={"layer.*": Shard(0)}, forbidden_axes=["batch"])
    with torch.no_grad():
        outputs = model(numbers(6, 8))
    for output in outputs[1:]:
        whole = output.full_tensor()
        assert output.shape == whole.shape == (6, 12)
        if output.replicated:
            assert (output.dim, output.axis, output.offsets) == (None, None, ())
            continue
        assert output.axis in {entry.name for entry in model._hap_session.latest.axes.axes}
        parts = [whole.narrow(output.dim, start, length) for start, length in output.offsets]
        torch.testing.assert_close(output.local, torch.cat(parts, output.dim))
    # The outer axis of one output's columns is the inner one of the other's.
    assert sorted(len(output.offsets) for output in outputs[1:]) == [1, 3]


@pytest.mark.timeout(200)
def test_a_module_as_any_other() -> None:
    with Launcher(2) as launcher:
        launcher.run(used, 2, limit=150)
        launcher.run(padding, 2, limit=150)
        launcher.run(unlike, 2, limit=150)


def test_inputs_that_one_rank_cannot_pad_are_told_of_on_all() -> None:
    sent: list[tuple[int, ...]] = []

    class Pair(Control):
        def __init__(self) -> None:
            self.size = 2

        def numbers(self, value: Sequence[int], what: str) -> list[tuple[int, ...]]:
            sent.append(tuple(value))
            return [tuple(value), (0, 1)]

        def gather(self, value: Any, what: str) -> list[Any]:
            return [value, "HapError: it has none"]

    control = Pair()
    with pytest.raises(RuntimeMismatchError, match="padding the inputs of a call failed on rank 1: HapError: it has"):
        pad_inputs({"args.0": (1, 4, 0)}, control, (torch.zeros(2, 3),), {})
    # Also the one that fails takes part.
    with pytest.raises(HapError, match=r'"args\.0" has no dimension 1'):
        pad_inputs({"args.0": (1, 4, 0)}, control, (torch.zeros(2),), {})
    assert sent == [(3, 0), (0, 1)]

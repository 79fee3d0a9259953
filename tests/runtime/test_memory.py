"""Predictions of memory against torch's own count of the bytes that tensors hold in real steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

import hap
from hap.balance import MemoryParts
from hap.cluster import Link
from tests import models
from tests.runtime.held import Held, count
from tests.runtime.launch import Launcher
from tests.zoo.moe import GShard

FLOAT = torch.float32
BUILD = {
    "mlp": lambda: models.mlp(FLOAT, layers=4, batch=256, hidden=64),
    "wide mlp": lambda: models.mlp(FLOAT, layers=4, batch=16, hidden=256),
    "gpt2": lambda: models.gpt2(FLOAT, layers=1, batch=16, sequence=64, dropout=0.1),
    "bert, eager attention": lambda: models.bert(FLOAT, layers=1, batch=16, sequence=64, attention="eager"),
    "vgg19": lambda: models.vgg19(FLOAT, narrow=8, batch=8),
    # Nearly all are logits, and the embedding, which is the head's weight, too.
    "many words": lambda: words(),
    "bert": lambda: models.bert(FLOAT, layers=1, batch=16, sequence=64),
    "vit": lambda: vit(),
    "mixture of experts": lambda: mixture(),
    "noisy": lambda: models.noisy(FLOAT, batch=512),
}
# What is planned for two devices: the model, their speeds and memory, options of the plan. Where whole parameters and
# their optimiser's state do not fit, they are stored in shares.
LIMIT = 3.2e6
PLANS: list[tuple[str, tuple[float, ...], float, dict[str, Any]]] = [
    ("mlp", (1.0, 3.0), 1e12, {"required_axis": "batch"}),
    ("mlp", (1.0, 3.0), 1e12, {"forbidden_axes": ["batch"]}),
    ("wide mlp", (1.0, 1.0), 1e12, {"required_axis": "batch"}),
    ("wide mlp", (1.0, 1.0), LIMIT, {"required_axis": "batch"}),
    ("gpt2", (1.0, 3.0), 1e12, {"forbidden_axes": ["batch"]}),
    ("many words", (1.0, 3.0), 1e12, {"required_axis": "batch"}),
    ("bert", (1.0, 3.0), 1e12, {"required_axis": "batch"}),
    ("vit", (1.0, 3.0), 1e12, {"required_axis": "batch"}),
    ("vgg19", (1.0, 3.0), 1e12, {"required_axis": "batch"}),
    ("mixture of experts", (1.0, 3.0), 1e12, {"required_axis": "batch"}),
]


class Words(nn.Module):
    """A language model of one layer, whose head shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2000, 16)
        self.layer = nn.Linear(16, 16)
        self.head = nn.Linear(16, 2000, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.layer(self.embedding(tokens)).relu())
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def words() -> models.Built:
    tokens = torch.randint(0, 2000, (2, 16, 40), generator=torch.Generator().manual_seed(0))
    return Words(), (tokens[0], tokens[1]), {}


class Mixture(nn.Module):
    """A mixture of experts and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.mixture, self.head = GShard(experts=4, features=16, hidden=32, capacity=8), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        answers, balance = self.mixture(x)
        return nn.functional.cross_entropy(self.head(answers).mean(1), y) + balance


def mixture() -> models.Built:
    return Mixture(), (torch.randn(32, 16, 16), torch.randint(10, (32,))), {}


def vit() -> models.Built:
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, image_size=16, patch_size=2,
        num_labels=10,
    )  # fmt: skip
    inputs = {"pixel_values": torch.randn(16, 3, 16, 16), "labels": torch.randint(10, (16,))}
    return ViTForImageClassification(config).train(), (), inputs


def devices(speeds: tuple[float, ...], memory: float = 1e12) -> hap.Cluster:
    boards = [hap.Device(flops=1e9 * speed, memory_bandwidth=1e9 * speed, memory=memory) for speed in speeds]
    return hap.Cluster(boards, link=Link(bandwidth=1e9, latency=1e-6), overlap=1.0)


def total(parts: MemoryParts) -> float:
    return float(sum(msgspec.structs.astuple(parts)))


def check(predicted: MemoryParts, counted: MemoryParts, case: str) -> None:
    """Within 10%, parts and peak."""
    assert predicted.parameters == pytest.approx(counted.parameters, rel=1e-6), case
    # Adam counts its steps. What it makes meanwhile is counted with the activations.
    assert predicted.optimiser >= 0.9 * counted.optimiser, case
    working = total(predicted) - counted.parameters - counted.optimiser
    assert working == pytest.approx(counted.activations, rel=0.1), case
    assert total(predicted) == pytest.approx(total(counted), rel=0.1), case


def test_memory_is_counted_once_and_until_it_is_free() -> None:
    x = torch.ones(10)
    with Held([x, x.view(2, 5)]) as held:
        y = x + 1
        z = y[:5]
        del y
        assert (held.now, held.peak) == (80, 80)
        del z
        assert (held.now, held.peak) == (40, 80)


@pytest.mark.parametrize("name", BUILD)
def test_one_device_holds_what_is_predicted(name: str) -> None:
    check(*count(BUILD[name](), devices((1.0,))), name)


@pytest.mark.parametrize("name", ["wide mlp", "vgg19"])
@pytest.mark.parametrize(
    "make_optimiser",
    [
        partial(torch.optim.Adam, foreach=True),
        partial(torch.optim.Adam, fused=True),
        torch.optim.SGD,
        partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    ],
)
def test_optimisers_hold_what_is_predicted_while_they_step(
    name: str, make_optimiser: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]
) -> None:
    """Of models whose parameters are larger than what is computed, so that this is the peak where anything is made."""
    check(*count(BUILD[name](), devices((1.0,)), make_optimiser), name)


def counted(rank: int, number: int) -> tuple[MemoryParts, MemoryParts]:
    name, speeds, memory, options = PLANS[number]
    return count(BUILD[name](), devices(speeds, memory), **options)


def test_two_devices_hold_what_is_predicted() -> None:
    with Launcher(2) as launcher:
        for number, case in enumerate(PLANS):
            # Each has the launcher's time limit to itself.
            for rank, pair in enumerate(launcher.run(counted, number)):
                check(*pair, f"rank {rank}: {case}")
                assert total(pair[1]) <= case[2]

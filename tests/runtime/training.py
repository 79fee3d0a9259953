"""Training loops, each written once and run by one device and by several."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

import hap
from hap.runtime.optimisers import mark_of
from tests.runtime.jobs import cluster, difference

STEPS = 20


class Classifier(nn.Module):
    """Of handwritten digits, with running statistics and dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 48, bias=False),
            nn.BatchNorm1d(48),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(48, 48),
            nn.ReLU(),
            nn.Linear(48, 10),
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.layers(x), y)


def classifier(dropout: float = 0.0, dtype: torch.dtype = torch.float32) -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return Classifier(dropout).to(dtype)


def batches(size: int, count: int, dtype: torch.dtype = torch.float32) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from sklearn.datasets import load_digits

    data = load_digits()
    x, y = torch.tensor(data.data, dtype=dtype) / 16.0, torch.tensor(data.target)
    return [(x[at : at + size], y[at : at + size]) for at in range(0, size * count, size)]


def groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Weights with weight decay, all else without."""
    weights = [one for name, one in model.named_parameters() if name.endswith("weight")]
    others = [one for name, one in model.named_parameters() if not name.endswith("weight")]
    return [{"params": weights, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def clip(model: nn.Module, norm: float, order: float) -> float:
    """By hap on several devices, by PyTorch on one."""
    function = hap.clip_grad_norm_ if hasattr(model, "plan") else torch.nn.utils.clip_grad_norm_
    return float(function(model.parameters(), norm, order))


def momentum(model: nn.Module) -> list[float]:
    """SGD with momentum, weight decay for some, foreach, and a schedule."""
    optimiser = torch.optim.SGD(groups(model, 0.01), lr=0.1, momentum=0.9, nesterov=True, foreach=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, 5, 0.5)
    losses = []
    for x, y in batches(30, STEPS):
        loss = model(x, y)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()
        losses.append(loss.item())
    return losses


def adam(model: nn.Module) -> list[float]:
    """AdamW, fused, with a warm-up; gradients clipped by every kind of norm, and by value."""
    optimiser = torch.optim.AdamW(groups(model, 0.1), lr=3e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-2, total_steps=STEPS)
    losses = []
    for step, (x, y) in enumerate(batches(30, STEPS)):
        loss = model(x, y)
        loss.backward()
        if step % 5 < 4:
            losses.append(clip(model, 0.1, (2.0, float("inf"), 1.0, 3.0)[step % 5]))
        else:
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    return losses


def accumulated(model: nn.Module) -> list[float]:
    """Three microbatches to a step, the last one of another size; clipped."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x, y in batches(34, STEPS):
        for number, part in enumerate(zip(x.split(12), y.split(12), strict=True)):
            with contextlib.nullcontext() if number == 2 or not hasattr(model, "plan") else model.no_sync():
                loss = model(*part)
            (loss / 3).backward()
            losses.append(loss.item())
            if number < 2 and hasattr(model, "plan"):
                assert all(parameter.grad is None for parameter in model.parameters())
        losses.append(clip(model, 0.5, 2.0))
        optimiser.step()
        optimiser.zero_grad()
    return losses


def autocast(model: nn.Module) -> list[float]:
    """Under autocast to bfloat16."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for x, y in batches(30, STEPS):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x, y)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    return losses


def scaled(model: nn.Module) -> list[float]:
    """Under autocast to float16 with a scaler; overflows in one place, on one rank, skip the step everywhere."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    several = hasattr(model, "plan")
    losses = []
    for fused in (False, True):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=fused)
        for step, (x, y) in enumerate(batches(30, STEPS // 2)):
            with torch.autocast("cpu", torch.float16):
                loss = model(x, y)
            scaler.scale(loss).backward()
            if step in (3, 7):
                overflow(model, several)
            if step in (5, 7):
                scaler.unscale_(optimiser)
                losses.append(clip(model, 0.5, 2.0) if step == 5 else 0.0)
            before = [parameter.detach().clone() for parameter in model.parameters()]
            scaler.step(optimiser)
            if step in (3, 7):
                assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
            scaler.update()
            optimiser.zero_grad()
            losses += [loss.item(), scaler.get_scale()]
    return losses


def overflow(model: nn.Module, several: bool) -> None:
    """Put an infinity in the gradient of one shard, on rank 1 alone."""
    if not several:
        next(model.parameters()).grad.view(-1)[0] = float("inf")  # type: ignore[union-attr]
    elif torch.distributed.get_rank() == 1:
        shard = next(one for one in model.parameters() if (mark := mark_of(one)) and mark.sharded and one.numel())
        assert shard.grad is not None
        shard.grad.view(-1)[0] = float("inf")


class Reader(nn.Module):
    """Of texts, byte by byte: a causal transformer of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(128, 24)
        self.places = nn.Parameter(torch.zeros(16, 24))
        self.before, self.after = nn.LayerNorm(24), nn.LayerNorm(24)
        self.mixed, self.output = nn.Linear(24, 72), nn.Linear(24, 24)
        self.head = nn.Linear(24, 128)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.bytes(text[:, :-1]) + self.places
        parts = [part.unflatten(2, (3, 8)).transpose(1, 2) for part in self.mixed(self.before(x)).chunk(3, -1)]
        x = x + self.output(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))
        return F.cross_entropy(self.head(self.after(x)).transpose(1, 2), text[:, 1:])


class Sources(torch.utils.data.Dataset[torch.Tensor]):
    """The bytes of a module of Python's own library, in rows."""

    def __init__(self, rows: int) -> None:
        text = Path(argparse.__file__).read_bytes()[: 17 * rows]
        self.rows = torch.tensor(list(text)).clamp(max=127).view(rows, 17)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def reading(rank: int, ranks: int) -> list[float]:
    """Losses of 20 steps on shuffled Python sources; a device alone without ``ranks``."""
    dataset, options = Sources(12 * STEPS), {"shuffle": True, "seed": 3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model: Any = Reader()
    if ranks:
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # the loader has workers
        hap.parallelize(model, cluster(ranks), (dataset.rows[:12],), required_axis="batch")
        sampler = hap.DistributedSampler(dataset, model, **options)
        workers: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=sampler.collate, **workers)
        assert len(set(sampler.units(12))) > 1, "the shares are even"
    else:
        order = DistributedSampler(dataset, num_replicas=1, rank=0, **options)
        loader = DataLoader(dataset, sampler=order, batch_size=12)
    optimiser, losses = torch.optim.AdamW(model.parameters(), lr=0.01), []
    for text in loader:
        loss = model(text)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert len(losses) == STEPS
    return losses


def reset(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Start anew, from the same shards."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            value.copy_(state[name])


def compared(
    rank: int, ranks: int, loops: list[str], options: dict[str, Any], size: int
) -> dict[str, tuple[float, float]]:
    """Each loop beside one device: the largest relative differences of what it returns, and of parameters and buffers.

    One parallel module serves all of them, planned for batches of ``size``.
    """
    alone, model = (
        classifier(),
        hap.parallelize(classifier(), cluster(ranks, 1e9), batches(size, 1)[0], active=range(ranks), **options),
    )
    marks = [mark_of(parameter) for parameter in model.parameters()]
    assert any(mark is not None and mark.sharded for mark in marks)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    whole = {name: value.clone() for name, value in alone.state_dict().items()}
    found = {}
    for name in loops:
        reset(model, first)
        reset(alone, whole)
        expected, values = globals()[name](alone), globals()[name](model)
        assert len(expected) == len(values)
        worst = max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(values, expected, strict=True))
        found[name] = worst, difference(model, alone)
    return found


def noisy(rank: int, ranks: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """A loop with dropout: its losses, and the whole parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = hap.parallelize(classifier(dropout=0.3), cluster(ranks, 1e9), active=range(ranks))
    losses = momentum(model)
    return losses, {name: model.full_parameter(name) for name, _ in model.named_parameters()}

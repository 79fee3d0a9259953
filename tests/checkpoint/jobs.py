"""What the ranks of the tests run: functions that processes can import."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard
from torch.nn import functional as F

import hap
from hap.checkpoint import folder as checkpoint_folder
from hap.errors import CheckpointError
from hap.rules import annotate
from tests.runtime.jobs import cluster, plan_of
from tests.runtime.programs import random_program


def divided(size: int, shares: list[int]) -> list[int]:
    """Whole units in proportion to shares."""
    ends = [round(size * sum(shares[: rank + 1]) / sum(shares)) for rank in range(len(shares))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


class Tied(nn.Module):
    """A weight under two names, buffers, random numbers; its loss is in float64."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 12)
        self.inner = nn.Linear(12, 12)
        self.norm = nn.BatchNorm1d(12)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(12, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(self.norm(self.inner(self.embedding(tokens))))
        return F.cross_entropy(self.head(hidden), tokens)


def tied(dropout: float = 0.1, size: int = 20) -> tuple[nn.Module, torch.Tensor]:
    """The module, and a batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Tied(dropout).double(), torch.randint(0, 20, (size,))


def parallel(shares: list[int], seed: int) -> tuple[Any, torch.Tensor]:
    """The module under a random program; every axis in these shares. Parameters depend on the seed."""
    module, batch = tied()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.01 * seed)
    axes, devices, generator = annotate(hap.trace(module, (batch,))), cluster(len(shares)), random.Random(seed)
    plan = plan_of(axes, devices, random_program(axes, generator), generator)
    (replica,) = plan.replicas
    splits = {axis.name: divided(axis.size, shares) for axis in axes.axes}
    stage = msgspec.structs.replace(replica.stages[0], splits=splits)
    plan = msgspec.structs.replace(plan, replicas=(msgspec.structs.replace(replica, stages=(stage,)),))
    torch.manual_seed(seed)
    return hap.parallelize(module, devices, (batch,), plan=plan), batch


def training(model: Any) -> dict[str, Any]:
    """A model with what trains it: two groups, momentum, a schedule."""
    parameters = list(model.parameters())
    groups = [{"params": parameters[:3], "weight_decay": 0.1}, {"params": parameters[3:]}]
    optimiser = torch.optim.AdamW(groups, lr=0.01)
    return {
        "model": model,
        "optimizer": optimiser,
        "scheduler": torch.optim.lr_scheduler.MultiStepLR(optimiser, [2, 4], gamma=0.5),
    }


def steps(run: dict[str, Any], batch: torch.Tensor, count: int) -> list[float]:
    """The losses of so many steps."""
    losses = []
    for _ in range(count):
        loss = run["model"](batch)
        loss.backward()
        run["optimizer"].step()
        run["optimizer"].zero_grad()
        run["scheduler"].step()
        losses.append(float(loss.detach()))
    return losses


def train_and_save(rank: int, shares: list[int], folder: str, asynchronous: bool) -> list[float]:
    """Three steps, a checkpoint, and three steps more."""
    model, batch = parallel(shares, seed=1)
    run = training(model)
    losses = steps(run, batch, 3)
    # What the folder holds before is replaced.
    hap.save(folder, run)
    saving = hap.save(folder, {**run, "step": 3}, asynchronous=asynchronous)
    losses += steps(run, batch, 3)
    if saving is not None:
        saving.result(60)
    return losses


def load_and_train(rank: int, shares: list[int], folder: str) -> dict[str, Any]:
    """Three steps from a checkpoint, after one from other parameters that must not matter."""
    model, batch = parallel(shares, seed=2)
    run = training(model)
    steps(run, batch, 1)
    rest = hap.load(folder, run)
    whole = hap.full_state_dict(model)
    hap.export_safetensors(model, Path(folder) / "../whole", shard_size=1000)
    return {"rest": rest, "losses": steps(run, batch, 3), "whole": whole, "rng": model.rng_state}


def disagree(rank: int, shares: list[int], folder: str) -> None:
    """One rank asks for what is not there."""
    model = hap.parallelize(nn.Linear(2, 2), cluster(len(shares)), (torch.ones(2, 2),))
    hap.load(folder, {"model": model} | ({"else": model} if rank else {}), strict=False)


def refused(rank: int, shares: list[int], saved: str) -> None:
    """What cannot be saved, loaded or gathered; all ranks raise."""
    ranks, plain = len(shares), nn.Linear(2, 2)
    checkpoint_folder.PATIENCE = 0.1
    lazy = hap.parallelize(nn.Linear(2, 2), cluster(ranks))
    with pytest.raises(CheckpointError, match='"model" has no plan yet'):
        hap.save(f"{saved}-new", {"model": lazy})
    with pytest.raises(CheckpointError, match='"model" has not been placed yet'):
        hap.load(saved, {"model": lazy})
    with torch.device("meta"):
        unmade = hap.parallelize(nn.Linear(2, 2), cluster(ranks))
    with pytest.raises(CheckpointError, match="the module has not been placed yet"):
        hap.full_state_dict(unmade)
    with pytest.raises(CheckpointError, match="the module has not been placed yet"):
        hap.export_safetensors(unmade, f"{saved}-exported")

    module = nn.Sequential(nn.Linear(4, 4 * ranks), nn.Linear(4 * ranks, 4))
    inner = hap.parallelize(module, cluster(ranks), (torch.ones(ranks, 4),), pin={"0.weight": Shard(0)})
    for nested in (nn.Sequential(inner), inner[0]):
        for attempt in (hap.save, hap.load):
            with pytest.raises(
                CheckpointError, match=f"{type(nested).__name__} holds, or is part of, a parallel module"
            ):
                attempt(f"{saved}-new" if attempt is hap.save else saved, {"model": nested})

    blind = "rank 1 does not see" if ranks == 2 else "ranks 1, 2, 3 do not see"
    own = f"{saved}-on-host-{rank}"
    with pytest.raises(CheckpointError, match=blind):
        hap.save(own, {"model": plain})
    with pytest.raises(CheckpointError, match=blind):
        hap.load(own if rank else saved, {"model": plain})


def save_for_ever(folder: str, ready: Any, rank: int, ranks: int) -> None:
    """Saves states, each full of one number, until it is killed."""
    torch.set_num_threads(1)
    if ranks > 1:
        store = f"file://{folder}.store"
        torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    for number in range(1, 10_000):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(number)
        hap.save(folder, {"model": module, "number": number})
        if number == 1 and rank == 0:
            os.write(ready, b".")

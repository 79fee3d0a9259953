"""The systems that are compared, each as a function that trains one step on a global batch.

All train the same model on the same batches by the same optimiser, and all compute the gradient of the mean loss over
the global batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hap

Step: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Trains one step on a global batch; returns this rank's part of the loss, detached."""


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser that all systems use."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def _steps(model: nn.Module) -> Step:
    """The plain loop: what a call of the model returns is the loss to train by."""
    optimizer = optimizer_of(model)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def single_device(model: nn.Module) -> Step:
    """The whole batch on one device: what all others must equal."""
    return _steps(copy.deepcopy(model))


def data_parallel(model: nn.Module, shares: Sequence[int]) -> Step:
    """PyTorch's DistributedDataParallel with ``shares[r]`` of the batch's samples on rank r.

    DDP averages the ranks' gradients; each rank's loss is weighted so that this gives the gradient of the global mean.
    The losses returned sum to the global loss.
    """
    rank, count = dist.get_rank(), dist.get_world_size()
    first, size = sum(shares[:rank]), shares[rank]
    replica = DistributedDataParallel(copy.deepcopy(model), gradient_as_bucket_view=True)
    optimizer = optimizer_of(replica)
    part = size / sum(shares)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = replica(x[first : first + size], y[first : first + size]) * (part * count)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach() / count

    return step


def planned(model: nn.Module, cluster: hap.Cluster, example_inputs: tuple[torch.Tensor, ...]) -> tuple[Step, hap.Plan]:
    """The model under hap, and the plan. The loss returned is the global one, on every rank."""
    parallel = hap.parallelize(copy.deepcopy(model), devices=cluster, example_inputs=example_inputs)
    return _steps(parallel), parallel.plan


def proportional_shares(total: int, speeds: Sequence[float]) -> list[int]:
    """``total`` samples in proportion to the speeds, by largest remainder, at least one each."""
    exact = [total * speed / sum(speeds) for speed in speeds]
    shares = [max(1, int(share)) for share in exact]
    while sum(shares) < total:
        rank = max(range(len(shares)), key=lambda r: exact[r] - shares[r])
        shares[rank] += 1
    while sum(shares) > total:
        rank = min((r for r in range(len(shares)) if shares[r] > 1), key=lambda r: exact[r] - shares[r])
        shares[rank] -= 1
    return shares

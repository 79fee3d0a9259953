"""The systems that are compared, each as a function that trains one step on a global batch.

All take the model that they are given, train it on the same batches by AdamW, and compute the gradient of the mean loss
over the global batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from benches.cluster.workloads import Batch, Workload
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

import hap
from hap.balance import largest_remainder

RATE = 1e-3


@dataclass(frozen=True)
class System:
    """A model under a system, ready to train.

    Attributes:
        model: what the batch is given to.
        optimisers: of its parameters.
        first, count: of this rank's samples; all of them but under data parallelism.
        weight: of this rank's loss in what is differentiated.
        partial: whether the ranks' losses, so weighted, have the global one as their mean; else each has that.
    """

    model: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimisers: list[torch.optim.Optimizer]
    first: int = 0
    count: int | None = None
    weight: float = 1.0
    partial: bool = False

    def bytes(self) -> int:
        """Of the parameters that this rank holds."""
        held = (one for each in self.optimisers for group in each.param_groups for one in group["params"])
        local = (one.to_local() if isinstance(one, DTensor) else one for one in held)
        return sum(one.numel() * one.itemsize for one in local)

    def step(self, batch: Batch) -> torch.Tensor:
        """Trains one step; this rank's loss, weighted and detached."""
        x, y = batch
        part = slice(self.first, None if self.count is None else self.first + self.count)
        loss = self.model(x[part], y[part])
        (loss * self.weight if self.partial else loss).backward()
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        return loss.detach() * self.weight


def single(model: nn.Module) -> System:
    """The whole batch on one device: what all others must equal."""
    return System(model, optimisers(model.parameters()))


def data_parallel(model: nn.Module, shares: Sequence[int]) -> System:
    """PyTorch's DistributedDataParallel with ``shares[r]`` of the batch's samples on rank r."""
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return _on_shares(replica, replica.parameters(), shares)


def fully_sharded(workload: Workload, model: nn.Module, shares: Sequence[int], *, keep: bool) -> System:
    """PyTorch's FSDP2: parameters in even shards, gathered for each of the workload's units.

    Where memory allows to ``keep`` them, they are gathered once a step; else again in the backward.
    """
    mesh = _mesh()
    for name, module in model.named_modules():
        if workload.is_unit(name) and any(True for _ in module.parameters()):
            fully_shard(module, mesh=mesh, reshard_after_forward=not keep)
    fully_shard(model, mesh=mesh, reshard_after_forward=not keep)
    return _on_shares(model, model.parameters(), shares)


def _on_shares(model: nn.Module, parameters: Iterable[nn.Parameter], shares: Sequence[int]) -> System:
    """Both average the ranks' gradients: each rank's loss is weighted so that this is the global mean's gradient."""
    rank, count = dist.get_rank(), dist.get_world_size()
    first, weight = sum(shares[:rank]), count * shares[rank] / sum(shares)
    return System(model, optimisers(parameters), first, shares[rank], weight, partial=True)


def tensor_parallel(workload: Workload, model: nn.Module) -> System:
    """PyTorch's tensor parallelism as people write it by hand, in even parts; what is not named is whole everywhere."""
    parallelize_module(model, _mesh(), {name: style() for name, style in workload.tensor.items()})
    return System(model, optimisers(model.parameters()))


def planned(model: nn.Module, cluster: hap.Cluster, batch: Batch) -> tuple[System, hap.Plan]:
    """The model under hap, and the plan."""
    parallel = hap.parallelize(model, devices=cluster, example_inputs=batch)
    return System(parallel, optimisers(parallel.parameters())), parallel.plan


def optimisers(parameters: Iterable[nn.Parameter]) -> list[torch.optim.Optimizer]:
    """AdamW; another one for DTensors, which do not go together with other tensors."""
    kinds: dict[bool, list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault(isinstance(parameter, DTensor), []).append(parameter)
    return [torch.optim.AdamW(one, lr=RATE, fused=True) for one in kinds.values()]


def _mesh() -> DeviceMesh:
    return dist.init_device_mesh("cpu", (dist.get_world_size(),))


def proportional(total: int, speeds: Sequence[float]) -> list[int]:
    """``total`` samples in proportion to the speeds, by largest remainder.

    Raises:
        ValueError: a rank gets none, which data parallelism does not know of.
    """
    shares = largest_remainder([speed / sum(speeds) for speed in speeds], total)
    if min(shares) == 0:
        raise ValueError(f"{total} samples are too few for speeds of {list(speeds)}")
    return shares

"""A script as a user writes it, for ``mypy --strict``: the public names have the types that these lines need.

``make lint`` reads it; nothing runs it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from typing_extensions import assert_type

import hap
from hap import Cluster, Plan


def train(model: nn.Module, x: Tensor, loader: torch.utils.data.DataLoader[tuple[Tensor, Tensor]]) -> float:
    cluster = Cluster(["V100", hap.Device("P100")], link=hap.Link("10GbE"))
    plan = hap.plan(model, devices=cluster, example_inputs=(x,), pin={"weight": Shard(0), "bias": [Replicate()]})
    assert_type(plan, Plan)
    assert_type(plan.baselines, dict[str, float | None])
    assert_type(hap.Plan.load("plan.json").cluster, Cluster)
    step = hap.simulate(plan, model, example_inputs=(x,))
    assert_type(step, hap.SimulatedStep)
    assert_type(hap.check(model, devices=cluster, example_inputs=(x,)), hap.CheckResult)
    assert_type(hap.profile(quick=True), Cluster)
    hap.register_rule("aten::mm", "~i k, ~k j -> i j")
    parallel = hap.parallelize(model, devices=cluster)
    sampler = hap.DistributedSampler(loader.dataset, parallel, batch_size=4)  # type: ignore[arg-type]  # may be unsized
    sampler.set_epoch(1)
    optimizer = torch.optim.SGD(parallel.parameters())
    hap.save("checkpoint", {"model": parallel, "optimizer": optimizer})
    state: Mapping[str, object] = hap.load("checkpoint", {"model": parallel})
    try:
        norm = hap.clip_grad_norm_(parallel, 1.0)
    except hap.errors.CommunicationError as error:
        raise SystemExit(f"{error} {state}") from error
    assert_type(norm, Tensor)
    return step.seconds + norm.item()

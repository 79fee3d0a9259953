"""A job whose constraints hold through training, evaluation and further shapes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.distributed.tensor import Replicate, Shard

import hap
from tests.planning.tagger import Tagger, batch, kept
from tests.runtime import jobs

PIN = {
    "head.weight": Shard(0),
    "layers": [Shard(1), Replicate()],
    "layers.2.weight": Shard(1),
    "outputs.logits": [Shard(0), Shard(2)],
    "kwargs.labels": Replicate(),
}
FORBID = {"layers.0.weight": Replicate(), "norm.running_*": Replicate()}


def holds(model: Any) -> None:
    """The latest program keeps to the constraints; outputs without a loss beside them are whole."""
    found = kept(model._hap_session.latest.axes, model.plan.program)
    assert found["embed.weight"] == 0
    assert found["layers.0.weight"] == found["layers.2.weight"] == 1
    assert found["layers.0.bias"] is found["layers.2.bias"] is None
    assert found["norm.running_mean"] == found["norm.running_var"] == 0
    assert found.get("outputs.logits") in ((0, 2) if "kwargs.labels" in found else (None,))
    assert found.get("kwargs.labels") is None


def train(rank: int, ranks: int, planned: bool) -> float:
    """Batches of several sizes, and calls without labels, beside one device: the largest difference.

    With ``planned`` the constraints come with a plan that was made before.
    """
    module = Tagger().double()
    alone = copy.deepcopy(module)
    machines, (words, labels) = jobs.cluster(ranks), batch(6)
    if planned:
        plan = hap.plan(module, devices=machines, example_inputs=words, example_kwargs=labels, pin=PIN, forbid=FORBID)
        model = hap.parallelize(module, machines, plan=plan)
    else:
        model = hap.parallelize(module, machines, pin=PIN, forbid=FORBID)
    optimisers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, alone)]
    worst = 0.0
    for samples in (6, 4, 6):
        args, kwargs = batch(samples)
        there, here = model(*args, **kwargs), alone(*args, **kwargs)
        holds(model)
        worst = max(worst, float((there["logits"].full_tensor() - here["logits"]).detach().abs().max()))
        for loss in (there["loss"], here["loss"]):
            loss.backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
    for each in (model, alone):
        each.eval()
    args, _ = batch(4)
    with torch.no_grad():
        there, here = model(*args), alone(*args)
    holds(model)
    worst = max(worst, float((there["logits"] - here["logits"]).abs().max()))
    return max(worst, jobs.difference(model, alone))

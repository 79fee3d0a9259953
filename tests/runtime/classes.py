"""A job whose plan has further split classes: for stretches of the model, and for parameters at rest."""

from __future__ import annotations

import copy
import random

import torch

import hap
from hap.program import SplitClass
from hap.rules import annotate, divided
from tests import models
from tests.runtime import jobs
from tests.runtime.programs import random_program


def train(rank: int, ranks: int, seeds: list[int]) -> float:
    """Steps with the planned batch, smaller ones and shares of it, beside one device: the largest difference."""
    return max(_train(rank, ranks, seed) for seed in seeds)


def _train(rank: int, ranks: int, seed: int) -> float:
    base, (x, y), _ = models.mlp()
    whole = annotate(hap.trace(base, (x, y)))
    hidden = next(axis.name for axis in whole.axes if axis.name != "batch")
    classes = {"batch@2": SplitClass("batch", "compute"), "stored": SplitClass(hidden, "storage")}
    axes, generator = divided(whole, classes), random.Random(seed)
    # Of two weights [hidden, hidden] one rests as operators split the axis, one otherwise.
    stored = {"layers.0.weight": ("S2",), "layers.1.weight": ("S0",)}
    program = random_program(axes, generator, stored=stored)
    plan = jobs.plan_of(axes, jobs.cluster(ranks), program, generator)
    plan.splits["stored"] = [plan.axes[hidden], *[0] * (ranks - 1)]
    plan.splits[hidden] = [1] * (ranks - 1) + [plan.axes[hidden] - ranks + 1]
    plan = hap.Plan.from_json(plan.to_json())
    module, alone = copy.deepcopy(base), copy.deepcopy(base)
    model = hap.parallelize(module, jobs.cluster(ranks), (x, y), plan=plan)
    worst = 0.0

    def advance(given: list[object], samples: int) -> None:
        nonlocal worst
        loss, expected = model(*given), alone(x[:samples], y[:samples])
        worst = max(worst, abs(float(loss.detach()) - float(expected.detach())))
        loss.backward()
        expected.backward()
        for one in (model, alone):
            torch.optim.SGD(one.parameters(), lr=0.01).step()
            one.zero_grad()

    advance([x, y], len(x))
    advance([x[:4], y[:4]], 4)
    units = plan.splits["batch"]
    start = sum(units[:rank])
    shares = [each[start : start + units[rank]] for each in (x, y)]
    advance([model.local_inputs(share) for share in shares], len(x))
    rows = [layer.weight.shape[0] for layer in model.layers]
    assert rows == [plan.splits["stored"][rank], plan.splits[hidden][rank]]
    return max(worst, jobs.difference(model, alone))

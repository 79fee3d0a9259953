"""Random numbers of a training run: functions of seed, step, operator and position, whatever the plan."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import hap
from hap import interpret
from hap.errors import HapError, RuntimeMismatchError
from hap.rules import annotate
from hap.trace import trace
from tests import models
from tests.runtime import jobs
from tests.runtime.launch import Launcher


def train(rank: int, ranks: int, programs: dict[int, bool]) -> list[float]:
    """Two steps under random programs; the largest difference of losses and gradients from one device's numbers.

    The programs are given by seed, with whether they make values again in the backward.
    """
    worst = []
    base, args, _ = models.noisy()
    axes = annotate(trace(base, args))
    expected = [interpret.run(axes.graph, interpret.bind(axes.graph, base, args, rng=(11, step))) for step in range(2)]
    for number, again in programs.items():
        module = copy.deepcopy(base)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11 + rank)  # that of rank 0 counts
            plan = jobs.random_plan(axes, jobs.cluster(ranks), number, again=again)
            model = hap.parallelize(module, jobs.cluster(ranks), args, plan=plan)
        difference = 0.0
        for step, outputs in enumerate(expected):
            assert model.rng_state == (11, step)
            loss = model(*args)
            loss.backward()
            difference = max(difference, abs(float(loss.detach()) - float(outputs["loss", ""])))
            for name, parameter in model.named_parameters():
                gradient = model._hap_session.whole(name, parameter.grad)
                difference = max(difference, float((gradient - outputs["gradient", name]).abs().max()))
                parameter.grad = None
        worst.append(difference)
    return worst


def differing(rank: int) -> str:
    module, args, _ = models.noisy()
    model = hap.parallelize(module, jobs.cluster(2), args)
    model.rng_state = (1, rank)
    try:
        model(*args)
    except RuntimeMismatchError as error:
        model.rng_state = (1, 5)
        model(*args).backward()  # the job goes on
        return str(error)
    return "no error"


@pytest.mark.timeout(300)
def test_ranks_draw_the_numbers_of_one_device() -> None:
    with Launcher(2) as launcher:
        for errors in launcher.run(train, 2, {1: False, 2: True}):
            assert max(errors) < 1e-10
        for message in launcher.run(differing):
            assert "the ranks differ in rng_state" in message


def test_a_run_is_determined_by_the_seed_and_can_be_resumed() -> None:
    def losses(model: Any, count: int) -> list[float]:
        return [float(model(*args).detach()) for _ in range(count)]

    module, args, _ = models.noisy()
    made = []
    for seed in (3, 3, 4):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made.append(hap.parallelize(copy.deepcopy(module), jobs.cluster(1), args))
    first = losses(made[0], 4)
    assert len(set(first)) == 4
    assert losses(made[1], 2) == first[:2]
    assert made[1].rng_state == (3, 2)
    made[2].rng_state = made[1].rng_state
    assert losses(made[2], 2) == first[2:]
    made[2].rng_state = (-1, 0)
    assert made[2].rng_state == (2**64 - 1, 0)
    assert losses(made[2], 1) != first[:1]


def test_only_calls_that_draw_are_counted() -> None:
    module, args, _ = models.mlp(torch.float32, dropout=0.5)
    model = hap.parallelize(module, jobs.cluster(1), args)
    seed, step = model.rng_state
    model.eval()(*args)
    assert model.rng_state == (seed, step)
    model.train()(*args)
    assert model.rng_state == (seed, step + 1)


@pytest.mark.parametrize("state", [3, (1,), (1, 2, 3), (1.0, 2), (2**64, 0), (0, -1), (0, 2**32)])
def test_wrong_states(state: Any) -> None:
    module, args, _ = models.mlp(torch.float32)
    model = hap.parallelize(module, jobs.cluster(1), args)
    with pytest.raises(HapError, match="rng_state: expected a seed"):
        model.rng_state = state

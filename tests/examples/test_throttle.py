import os
import select
import time

import pytest
import torch

from emulation.throttle import Throttle, feasible
from gpt import GPT
from text import batch, standard_library

X, Y = batch(standard_library(10_000), step=0, size=4, context=32)


def gradients(duty=None):
    """Gradients of a small model, and the processor time and the wall time of making them, several times over."""
    torch.manual_seed(0)
    model = GPT(context=32, width=64, layers=2, heads=4)
    used, start = time.thread_time(), time.monotonic()
    with Throttle(duty or 1.0):
        for _ in range(5):
            model.zero_grad()
            model(X, Y).backward()
    return [p.grad for p in model.parameters()], time.thread_time() - used, time.monotonic() - start


@pytest.mark.parametrize("duty", [0.5, 0.2])
def test_computation_takes_its_duty_of_the_time(duty):
    _, used, seconds = gradients(duty)
    # Other processes can only make it slower; they make up for at most 5 ms.
    assert used / seconds < duty * 1.1 + 0.01


def test_unthrottled_computation_never_sleeps(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("slept"))
    gradients(1.0)


def test_results_stay_the_same():
    for slowed, free in zip(gradients(0.5)[0], gradients()[0], strict=True):
        assert torch.equal(slowed, free)


def test_waiting_is_not_slowed(monkeypatch):
    slept = []
    with Throttle(0.1):
        monkeypatch.setattr(time, "sleep", slept.append)
        select.select([], [], [], 0.5)
        torch.ones(1)
    assert sum(slept) < 0.25


def test_duties_fit_the_machine():
    processors = len(os.sched_getaffinity(0))
    assert feasible([0.01, 0.02]) == [0.01, 0.02]
    assert sum(feasible([0.5] * 4 * processors)) == pytest.approx(0.85 * processors)

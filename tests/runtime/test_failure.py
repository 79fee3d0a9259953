"""A rank that raises, hangs or is killed, in the middle of a step: all others end with an error that says so."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import hap
from hap.errors import CommunicationError
from hap.runtime.failure import ANSWER_WITHIN
from tests.runtime.launch import Launcher, free_port

TIMEOUT = 6.0


@torch.library.custom_op("hap_tests::fragile", mutates_args=())
def fragile(x: torch.Tensor) -> torch.Tensor:
    """Fails on rank 1 once it is told to."""
    if os.environ.get("FRAGILE") == os.environ.get("RANK") == "1":
        raise ValueError("this rank cannot")
    return x.clone()


@fragile.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


fragile.register_autograd(lambda ctx, gradient: fragile(gradient))


class Layers(nn.Module):
    """Shared along the batch, so that each gradient is reduced."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return fragile(self.second(self.first(x).relu())).square().mean()


def slow(ranks: int) -> hap.Cluster:
    """Devices so slow that all of them are worth their collectives."""
    device = hap.Device(flops=1e5, memory_bandwidth=1e5, memory=1e9)
    return hap.Cluster([device] * ranks, link=hap.Link(bandwidth=1e9, latency=1e-6))


def parallel(ranks: int) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(8, 8)
    hap.register_rule("hap_tests::fragile", "*a -> *a")
    try:
        model = hap.parallelize(Layers(), slow(ranks), (x,), required_axis="batch")
    finally:
        hap.unregister_rule("hap_tests::fragile")
    return model, x


def _killed_in_a_step(rank: int) -> tuple[str, float]:
    model, x = parallel(4)
    model(x).backward()
    loss = model(x)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _error_of(loss.backward)


def _raises_or_hangs(rank: int, left: list[int], port: int) -> tuple[str, float]:
    dist.destroy_process_group()
    rank = left.index(rank)
    os.environ.update(MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(len(left)))
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
    model, x = parallel(3)
    model(x).backward()
    assert [thread.name for thread in threading.enumerate()].count("hap-failure") == 1  # that of the job before is gone
    loss = model(x)
    os.environ["FRAGILE"] = "1"
    if rank == 2:
        time.sleep(1000.0)
    return _error_of(loss.backward)


def _error_of(step: Any) -> tuple[str, float]:
    """The error of a step, and after how many seconds it came."""
    start = time.monotonic()
    try:
        step()
    except CommunicationError as error:
        return str(error), time.monotonic() - start
    except ValueError as error:
        return f"{type(error).__name__}: {error}", 0.0
    return "no error", 0.0


@pytest.mark.timeout(120)
def test_killed_raising_and_hanging() -> None:
    with Launcher(4, timeout=TIMEOUT) as launcher:
        launcher.send(_killed_in_a_step)
        for rank in (0, 2, 3):
            message, seconds = launcher.receive(rank)
            # The instruction and its tensor, this rank, and the one that is missing.
            assert re.match(
                rf'\w+ of "\w+"( and \d+ more)?( \(\w+\))? failed on rank {rank} of ranks 0 to 3: ', message
            ), message
            assert "when asked: rank 1: its process has ended; " in message
            assert seconds < TIMEOUT + ANSWER_WITHIN
        port = free_port()
        left = [0, 2, 3]
        for rank in left:
            launcher.channels[rank].send((_raises_or_hangs, (left, port)))
        message, seconds = launcher.receive(0)
        assert re.match(
            r'\w+ of "\w+"( and \d+ more)?( \(\w+\))? failed on rank 0 of ranks 0 to 2: .*imed out', message
        ), message
        # The one has left the step, and its process does something else; the other one sleeps.
        assert re.search(r"rank 1: in no collective, but at .*launch\.py:\d+, _serve: ", message), message
        assert re.search(
            r"rank 2: in no collective, but at .*test_failure\.py:\d+, _raises_or_hangs: time\.sl", message
        )
        assert seconds < TIMEOUT + ANSWER_WITHIN
        raised, _ = launcher.receive(2)
        assert raised.startswith("ValueError: this rank cannot")
        launcher.kill(3)
        launcher.channels[0].send(None)
        launcher.channels[2].send(None)
        for process in launcher.processes:
            process.join(30.0)
    assert [process.exitcode for process in launcher.processes] == [0, -signal.SIGKILL, 0, -signal.SIGKILL]

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from emulation.job import JobError, run
from emulation.systems import data_parallel, proportional_shares, single_device
from emulation.throttle import Throttle
from gpt import GPT
from text import batch, standard_library


def fail_on_one(rank):
    if rank.rank == 1:
        raise ValueError("the second rank's own mistake")
    dist.barrier()


def test_failing_rank_ends_the_job_with_its_traceback():
    with pytest.raises(JobError, match=r"(?s)rank \d failed.*Traceback"):
        list(run(fail_on_one, 2, timeout=60))
    assert not multiprocessing.active_children()


def die(rank):
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def test_dying_rank_ends_the_job():
    with pytest.raises(JobError, match="rank 1 died without a word"):
        list(run(die, 2, timeout=60))
    assert not multiprocessing.active_children()


def hang(rank):
    rank.report(os.getpid())
    while True:
        pass


def test_hanging_job_ends_in_time():
    start = time.monotonic()
    with pytest.raises(JobError, match="too long"):
        list(run(hang, 1, timeout=15))
    assert time.monotonic() - start < 40
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_parent_is_ended(how):
    # A job in the background of a script ignores interrupts, and so would its children.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from test_job import *\nfor pid in run(hang, 1, timeout=60): print(pid, flush=True)"
    )
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2] / "examples")])
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path},
    )
    pid = int(parent.stdout.readline())
    parent.send_signal(how)
    assert parent.wait(timeout=30) != 0
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def train_both(rank):
    torch.manual_seed(0)
    model, text = GPT(context=8, width=16, layers=1, heads=2), standard_library(10_000)
    parallel = data_parallel(model, [4, 1, 1])
    alone = single_device(model)
    for step in range(3):
        x, y = batch(text, step=step, size=6, context=8)
        with Throttle(0.5):
            loss = parallel(x, y)
        dist.all_reduce(loss)
        rank.report((loss.item(), alone(x, y).item()))


def test_weighted_data_parallel_training_equals_one_device():
    reports = list(run(train_both, 3, timeout=60))
    assert len(reports) == 9
    for parallel, alone in reports:
        assert parallel == pytest.approx(alone, rel=1e-5)


@given(st.integers(4, 100), st.lists(st.floats(0.01, 100), min_size=1, max_size=4))
def test_proportional_shares(total, speeds):
    shares = proportional_shares(total, speeds)
    assert sum(shares) == total
    assert min(shares) >= 1
    exact = [total * speed / sum(speeds) for speed in speeds]
    if min(exact) >= 1:
        assert all(abs(share - wanted) <= 1 for share, wanted in zip(shares, exact, strict=True))

"""Runs a function on the processes of one gloo job, and cleans up after them whatever happens."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class JobError(RuntimeError):
    """A rank failed, or the job took too long."""


@dataclass(frozen=True, slots=True)
class Rank:
    """What the function gets on each rank: where it is, and how it speaks to the parent."""

    rank: int
    count: int
    _pipe: Connection

    def report(self, message: object) -> None:
        """Hands a message (picklable) to the parent, where :func:`run` yields it."""
        self._pipe.send(("message", message))


def run(function: Callable[..., None], count: int, *arguments: Any, timeout: float) -> Iterator[Any]:
    """Calls ``function(rank, *arguments)`` in ``count`` processes; yields what the ranks report.

    Raises:
        JobError: a rank failed (with its traceback), or the job took longer than ``timeout`` seconds.
    """
    context = multiprocessing.get_context("spawn")
    deadline = time.monotonic() + timeout
    processes: list[SpawnProcess] = []
    pipes: dict[Connection, int] = {}
    with tempfile.TemporaryDirectory(prefix="hap-") as folder:
        store = str(Path(folder) / "store")
        try:
            for rank in range(count):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_main, args=(function, rank, count, store, os.getpid(), theirs, arguments, timeout)
                )
                process.start()
                theirs.close()
                processes.append(process)
                pipes[ours] = rank
            yield from _messages(pipes, deadline)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.join()


def _messages(running: dict[Connection, int], deadline: float) -> Iterator[Any]:
    """The ranks' messages, until all of them are done."""
    while running:
        ready = wait(list(running), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise JobError("the job took too long and was stopped")
        for pipe in ready:
            assert isinstance(pipe, Connection), "only connections are waited for"
            try:
                kind, content = pipe.recv()
            except EOFError:
                raise JobError(f"rank {running[pipe]} died without a word") from None
            if kind == "message":
                yield content
            elif kind == "error":
                raise JobError(f"rank {running[pipe]} failed:\n{content}")
            else:
                assert kind == "done", f"no such message: {kind}"
                del running[pipe]


def _main(
    function: Callable[..., None],
    rank: int,
    count: int,
    store: str,
    parent: int,
    pipe: Connection,
    arguments: tuple[Any, ...],
    timeout: float,
) -> None:
    """The main function of a rank's process."""
    _die_with(parent)
    # Ctrl-C reaches the whole group of processes; the parent cleans up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=timedelta(seconds=timeout)
        )
        function(Rank(rank, count, pipe), *arguments)
        dist.barrier()
        pipe.send(("done", None))
        dist.destroy_process_group()
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
        raise SystemExit(1) from None


def _die_with(parent: int) -> None:
    """Lets the kernel kill this process when its parent ends, however that ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the parent ended before its child had started")

"""Runs a function on several processes joined by gloo, with a time limit, and leaves none behind.

``with Launcher(3) as launcher: launcher.run(function, ...)`` starts the processes once; each ``run`` calls
``function(rank, ...)`` on every rank and returns the list of results.
"""

from __future__ import annotations

import os
import signal
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch.multiprocessing as multiprocessing

# Ranks are copies of one process that has imported what takes seconds: what tracing uses, and Hugging Face's models.
PRELOADED = [
    "hap",
    "hap.trace.route",
    "hap.rules",
    "torch._dynamo",
    "torch._export",
    "torch._functorch.aot_autograd",
    "torch._inductor.decomposition",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
]


class RankError(AssertionError):
    """Some ranks raised, died or did not answer in time; ``errors`` holds what each rank raised, by rank."""

    def __init__(self, message: str, errors: dict[int, str]) -> None:
        super().__init__(message)
        self.errors = errors


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _serve(rank: int, size: int, port: int, timeout: float, channel: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    while (task := channel.recv()) is not None:
        function, arguments = task
        try:
            channel.send((True, function(rank, *arguments)))
        except BaseException as error:
            channel.send((False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    dist.destroy_process_group()


class Launcher:
    """Processes that wait for functions to call. Functions must be importable (top level of a test module)."""

    def __init__(self, size: int, timeout: float = 60.0) -> None:
        self.size = size
        self.timeout = timeout
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        port = free_port()
        self.channels: list[Connection] = []
        self.processes = []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, port, timeout, there), daemon=True)
            process.start()
            there.close()
            self.channels.append(here)
            self.processes.append(process)

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill(self, rank: int) -> None:
        """End one rank at once, as a machine that fails."""
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self.processes[rank].join()

    def close(self) -> None:
        for channel, process in zip(self.channels, self.processes, strict=True):
            if process.is_alive():
                try:
                    channel.send(None)
                except OSError:
                    continue
        for process in self.processes:
            process.join(2.0)
            if process.is_alive():
                process.kill()
                process.join()

    def send(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Start ``function(rank, *arguments)`` on every rank; :meth:`receive` gets the results."""
        for channel in self.channels:
            channel.send((function, arguments))

    def receive(self, rank: int, limit: float = 100.0) -> Any:
        """One rank's result. Raises ``RankError`` as :meth:`run` does."""
        channel = self.channels[rank]
        if not channel.poll(limit):
            raise RankError(f"rank {rank} did not answer in {limit} s", {})
        good, value = channel.recv()
        if not good:
            raise RankError(f"rank {rank}: {value}", {rank: value})
        return value

    def run(
        self, function: Callable[..., Any], *arguments: Any, limit: float = 100.0, ranks: list[int] | None = None
    ) -> list[Any]:
        """Call ``function(rank, *arguments)`` on every rank (or on ``ranks``) and return the results by rank.

        Raises:
            RankError: a rank raised, died, or did not answer within ``limit`` seconds (then all are killed).
        """
        ranks = list(range(self.size)) if ranks is None else ranks
        for rank in ranks:
            self.channels[rank].send((function, arguments))
        results: dict[int, Any] = {}
        errors: dict[int, str] = {}
        waiting = {self.channels[rank]: rank for rank in ranks}
        while waiting:
            ready = wait(list(waiting), limit)
            if not ready:
                for process in self.processes:
                    process.kill()
                raise RankError(f"ranks {sorted(waiting.values())} did not answer in {limit} s; {errors}", errors)
            for channel in ready:
                assert isinstance(channel, Connection)
                rank = waiting.pop(channel)
                try:
                    good, value = channel.recv()
                except EOFError:
                    good, value = False, "the process ended"
                (results if good else errors)[rank] = value
        if errors:
            raise RankError("\n".join(f"rank {rank}: {text}" for rank, text in sorted(errors.items())), errors)
        return [results[rank] for rank in ranks]

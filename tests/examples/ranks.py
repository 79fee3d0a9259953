"""Runs an example as torchrun would, on processes that have imported what takes seconds."""

from __future__ import annotations

import os
import runpy
import sys
import time
import traceback
from contextlib import redirect_stdout
from io import StringIO
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tests.runtime.launch import PRELOADED, free_port

EXAMPLES = Path(__file__).parents[2] / "examples"


def _rank(rank: int, size: int, port: int, script: str, arguments: list[str], channel: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    # As Python does for the script that it is given.
    sys.path.insert(0, str(EXAMPLES))
    sys.argv = [script, *arguments]
    printed, code = StringIO(), 0
    try:
        with redirect_stdout(printed):
            runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        code = traceback.format_exc()
    channel.send((code, printed.getvalue()))


def run(ranks: int, script: str, *arguments: object, limit: float = 100.0) -> tuple[str, object]:
    """What rank 0 of an example prints, and the first exit code or traceback of a rank that is not 0, else 0."""
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    port, texts = free_port(), [str(argument) for argument in arguments]
    channels, processes = [], []
    for rank in range(ranks):
        here, there = context.Pipe()
        processes.append(context.Process(target=_rank, args=(rank, ranks, port, script, texts, there), daemon=True))
        processes[-1].start()
        there.close()
        channels.append(here)
    try:
        ended: dict[int, tuple[object, str]] = {}
        running, until = dict(enumerate(channels)), time.monotonic() + limit
        # Where one fails, others wait for it.
        while running and not any(code for code, _ in ended.values()):
            ready = wait([*running.values()], max(0.0, until - time.monotonic()))
            assert ready, f"{script}: ranks {sorted(running)} did not end in {limit} s"
            for rank in [rank for rank, channel in running.items() if channel in ready]:
                try:
                    ended[rank] = running.pop(rank).recv()
                except EOFError:
                    ended[rank] = (f"rank {rank} was killed", "")
    finally:
        for process in processes:
            process.kill()
            process.join()
    return ended.get(0, (0, ""))[1], next((code for code, _ in ended.values() if code), 0)

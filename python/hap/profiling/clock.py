"""Times of short pieces of work, on a CPU or an accelerator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch

from hap.runtime.agree import Control

# Rounds, however long they take, and however short.
LEAST, MOST = 5, 100
# What is shorter is run several times in a row, so that the clock resolves it, after one run that does not count: else
# what it finds in caches would hang on how many times it is run.
RESOLVED = 2e-3
# Rows and columns of what keeps a device busy, a moment each.
BUSY = 128

Work = Callable[[], object]
Clock = Callable[[], float]


def quartile(times: Sequence[float]) -> float:
    """The lower quartile."""
    return sorted(times)[len(times) // 4]


def once(work: Work, device: torch.device) -> float:
    """Seconds of one run, after one that does not count."""
    work()
    return _seconds(work, device, 1, time.perf_counter)


def rounds(
    works: Sequence[tuple[Work, float]],
    device: torch.device,
    *,
    seconds: float,
    least: int = LEAST,
    ranks: Control | None = None,
    clock: Clock = time.perf_counter,
) -> Iterator[list[float]]:
    """The times of all pieces of work, in turns, round after round for about so many seconds.

    Args:
        works: each with about what one run of it takes.
        device: where they run; what is queued there is waited for.
        seconds: for all rounds together.
        least: rounds that are done in any case.
        ranks: those that do the work together: they begin each piece at the same time, and end after the same round.
        clock: what tells how long each took.
    """
    counts = [1 if ranks else max(1, int(RESOLVED / taken)) for _, taken in works]
    warm = [not ranks and taken < RESOLVED for _, taken in works]
    started = time.perf_counter()
    for number in range(MOST if works else 0):
        over = number >= least and time.perf_counter() - started > seconds
        if max(ranks.numbers((over,), "timing"))[0] if ranks else over:
            break
        times = []
        for (work, _), count, first in zip(works, counts, warm, strict=True):
            if ranks:
                ranks.numbers((0,), "waiting for all ranks")
            if first:
                work()
            times.append(_seconds(work, device, count, clock))
        yield times


def _seconds(work: Work, device: torch.device, count: int, clock: Clock) -> float:
    finish(device)
    started = clock()
    for _ in range(count):
        work()
    finish(device)
    return max(clock() - started, 1e-9) / count


def compute_for(seconds: float, device: torch.device) -> None:
    """Keeps the device busy for so many seconds."""
    matrix = torch.ones(BUSY, BUSY, device=device)
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        torch.mm(matrix, matrix)
        finish(device)


def finish(device: torch.device) -> None:
    """Waits for what is queued on an accelerator."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

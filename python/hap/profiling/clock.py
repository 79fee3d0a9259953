"""Times of short pieces of work, on a CPU or an accelerator."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def seconds_of(work: Callable[[], object], device: torch.device, *, budget: float, least: int = 5) -> float:
    """The median time of ``work``, after two runs that do not count.

    Args:
        work: what to time.
        device: where it runs; what it has queued there is waited for.
        budget: seconds that all runs together may take.
        least: runs, whatever the budget.
    """
    finish(device)
    started = time.perf_counter()
    work()
    work()
    finish(device)
    # As many at a time as make a stretch that the clock resolves.
    once = max((time.perf_counter() - started) / 2, 1e-9)
    together = max(1, int(1e-3 / once))
    runs = min(50, max(least, int(budget / (once * together))))
    found = []
    for _ in range(runs):
        started = time.perf_counter()
        for _ in range(together):
            work()
        finish(device)
        found.append((time.perf_counter() - started) / together)
    return statistics.median(found)


def finish(device: torch.device) -> None:
    """Waits for what is queued on an accelerator."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

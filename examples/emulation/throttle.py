"""Slows a process's computation down without root: after it has computed, it sleeps.

A process with a *duty* of 0.25 computes a quarter of the time: for each second of processor time that its main thread
has used, it sleeps three. It does so after each PyTorch operator, whoever calls it, so that every system is slowed
alike. The threads that carry data between processes are not slowed, as a network is no slower for the slow devices on
it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SHORTEST = 0.0005
"""Seconds: shorter sleeps are put off, as they would take longer than asked for."""

CREDIT = 0.005
"""Seconds that a process may be made up for, when others have taken the processor away from it."""

COMMUNICATION = ("c10d", "_c10d_functional")
"""Namespaces of the operators that wait for other ranks."""


class Throttle(TorchDispatchMode):
    """While active, this thread computes for a share ``duty`` of the time that it does not wait.

    Args:
        duty: the share, above 0; with 1 nothing is slowed.
    """

    def __init__(self, duty: float) -> None:
        super().__init__()
        self.rest = 1 / duty - 1
        self._used = 0.0
        self._owed = 0.0

    def __enter__(self) -> Throttle:
        self._used = time.thread_time()
        self._owed = 0.0
        super().__enter__()
        return self

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs the operator, then sleeps for all processor time used since the last sleep."""
        start, used_before = time.monotonic(), time.thread_time()
        result = func(*args, **(kwargs or {}))
        now, used = time.monotonic(), time.thread_time()
        self._owed += (used - self._used) * self.rest
        self._used = used
        if func.namespace not in COMMUNICATION:
            # Time that other processes took from this one has slowed it already.
            self._owed = max(-CREDIT, self._owed - (now - start) + (used - used_before))
        if self._owed > SHORTEST:
            time.sleep(self._owed)
            # Sleeping too long is made up for.
            self._owed -= time.monotonic() - now
        return result


def feasible(duties: Sequence[float]) -> list[float]:
    """The duties, scaled down where this machine's processors could not keep them up all at once."""
    room = 0.85 * len(os.sched_getaffinity(0)) / sum(duties)
    return [duty * min(1.0, room) for duty in duties]

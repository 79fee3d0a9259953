"""Slows the computation of processes down without root, by stopping and continuing them.

The main thread of each process may use a share of one processor: its *duty*. A token bucket holds the processor time
that it may still use; it fills at the rate of the duty, and a process that has overdrawn it is stopped until that is
paid back. So whatever the main thread does is slowed equally, and time that it lost to other processes is made up for.
The threads that carry data between processes do not count, as a network is no slower for the slow devices on it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

PERIOD = 0.001
"""Seconds between two looks at the processes."""

BURST = 0.002
"""Seconds of waiting that a process may make up for: a full bucket holds this much processor time, times the duty."""


@dataclass(slots=True)
class _Bucket:
    duty: float
    used: float
    tokens: float = 0.0
    stopped: bool = False


@dataclass(slots=True)
class Throttle:
    """Holds processes to their duties while :meth:`tick` is called, until it is closed.

    Attributes:
        duties: share of one processor that each process may use, by process id; 1 is not slowed at all.
    """

    duties: Mapping[int, float]
    _buckets: dict[int, _Bucket] = field(default_factory=dict)
    _last: float = 0.0

    def __enter__(self) -> Throttle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def tick(self) -> None:
        """Fills the buckets for the time since the last call, stops who has used too much, continues who may go on."""
        now = time.monotonic()
        if not self._buckets:
            self._buckets = {pid: _Bucket(duty, processor_time(pid)) for pid, duty in self.duties.items()}
            self._last = now
        for pid, bucket in self._buckets.items():
            used = processor_time(pid)
            earned = (now - self._last) * bucket.duty - (used - bucket.used)
            bucket.tokens = min(BURST * bucket.duty, bucket.tokens + earned)
            bucket.used = used
            if bucket.stopped and bucket.tokens >= 0:
                os.kill(pid, signal.SIGCONT)
                bucket.stopped = False
            elif not bucket.stopped and bucket.tokens < 0 and bucket.duty < 1:
                os.kill(pid, signal.SIGSTOP)
                bucket.stopped = True
        self._last = now

    def release(self) -> None:
        """Lets every process run freely, until the next :meth:`tick`."""
        for pid, bucket in self._buckets.items():
            if bucket.stopped:
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    continue
        self._buckets.clear()


def processor_time(pid: int) -> float:
    """Seconds of processor time that a process's main thread has used, up to the kernel's last tick."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[0]) * 1e-9
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None


def feasible(duties: list[float]) -> list[float]:
    """The duties, scaled down where this machine's processors could not keep them up all at once."""
    processors = len(os.sched_getaffinity(0))
    room = 0.85 * processors / sum(duties)
    return [duty * min(1.0, room) for duty in duties]

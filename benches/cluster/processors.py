"""Gives processes a share of a processor and of the memory: by control groups, or by stopping them again and again.

Control groups (version 1) need root. Elsewhere a process is stopped and continued by signals for parts of a short
period; its memory is not limited then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benches.cluster.layout import Share

CPU, MEMORY = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/memory")
PERIOD = 10_000
"""Microseconds in which a control group gets its share. Short ones keep what waits for each other from waiting long."""
MOST_SHARES = 2**18
"""The weight of a control group beside others, at most; 1024 by default."""
TURN = 0.05
"""Seconds in which a process is stopped and continued once."""
ENTERED = "HAP_EMULATED_RANK"
"""Environment variable of a rank's process: the file that lifts its limit, and what to write to limit it again."""


def controlled() -> bool:
    """Whether control groups can be made here."""
    return os.geteuid() == 0 and (CPU / "cpu.cfs_quota_us").exists() and (MEMORY / "memory.limit_in_bytes").exists()


def make_groups(name: str, shares: Sequence[Share], memories: Sequence[float]) -> list[tuple[Path, str]]:
    """A control group for each rank; for each the file of its quota, and what stands in it."""
    files = []
    for rank, (share, memory) in enumerate(zip(shares, memories, strict=True)):
        group = f"{name}-rank{rank}"
        (CPU / group).mkdir()
        (CPU / group / "cpu.cfs_period_us").write_text(str(PERIOD))
        quota = str(max(1000, round(share.part * PERIOD)))
        (CPU / group / "cpu.cfs_quota_us").write_text(quota)
        # What else this machine does waits for the ranks.
        (CPU / group / "cpu.shares").write_text(str(MOST_SHARES))
        (MEMORY / group).mkdir()
        (MEMORY / group / "memory.limit_in_bytes").write_text(str(round(memory)))
        files.append((CPU / group / "cpu.cfs_quota_us", quota))
    return files


def join(quota: Path) -> None:
    """Puts this process into its control groups."""
    for root in (CPU, MEMORY):
        (root / quota.parent.name / "cgroup.procs").write_text(str(os.getpid()))


def overruns(name: str, ranks: int) -> list[int]:
    """Ranks of which the kernel has killed a process for its memory."""
    found = []
    for rank in range(ranks):
        lines = (MEMORY / f"{name}-rank{rank}" / "memory.oom_control").read_text().splitlines()
        if any(line.split() != ["oom_kill", "0"] for line in lines if line.startswith("oom_kill ")):
            found.append(rank)
    return found


class Stopper(threading.Thread):
    """Stops the processes whose numbers ranks have written into ``folder``, for all but their share of each turn."""

    def __init__(self, folder: Path, shares: Sequence[Share]) -> None:
        super().__init__(daemon=True)
        self.ranks = [(_Entered(folder / f"rank{rank}"), share.part) for rank, share in enumerate(shares)]
        self.ended = threading.Event()

    def run(self) -> None:
        """Until :attr:`ended` is set."""
        while not self.ended.is_set():
            start = time.monotonic()
            stopped = [(start + (1.0 - part) * TURN, rank) for rank, part in self.ranks if rank.send(signal.SIGSTOP)]
            for until, rank in sorted(stopped, key=lambda one: one[0]):
                time.sleep(max(0.0, until - time.monotonic()))
                rank.send(signal.SIGCONT)
            self.ended.wait(max(0.0, start + TURN - time.monotonic()))


class _Entered:
    """The process whose number stands in a file; never another one that has got its number later."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.known: dict[int, int] = {}

    def send(self, what: signal.Signals) -> bool:
        """Whether there was a process to signal: none where the file is not there, or says 0."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            number = int(self.file.read_text() or 0)
            if what == signal.SIGCONT or number:
                numbers = [number] if number else [*self.known]
                for each in numbers:
                    if each not in self.known:
                        self.known[each] = os.pidfd_open(each)
                    signal.pidfd_send_signal(self.known[each], what)
                return True
        return False


@contextlib.contextmanager
def full_speed() -> Iterator[None]:
    """Lifts the limit of this rank's processor meanwhile: for what is to be had, not measured."""
    entered = os.environ.get(ENTERED)
    if entered is None:
        yield
        return
    file, lifted, limited = entered.split("=")
    Path(file).write_text(lifted)
    try:
        yield
    finally:
        Path(file).write_text(limited)

"""Removes all that an emulated cluster consists of, by its name: also what a killed tool has left behind.

Run as a process (``python -m benches.cluster.leftovers NAME``) it waits until whoever holds its input ends, however it
ends, and removes the cluster then.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benches.cluster.processors import CPU, MEMORY

MARK = "HAP_EMULATED"
"""Environment variable of all processes of a cluster: its name."""
NAMESPACES = Path("/run/netns")
# Seconds that killed processes get to disappear.
PATIENCE = 10.0


def name_of(process: int) -> str:
    """The name of the cluster that this process makes: all that it makes begins with it and a hyphen."""
    return f"hap-emulated-{process}"


def folder_of(name: str) -> Path:
    """Where the processes of a cluster keep files."""
    return Path(tempfile.gettempdir()) / f"{name}-files"


def kill(name: str) -> None:
    """Kills the cluster's processes and waits for their end."""
    start, seen = time.monotonic(), True
    # Two looks in a row must find nothing: what starts just then may be missed by one.
    while time.monotonic() < start + PATIENCE:
        starting = _starting() and time.monotonic() < start + PATIENCE / 10
        left = list(processes(name))
        for number in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        if not (seen or starting or left):
            return
        seen = bool(starting or left)
        time.sleep(0.02)


def remove(name: str) -> None:
    """Kills the cluster's processes, then removes its namespaces, control groups and files."""
    kill(name)
    deadline = time.monotonic() + PATIENCE
    for namespace in _named(NAMESPACES, name):
        subprocess.run(["ip", "netns", "delete", namespace.name], capture_output=True)
    for root in (CPU, MEMORY):
        for group in _named(root, name):
            _remove_group(group, deadline)
    shutil.rmtree(folder_of(name), ignore_errors=True)


def remove_orphans() -> list[str]:
    """Removes clusters whose makers have ended; their names."""
    pattern = re.compile(r"(hap-emulated-(\d+))-")
    places = (NAMESPACES, CPU, MEMORY, Path(tempfile.gettempdir()))
    matches = (pattern.match(entry.name) for place in places if place.is_dir() for entry in place.iterdir())
    orphans = sorted({found[1] for found in matches if found and not Path(f"/proc/{found[2]}").exists()})
    for name in orphans:
        remove(name)
    return orphans


def processes(name: str) -> Iterator[int]:
    """The processes that carry the cluster's mark, and are no corpses."""
    mark = f"{MARK}={name}".encode()
    return (number for number, environment in _environments() if mark in environment.split(b"\0"))


def _starting() -> bool:
    """Whether a process shows no environment, as any does for a moment as it starts a program: it may be ours."""
    return not all(environment for _, environment in _environments())


def _environments() -> Iterator[tuple[int, bytes]]:
    """Numbers and environments of all processes that run a program: no corpses, nor the system's own threads."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                (entry / "exe").readlink()
                yield int(entry.name), (entry / "environ").read_bytes()


def _named(root: Path, name: str) -> list[Path]:
    return sorted(root.glob(f"{name}-*")) if root.is_dir() else []


def _remove_group(group: Path, deadline: float) -> None:
    """Removes a control group, which takes a moment after its last process."""
    while group.exists():
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    # Whoever interrupts the tool interrupts its group of processes.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.buffer.read()
    remove(sys.argv[1])

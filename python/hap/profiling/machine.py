"""What a rank runs on: names, memory, and what of it is free."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

import msgspec
import torch

from hap.runtime.hardware import hardware


class Machine(msgspec.Struct, frozen=True):
    """One rank's hardware.

    Attributes:
        host: the name of the host.
        name: of the accelerator, or of the processor.
        memory: bytes, of the host's for a CPU.
        free: bytes that are free of it.
        threads: that torch computes with; 0 for an accelerator.
        torch: the installed version.
    """

    host: str
    name: str
    memory: int
    free: int
    threads: int
    torch: str


def machine(device: torch.device) -> Machine:
    """What this process runs on."""
    host, version = socket.gethostname(), str(torch.__version__)
    real = hardware(device)
    if real is not None:
        return Machine(host, real.name, real.memory, real.free, 0, version)
    memory, free = _host_memory()
    return Machine(host, _processor(), memory, free, torch.get_num_threads(), version)


def _host_memory() -> tuple[int, int]:
    """All and free bytes, as far as the control group of the process allows."""
    page = os.sysconf("SC_PAGE_SIZE")
    memory = os.sysconf("SC_PHYS_PAGES") * page
    free = os.sysconf("SC_AVPHYS_PAGES") * page
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    for limit in _lines("/sys/fs/cgroup/memory.max"):
        if limit.isdigit():
            used = sum(int(text) for text in _lines("/sys/fs/cgroup/memory.current"))
            # Copies of files that nobody has touched lately are given up for whatever needs memory.
            stale = (line.split() for line in _lines("/sys/fs/cgroup/memory.stat"))
            used -= sum(int(size) for name, size in stale if name == "inactive_file")
            memory, free = min(memory, int(limit)), min(free, max(0, int(limit) - used))
    return memory, free


def _processor() -> str:
    names = (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name"))
    return next(names, None) or platform.processor() or platform.machine() or "CPU"


def _lines(path: str) -> list[str]:
    """The lines of a file of the system; none where there is no such file."""
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []

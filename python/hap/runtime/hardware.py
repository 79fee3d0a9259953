"""What each rank really runs on, held against the devices that were planned for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hap.cluster import Cluster, Device
from hap.cluster.accelerators import canonical_name, recognised_name
from hap.cluster.device import reserve_of
from hap.errors import RuntimeMismatchError
from hap.runtime.agree import Control
from hap.units import bytes_text

# The first kind of device that wheels for CUDA 12.8 and later, and the last one that those for 12.6, have kernels for.
OLDEST_OF_CUDA_128, NEWEST_OF_CUDA_126 = (7, 5), (9, 0)


@dataclass(frozen=True, slots=True)
class Hardware:
    """An accelerator as its driver and torch describe it.

    Attributes:
        name: what the driver calls it.
        memory: its bytes.
        free: bytes that this process has or can have.
        capability: of CUDA, such as ``(6, 1)``; ``None`` for others.
        kernels: what the installed torch was built for, such as ``("sm_75", "compute_90")``.
        torch: the installed version.
    """

    name: str
    memory: int
    free: int
    capability: tuple[int, int] | None
    kernels: tuple[str, ...]
    torch: str


def hardware(device: torch.device) -> Hardware | None:
    """The accelerator behind a torch device; ``None`` for a CPU, which may stand for any device."""
    if device.type != "cuda":
        return None
    free, memory = torch.cuda.mem_get_info(device)
    return Hardware(
        name=torch.cuda.get_device_name(device),
        memory=memory,
        free=free + torch.cuda.memory_reserved(device),
        capability=None if torch.version.hip else torch.cuda.get_device_capability(device),
        kernels=tuple(torch.cuda.get_arch_list()),
        torch=str(torch.__version__),
    )


def check_hardware(control: Control, cluster: Cluster, device: torch.device) -> None:
    """Checks that each rank runs on the device that stands at its place, and has its memory; called by all ranks.

    Processes on CPUs pass: there the names only say how unequal the devices are. So do devices of unknown names.

    Raises:
        RuntimeMismatchError: on all ranks; shows the list as it should be.
    """
    found = control.gather(hardware(device), "looking at the devices")
    problems = mismatches(cluster.devices, found)
    if problems:
        raise RuntimeMismatchError("; ".join(problems))


def mismatches(devices: Sequence[Device], found: Sequence[Hardware | None]) -> list[str]:
    """What is wrong, rank by rank, and the list that would be right; empty where all is well."""
    problems = [
        f"rank {rank} runs on {real.name}, and {unsupported}"
        for rank, real in enumerate(found)
        if real is not None and (unsupported := _without_kernels(real))
    ]
    names = [device.name if real is None else _name(real) for device, real in zip(devices, found, strict=True)]
    wrong = [
        f"rank {rank} runs on {real.name}, planned for as {device.name}"
        for rank, (device, name, real) in enumerate(zip(devices, names, found, strict=True))
        if real is not None and canonical_name(device.name) is not None and name != device.name
    ]
    if wrong:
        shown = ", ".join(_spelled(name) for name in names)
        return [*problems, *wrong, f"devices are listed in rank order: devices=[{shown}] is what is there"]
    for rank, (device, real) in enumerate(zip(devices, found, strict=True)):
        if real is not None and real.free < device.usable_memory:
            # The context is there already; what is left is for fragmentation.
            reserve = reserve_of(real.free, device.reserve)
            problems.append(
                f"rank {rank} runs on {real.name}, of which {bytes_text(real.free)} are free, and the plan may use "
                f"{bytes_text(device.usable_memory)}: end what else runs there, or give "
                f'Device("{device.name}", memory={_rounded_down(real.free)}, reserve={reserve:.3g})'
            )
    return problems


def _rounded_down(size: int) -> str:
    """Bytes to three digits, a little less than there are: what is free changes a little."""
    size = size * 99 // 100
    digits = max(0, len(str(size)) - 3)
    return f"{float(size // 10**digits * 10**digits):.3g}"


def _name(real: Hardware) -> str:
    """The name in the table of accelerators, or else the driver's."""
    return recognised_name(real.name, real.memory) or real.name


def _spelled(name: str) -> str:
    """How a device is written in ``devices=``; one that is not known needs its figures."""
    known = canonical_name(name) is not None
    return f'"{name}"' if known else f'hap.Device("{name}", flops=..., memory_bandwidth=..., memory=...)'


def _without_kernels(real: Hardware) -> str | None:
    """What to install where the installed torch has no kernels for the card; ``None`` where it has.

    Binaries run on later devices of the same major version, and ``compute_`` code is compiled for any later one.
    """
    if real.capability is None:
        return None
    versions = [re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", kernel) for kernel in real.kernels]
    for match in versions:
        if match is not None:
            version = (int(match[2]), int(match[3]))
            if version <= real.capability and (match[1] == "compute" or version[0] == real.capability[0]):
                return None
    which = f"sm_{real.capability[0]}{real.capability[1]}"
    mend = f"install a build of torch for {which}, or leave the card out"
    if real.capability < OLDEST_OF_CUDA_128:
        mend = "install torch for CUDA 12.6: pip install torch --index-url https://download.pytorch.org/whl/cu126"
    elif real.capability > NEWEST_OF_CUDA_126:
        mend = (
            "install torch for CUDA 12.8 or later: pip install torch --index-url https://download.pytorch.org/whl/cu128"
        )
    return f"torch {real.torch} has no kernels for it ({which}; built for {' '.join(real.kernels) or 'none'}): {mend}"

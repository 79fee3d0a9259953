"""What a device's operators cost: families of operators over sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F

from hap.cluster.device import FAMILIES, Points
from hap.profiling.clock import seconds_of

MEMORY = "memory"
# Larger problems are left out where one is expected to take this part of a family's time.
LARGEST = 0.1

Problem = tuple[float, Callable[[], object]]
"""FLOP (of memory-bound work: bytes), and the work."""


def names(dtypes: tuple[torch.dtype, ...]) -> list[str]:
    """Everything that is measured of a device, as in :attr:`hap.Device.measured`."""
    return [MEMORY, *(f"{family}/{str(dtype).removeprefix('torch.')}" for family in FAMILIES for dtype in dtypes)]


def measure(name: str, device: torch.device, *, seconds: float) -> Points:
    """The times of one of :func:`names` over sizes, measured in about so many seconds."""
    family, _, dtype = name.partition("/")
    points: list[tuple[float, float]] = []
    for amount, work in _problems(family, getattr(torch, dtype or "float32"), device):
        taken = seconds_of(work, device, budget=seconds * LARGEST)
        # Noise, where a larger problem takes no longer.
        if not points or taken > points[-1][1]:
            points.append((amount, taken))
        if len(points) > 3 and 4.0 * taken > seconds * LARGEST:
            break
    return tuple(points)


def _problems(family: str, dtype: torch.dtype, device: torch.device) -> Iterator[Problem]:
    """Larger and larger ones; those that a family's operators of usual models lie between."""
    generator = torch.Generator().manual_seed(0)

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    # Accelerators are measured at sizes that fill them.
    large = device.type != "cpu"
    if family == MEMORY:
        for exponent in (6, *range(12, 28 if large else 24, 2)):
            x = values(2**exponent)
            yield 3.0 * x.nbytes, partial(torch.add, x, x, out=torch.empty_like(x))
    elif family == "matmul":
        for size in (16, 64, 128, 256, 512, 1024, 2048, *((4096, 8192) if large else ())):
            yield 2.0 * size**3, partial(torch.mm, values(size, size), values(size, size))
    elif family == "attention":
        for length in (16, 64, 128, 256, 512, 1024, *((2048, 4096) if large else ())):
            q, k, v = (values(2, 8, length, 64) for _ in range(3))
            yield 4.0 * 2 * 8 * length**2 * 64, partial(F.scaled_dot_product_attention, q, k, v)
    else:
        for channels in (4, 16, 32, 64, 128, 256, *((512, 1024) if large else ())):
            x, weight = values(8, channels, 16, 16), values(channels, channels, 3, 3)
            yield 2.0 * 8 * 16 * 16 * channels**2 * 9, partial(F.conv2d, x, weight, padding=1)

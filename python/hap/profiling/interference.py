"""How far communication slows computation that overlaps it."""

from __future__ import annotations

import statistics

import torch

from hap.profiling.clock import Work, once, quartile, rounds
from hap.runtime.agree import Control
from hap.runtime.group import Group
from hap.runtime.requests import AllReduce, Steps

# Elements that are reduced, and rows and columns of matrices that are multiplied meanwhile.
SIZES = (2**18, 2**20, 2**22)
WIDTH = 256
# Computation takes so many times as long as the collective, at least, so that all of that could hide.
LONGER = 1.5


def measure(group: Group, control: Control, device: torch.device, *, seconds: float) -> float:
    """The part of a collective's time by which computation meanwhile takes longer, 0 to 1, on all ranks.

    Measured by an all-reduce, matrix products and both at once, in turns, for about so many seconds.
    """
    matrix = torch.ones(WIDTH, WIDTH, device=device)
    works: list[tuple[Work, float]] = []
    for size in SIZES:
        buffer = torch.zeros(size, device=device)

        def communicate(buffer: torch.Tensor = buffer) -> None:
            group.start("an all-reduce", _reduced(buffer)).wait()

        (moving, product) = (once(work, device) for work in (communicate, lambda: matrix @ matrix))
        products = max(control.gather(1 + int(LONGER * moving / product), "timing an all-reduce"))

        def compute(products: int = products) -> None:
            for _ in range(products):
                torch.mm(matrix, matrix)

        def both(buffer: torch.Tensor = buffer, products: int = products) -> None:
            pending = group.start("an all-reduce", _reduced(buffer))
            compute(products)
            pending.wait()

        works.extend((work, once(work, device)) for work in (communicate, compute, both))
    found = list(rounds(works, device, seconds=seconds, ranks=control))
    everybody = control.gather(found, "timing computation beside communication")
    slowest = [[max(times) for times in zip(*ranks, strict=True)] for ranks in zip(*everybody, strict=True)]
    times = [quartile(times) for times in zip(*slowest, strict=True)]
    return slowed(times)


def _reduced(buffer: torch.Tensor) -> Steps:
    """An all-reduce in place."""
    yield AllReduce(buffer)
    return buffer


def slowed(times: list[float]) -> float:
    """The median part, 0 to 1, from the times of a collective, of computation and of both, one after another."""
    parts = [(both - computing) / moving for moving, computing, both in zip(*(iter(times),) * 3, strict=True)]
    return min(1.0, max(0.0, statistics.median(parts)))

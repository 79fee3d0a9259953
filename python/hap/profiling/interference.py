"""How far communication and computation slow each other where they overlap."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from hap.profiling.clock import LEAST, MOST, compute_for, finish, once
from hap.runtime.agree import Control
from hap.runtime.group import Group, wait
from hap.runtime.requests import AllReduce

# Elements that are reduced, and rows and columns of matrices that are multiplied meanwhile, on CPUs and accelerators.
SIZES = (2**18, 2**20, 2**22)
WIDTH = (256, 2048)
# Larger tensors are left out where one takes this part of all the time; one size is measured in any case.
LARGEST = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """An all-reduce alone and beside matrix products, as one rank has seen them.

    Attributes:
        alone: seconds of it.
        beside: seconds of it while products are computed.
        product: seconds of a product.
        slowed: seconds of a product meanwhile.
    """

    alone: float
    beside: float
    product: float
    slowed: float


def measure(
    group: Group, control: Control, device: torch.device, *, seconds: float, busy: float = 0.0
) -> tuple[float, float]:
    """A cluster's ``interference`` (0 to 1) and ``contention`` (seconds), the same on all ranks.

    Measured by all-reduces alone, matrix products alone, and products until an all-reduce has ended, in turns, for
    about so many seconds; all ranks compute for ``busy`` seconds before each all-reduce.
    """
    width = WIDTH[device.type != "cpu"]
    matrix = torch.ones(width, width, device=device)
    buffers: list[torch.Tensor] = []
    for size in SIZES:
        buffer = torch.zeros(size, device=device)
        taken = once(partial(_reduced, group, buffer), device)
        if buffers and max(control.gather(taken, "timing an all-reduce")) > LARGEST * seconds:
            break
        buffers.append(buffer)
    found: list[list[Sample]] = []
    started = time.perf_counter()
    while len(found) < MOST:
        over = len(found) >= LEAST and time.perf_counter() - started > seconds
        if max(control.numbers((over,), "timing computation beside communication"))[0]:
            break
        found.append([_sample(group, control, matrix, buffer, busy) for buffer in buffers])
    everybody = control.gather(found, "comparing computation beside communication")
    return summary([[list(size) for size in zip(*rounds, strict=True)] for rounds in everybody])


def _sample(group: Group, control: Control, matrix: torch.Tensor, buffer: torch.Tensor, busy: float) -> Sample:
    device = matrix.device
    _product(matrix)
    finish(device)
    control.numbers((0,), "waiting for all ranks")
    compute_for(busy, device)
    began = time.perf_counter()
    _reduced(group, buffer)
    finish(device)
    alone = time.perf_counter() - began
    count, began = 0, time.perf_counter()
    while not count or time.perf_counter() - began < alone:
        _product(matrix)
        count += 1
    product = (time.perf_counter() - began) / count
    control.numbers((0,), "waiting for all ranks")
    compute_for(busy, device)
    count, under_way, began = 0, 0.0, time.perf_counter()
    _, works = group.issue(AllReduce(buffer), asynchronous=True)
    while not count or not all(work.is_completed() for work in works):
        under_way = time.perf_counter() - began
        _product(matrix)
        count += 1
    slowed = (time.perf_counter() - began) / count
    wait(works)
    # It has ended during the last product, which must not count as contention.
    return Sample(alone, under_way, product, slowed)


def _reduced(group: Group, buffer: torch.Tensor) -> None:
    wait(group.issue(AllReduce(buffer), asynchronous=True)[1])


def _product(matrix: torch.Tensor) -> None:
    torch.mm(matrix, matrix)
    if matrix.device.type == "cuda":
        # Communication has a stream of its own, which goes on.
        torch.cuda.current_stream(matrix.device).synchronize()


def summary(everybody: Sequence[Sequence[Sequence[Sample]]]) -> tuple[float, float]:
    """Interference and contention from the samples by rank, size and round.

    An all-reduce lasts until the last rank has its end, and the most disturbed rank sets the pace of all: its products
    proceed at the rate 1 - interference. Medians over the sizes of means over the rounds.
    """
    sizes = [*zip(*everybody, strict=True)]
    kept = [
        min(_mean(rounds, "product") / _mean(rounds, "slowed") for rounds in ranks)  # by rank the rate beside
        for ranks in sizes
    ]
    longer = [
        max(_mean(rounds, "beside") for rounds in ranks) - max(_mean(rounds, "alone") for rounds in ranks)
        for ranks in sizes
    ]
    interference, contention = 1.0 - statistics.median(kept), statistics.median(longer)
    return min(1.0, max(0.0, interference)), max(0.0, contention)


def _mean(rounds: Sequence[Sample], name: str) -> float:
    return statistics.fmean(getattr(sample, name) for sample in rounds)

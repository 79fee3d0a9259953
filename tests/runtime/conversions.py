"""Random conversions of random tensors, and what each rank must get: slices of the whole tensor."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import torch

from hap.runtime.along import Along

MOVED = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.bool,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.int16,
    torch.int8,
    torch.complex64,
)
SUMMED = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8)


def random_units(total: int, ranks: int, generator: random.Random) -> tuple[int, ...]:
    """Shares that sum to ``total``; often equal, often zero for some ranks."""
    if total % ranks == 0 and generator.random() < 0.3:
        return (total // ranks,) * ranks
    units = [0] * ranks
    allowed = [rank for rank in range(ranks) if generator.random() < 0.7] or [generator.randrange(ranks)]
    for _ in range(total):
        units[generator.choice(allowed)] += 1
    return tuple(units)


@dataclass
class Case:
    """One conversion: ``inputs`` and ``expected`` by rank, and the keyword arguments by rank."""

    kind: str
    inputs: list[torch.Tensor]
    expected: list[torch.Tensor]
    arguments: list[dict]


def _whole(sizes, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-8, 8, tuple(sizes), generator=generator)
    return values > 0 if dtype == torch.bool else values.to(dtype)


def _shape(sizes, cut):
    """Neighbouring axes flattened into dimensions at the places of ``cut``."""
    bounds = [0, *cut, len(sizes)]
    return tuple(math.prod(sizes[a:b]) for a, b in itertools.pairwise(bounds))


def case(kind: str, ranks: int, seed: int) -> Case:
    g = random.Random(seed)
    sizes = tuple(g.randint(2, 5) for _ in range(g.randint(2, 4)))
    axes = len(sizes)
    cut = sorted(g.sample(range(1, axes), g.randint(0, axes - 1)))
    if g.random() < 0.05:  # a tensor without elements
        sizes, cut = (*sizes, 0), [*cut, axes]
    bounds = [0, *cut, len(sizes)]

    def along_axis(at):
        """The axis ``at`` split at random: its dimension, and what stands around it there."""
        dim = max(i for i, first in enumerate(bounds) if first <= at)
        outer, inner = math.prod(sizes[bounds[dim] : at]), math.prod(sizes[at + 1 : bounds[dim + 1]])
        return Along(dim, ((outer, inner),), random_units(sizes[at], ranks, g))

    i = g.randrange(axes)
    along = along_axis(i)
    dtype = g.choice(SUMMED if kind in ("all_reduce", "reduce_scatter") else MOVED)
    whole = _whole(sizes, dtype, seed)

    def share(tensor, axis, at, rank):
        local = list(sizes)
        local[axis] = at.units[rank]
        return tensor.narrow(axis, at.offset(rank), at.units[rank]).reshape(_shape(local, cut))

    full = whole.reshape(_shape(sizes, cut))
    shares = [share(whole, i, along, rank) for rank in range(ranks)]
    summands = [_whole(sizes, dtype, seed + 1 + rank) for rank in range(ranks)]
    total = sum(summands[1:], summands[0])
    implementation = g.choice(["padded", "grouped", "exchange"])
    if kind == "all_gather":
        common = {"shape": tuple(full.shape), "along": along, "implementation": implementation}
        return Case(kind, shares, [full] * ranks, [common] * ranks)
    if kind == "reduce_scatter":
        expected = [share(total, i, along, rank) for rank in range(ranks)]
        arguments = [{"shape": tuple(e.shape), "along": along, "implementation": implementation} for e in expected]
        return Case(kind, [s.reshape(full.shape) for s in summands], expected, arguments)
    if kind == "all_reduce":
        op = g.choice(["sum", "max"])
        result = total if op == "sum" else torch.stack(summands).amax(0)
        expected = [result.reshape(full.shape)] * ranks
        return Case(kind, [s.reshape(full.shape) for s in summands], expected, [{"op": op}] * ranks)
    if kind == "stack":
        return Case(kind, summands, [torch.stack(summands)] * ranks, [{"ranks": ranks}] * ranks)
    if kind == "shift":
        expected = [shares[rank - 1] for rank in range(ranks)]
        return Case(kind, shares, expected, [{"shape": tuple(e.shape), "ranks": ranks} for e in expected])
    if kind == "all_to_all":
        j = g.choice([j for j in range(axes) if j != i])
        target = along_axis(j)
        expected = [share(whole, j, target, rank) for rank in range(ranks)]
        arguments = [{"shape": tuple(e.shape), "source": along, "target": target} for e in expected]
        return Case(kind, shares, expected, arguments)
    if kind == "re_split":
        target = along_axis(i)
        expected = [share(whole, i, target, rank) for rank in range(ranks)]
        arguments = [{"shape": tuple(e.shape), "source": along, "target": target} for e in expected]
        return Case(kind, shares, expected, arguments)
    if kind == "slice_share":
        arguments = [{"along": along, "rank": rank} for rank in range(ranks)]
        return Case(kind, [full] * ranks, shares, arguments)
    if kind == "pad":
        arguments = [{"shape": tuple(full.shape), "along": along, "rank": rank} for rank in range(ranks)]
        return Case(kind, shares, [full] * ranks, arguments)
    assert kind == "keep_one"
    return Case(kind, [full] * ranks, [full] * ranks, [{"rank": rank} for rank in range(ranks)])


COLLECTIVES = ("all_gather", "reduce_scatter", "all_to_all", "re_split", "all_reduce", "stack", "shift")
LOCAL = ("slice_share", "pad", "keep_one")

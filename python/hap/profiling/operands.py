"""What products and convolutions take for their arithmetic, and what beside it for their operands.

A library copies operands into the order that suits it, and reads them from memory while nothing is multiplied. In
large square matrices and with many channels this hardly shows; of a few rows times a large matrix, or of large images
with few channels, it is most of the time. So both kinds are measured, and what they take is told apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hap.balance.highs import INFINITY, LinearProgram, Solver
from hap.cluster.device import Points
from hap.profiling.fit import rising

# What could be either counts as arithmetic: time beside that is as bad as this part of it in error.
RATHER = 1e-4
# Of what is measured, what remains for either part at least.
LEAST = 1e-3


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix of so many rows times a square one."""

    rows: int
    size: int

    @property
    def flops(self) -> float:
        """Floating-point operations."""
        return 2.0 * self.rows * self.size**2

    @property
    def elements(self) -> float:
        """Elements of operands and result."""
        return float(self.size**2 + 2 * self.rows * self.size)


@dataclass(frozen=True, slots=True)
class Convolution:
    """Square images convolved with windows of 3 x 3, with as many channels before as behind; or its backward."""

    samples: int
    channels: int
    image: int
    backward: bool = False

    @property
    def flops(self) -> float:
        """Floating-point operations."""
        return (4.0 if self.backward else 2.0) * self.samples * (self.channels * self.image) ** 2 * 9

    @property
    def elements(self) -> float:
        """Elements of operands and results."""
        images, weights = self.samples * self.channels * self.image**2, 9 * self.channels**2
        return float(3 * images + 2 * weights if self.backward else 2 * images + weights)


def _convolutions(backward: bool) -> tuple[tuple[Convolution, ...], tuple[Convolution, ...]]:
    many = tuple(Convolution(8, channels, 16, backward) for channels in (4, 16, 32, 64, 128, 256, 512, 1024))
    large = tuple(Convolution(samples, 16, 32, backward) for samples in (1, 4, 16, 64, 256, 1024))
    return many, (Convolution(1, 16, 8, backward), *large)


# By family, from small to large: what is mostly arithmetic, and what takes its time for operands in good part.
SHAPES: Mapping[str, tuple[Sequence[Product | Convolution], Sequence[Product | Convolution]]] = {
    "matmul": (
        tuple(Product(size, size) for size in (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)),
        # As many rows as samples of a batch that is split among several devices.
        tuple(Product(32, size) for size in (16, 64, 256, 1024, 2048, 4096, 8192)),
    ),
    "convolution": _convolutions(backward=False),
    "convolution_backward": _convolutions(backward=True),
}
# The last ones of each are for accelerators.
LARGE = 2
SUFFIX = "_operands"


def shapes(family: str, *, large: bool) -> Sequence[Product | Convolution]:
    """Those of a family, ``matmul`` or ``matmul_operands``, on accelerators or on CPUs; none of other families."""
    both = SHAPES.get(family.removesuffix(SUFFIX))
    if both is None:
        return ()
    found = both[family.endswith(SUFFIX)]
    return found if large else found[:-LARGE]


def told_apart(points: Mapping[str, Points]) -> dict[str, Points]:
    """All points, with those of :data:`SHAPES` told apart by element type.

    Args:
        points: under ``matmul/float32``, say, seconds of its first shapes by FLOP, and under
            ``matmul_operands/float32`` those of the others by bytes of operands and results.

    Returns:
        The same; there stand seconds of arithmetic, and seconds beside that. Both rise, and together they explain what
        was measured with the least sum of relative errors. To start an operator counts as arithmetic: nothing is left
        beside it of the smallest shape.
    """
    found = dict(points)
    for family, (arithmetic_shapes, operand_shapes) in SHAPES.items():
        for name in points:
            kind, _, dtype = name.partition("/")
            other = f"{family}{SUFFIX}/{dtype}"
            if kind != family or other not in points:
                continue
            itemsize = getattr(torch, dtype).itemsize
            size_of = {shape.flops: itemsize * shape.elements for shape in arithmetic_shapes}
            flops_of = {itemsize * shape.elements: shape.flops for shape in operand_shapes}
            measured = [(flops, size_of[flops], seconds) for flops, seconds in points[name]]
            measured += [(flops_of[size], size, seconds) for size, seconds in points[other][1:]]
            found |= dict(zip((name, other), _parts(points[name], points[other], measured), strict=True))
    return found


def _parts(
    arithmetic: Points, operands: Points, measured: Sequence[tuple[float, float, float]]
) -> tuple[Points, Points]:
    """Seconds of arithmetic and of operands at the amounts of these points, from FLOP, bytes and seconds of shapes.

    By a linear program: its columns say by how much the time of an amount is above that of the one before, as part of
    what was measured there; then, by shape, the relative error below and above.
    """
    scales = np.array([seconds for _, seconds in (*arithmetic, *operands)])
    seconds = np.array([whole for *_, whole in measured])
    shares = np.array([[*_steps(arithmetic, flops), *_steps(operands, size)] for flops, size, _ in measured])
    matrix = np.hstack([shares * scales / seconds[:, None], np.eye(len(seconds)), -np.eye(len(seconds))])
    rows, columns = np.nonzero(matrix)
    beside = np.arange(len(scales)) >= len(arithmetic)
    upper = np.full(matrix.shape[1], INFINITY)
    upper[len(arithmetic)] = 0.0
    program = LinearProgram(
        cost=np.concatenate([RATHER * beside, np.ones(2 * len(seconds))]),
        lower=np.zeros(matrix.shape[1]),
        upper=upper,
        row_lower=np.ones(len(seconds)),
        row_upper=np.ones(len(seconds)),
        rows=rows,
        columns=columns,
        values=matrix[rows, columns],
    )
    optimum = Solver().minimise(program)
    assert optimum is not None, "errors make any times feasible"
    steps = np.maximum(optimum[0][: len(scales)], 0.0) * scales
    times = np.concatenate([np.cumsum(steps[~beside]), np.cumsum(steps[beside])])
    least = [
        (amount, max(float(time), LEAST * whole))
        for (amount, whole), time in zip((*arithmetic, *operands), times, strict=True)
    ]
    return rising(least[: len(arithmetic)]), rising(least[len(arithmetic) :])


def _steps(points: Points, amount: float) -> list[float]:
    """How often the time of an amount has each step, from one of these points to the next, as :func:`at` reads them."""
    amounts = [known for known, _ in points]
    steps = [1.0] + [0.0] * (len(amounts) - 1)
    for number, (before, known) in enumerate(itertools.pairwise(amounts), start=1):
        part = (amount - before) / (known - before)
        steps[number] = max(0.0, part if known == amounts[-1] else min(1.0, part))
    return steps


def at(points: Sequence[tuple[float, float]], amount: float) -> float:
    """Seconds of an amount: straight between the points, as long as the first one before it, as steep behind the last.

    So does the cost model read them.
    """
    later = next((number for number, (known, _) in enumerate(points) if amount <= known), len(points) - 1)
    if later == 0:
        return points[0][1]
    (x, y), (following, seconds) = points[later - 1], points[later]
    return y + (seconds - y) * (amount - x) / (following - x)

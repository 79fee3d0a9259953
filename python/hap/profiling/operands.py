"""What products and convolutions take for their arithmetic, and what beside it for their operands.

A library copies operands into the order that suits it, and reads them from memory while nothing is multiplied. In
large square matrices and with many channels this hardly shows; of a few rows times a large matrix, or of large images
with few channels, it is most of the time. So both kinds are measured, and what they take is told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hap.cluster.device import Points
from hap.profiling.fit import rising

# Rounds of telling apart; 30 leave a hundredth of a percent of what could still move, where times are not noise.
ROUNDS = 30
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
        The same; there stand seconds of arithmetic, and seconds beside that, whose sum is what was measured. To start
        an operator counts as arithmetic: nothing is left beside it of the smallest shape.
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
            arithmetic, beside = points[name], points[other]
            for _ in range(ROUNDS):
                work = {size: at(arithmetic, flops_of[size]) for size, _ in points[other]}
                beside = _without(points[other], work | {points[other][0][0]: points[other][0][1]})
                arithmetic = _without(points[name], {flops: at(beside, size_of[flops]) for flops, _ in points[name]})
            found |= {name: arithmetic, other: beside}
    return found


def _without(points: Points, seconds: Mapping[float, float]) -> Points:
    """Points less the seconds of their amounts; they still rise."""
    return rising([(amount, max(whole - seconds[amount], LEAST * whole)) for amount, whole in points])


def at(points: Sequence[tuple[float, float]], amount: float) -> float:
    """Seconds of an amount: straight between the points, as long as the first one before it, as steep behind the last.

    So does the cost model read them.
    """
    later = next((number for number, (known, _) in enumerate(points) if amount <= known), len(points) - 1)
    if later == 0:
        return points[0][1]
    (x, y), (following, seconds) = points[later - 1], points[later]
    return y + (seconds - y) * (amount - x) / (following - x)

"""What products of matrices take for their arithmetic, and what beside it for their operands.

A library copies operands into the order that suits it, and reads them from memory while nothing is multiplied. In large
square matrices this hardly shows; of a few rows times a large matrix it is most of the time. So square products and
thin ones are measured, and what they take is told apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from hap.cluster.device import Points
from hap.profiling.fit import rising

# Rows of the thin matrices: as many as samples of a batch that is split among several devices.
ROWS = 32
# Rounds of telling apart; each makes the rest smaller several times.
ROUNDS = 30
# Of what is measured, what remains for either part at least.
LEAST = 1e-3


def square(size: int) -> float:
    """FLOP of a product of square matrices."""
    return 2.0 * size**3


def square_elements(flops: float) -> float:
    """Elements of the operands and the result of a square product of so many FLOP."""
    return 3.0 * math.pow(flops / 2.0, 2.0 / 3.0)


def thin(size: int) -> float:
    """Elements of the operands and the result of a thin matrix times a square one."""
    return float(size**2 + 2 * ROWS * size)


def thin_flops(elements: float) -> float:
    """FLOP of a thin product whose operands and result have so many elements."""
    return 2.0 * ROWS * (math.sqrt(elements + ROWS**2) - ROWS) ** 2


def told_apart(points: Mapping[str, Points]) -> dict[str, Points]:
    """All points, with those of products told apart by element type.

    Args:
        points: under ``matmul/float32`` seconds of square products by FLOP, and under ``matmul_operands/float32``
            those of thin ones by bytes of operands and results.

    Returns:
        The same; there stand seconds of arithmetic, and seconds beside that, whose sum is what was measured.
    """
    found = dict(points)
    for name, thins in points.items():
        family, _, dtype = name.partition("/")
        if family == "matmul_operands":
            squares, itemsize = points[f"matmul/{dtype}"], getattr(torch, dtype).itemsize
            arithmetic, beside = squares, thins
            for _ in range(ROUNDS):
                work = {size: at(arithmetic, thin_flops(size / itemsize)) for size, _ in thins}
                beside = _without(thins, work)
                arithmetic = _without(
                    squares, {flops: at(beside, itemsize * square_elements(flops)) for flops, _ in squares}
                )
            found |= {f"matmul/{dtype}": arithmetic, name: beside}
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

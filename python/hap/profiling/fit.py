"""Lines through measured times, ``latency + amount / rate``, and times that rise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing

from hap.cluster.device import Points

# Of what should be level, the part by which the larger amount takes longer: times rise, and rates are finite.
LEVEL = 1e-6


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds as a function of an amount (FLOP or bytes): ``latency + amount / rate``.

    Attributes:
        latency: seconds for nothing, at least 0.
        rate: amount per second, above 0.
        error: root mean square of the relative errors of the fit.
    """

    latency: float
    rate: float
    error: float

    def seconds(self, amount: float) -> float:
        """The time of an amount."""
        return self.latency + amount / self.rate


def fit(amounts: Sequence[float], seconds: Sequence[float], *, fastest: float = math.inf) -> Line:
    """The line of least squares of the relative errors, with a latency of at least 0 and a rate in (0, ``fastest``].

    Relative errors, so that small amounts count as much as large ones. Needs two different amounts.
    """
    x, y = np.array(amounts, dtype=float), np.array(seconds, dtype=float)
    assert len(x) == len(y) >= 2
    assert (y > 0.0).all()
    columns = np.stack([1.0 / y, x / y], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(columns, np.ones_like(y), rcond=None)
    if latency < 0.0 or slope <= 0.0:
        # The sum of squares is convex, so the best is on the border: a line through the origin, or all but level.
        steep = float((x / y).sum() / (x * x / (y * y)).sum())
        level = float((1.0 / y).sum() / (1.0 / (y * y)).sum())
        candidates = [(0.0, steep), (level, LEVEL * level / float(x.max()))]
        latency, slope = min(candidates, key=lambda line: _error(line[0], line[1], x, y))
    if slope * fastest < 1.0:
        slope = 1.0 / fastest
        latency = max(0.0, float(((1.0 - slope * x / y) / y).sum() / (1.0 / (y * y)).sum()))
    return Line(float(latency), 1.0 / float(slope), _error(float(latency), float(slope), x, y))


def _error(latency: float, slope: float, x: np.typing.NDArray[np.float64], y: np.typing.NDArray[np.float64]) -> float:
    return float(np.sqrt((((latency + slope * x) / y - 1.0) ** 2).mean()))


def rising(points: Sequence[tuple[float, float]]) -> Points:
    """The points, with times that rise: what takes longer than something larger was disturbed."""
    found = [points[-1]]
    for amount, seconds in reversed(points[:-1]):
        found.append((amount, min(seconds, found[-1][1] * (1.0 - LEVEL))))
    return tuple(reversed(found))

"""Prices for synthesis, and the best lower bound that they give under fixed splits.

A step takes at least as long as any of its *resources* is busy: a device's computation stream, for its computation and
the part ``1 - overlap`` of communication that does not hide behind it, and the communication stream, for all
communication. So any mixture of these loads, with weights that sum to one, bounds every program's step from below, and
it is additive: the synthesiser minimises it exactly. The best mixture is a saddle point, approached by multiplicative
weights: a resource that the cheapest program overloads gets dearer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hap.balance import Simulation
from hap.planning.engine import Prices

# How strongly the first step reacts to unequal loads; later steps react less.
RATE = 4.0


def loads(simulation: Simulation, overlap: float) -> list[float]:
    """Seconds that each device's computation stream is busy, and the communication stream as the last entry."""
    exposed = (1.0 - overlap) * simulation.communication
    return [seconds + exposed for seconds in simulation.compute] + [simulation.communication]


def ascend(prices: Prices, busy: Sequence[float], overlap: float, step: int) -> Prices:
    """The next prices after the cheapest program under ``prices`` kept the resources ``busy`` (see :func:`loads`)."""
    mixture = [prices.theta * weight for weight in prices.weights] + [1.0 - prices.theta]
    if overlap > 0.0 and mixture[-1] == 0.0:
        # A weight of zero would never come back.
        mixture = [0.9 * weight for weight in mixture[:-1]] + [0.1]
    floor = 1e-3 / len(mixture)
    rate = RATE / math.sqrt(step + 1.0)
    top = max(busy)
    raised = [
        max(weight, floor) * math.exp(rate * (load / top - 1.0)) for weight, load in zip(mixture, busy, strict=True)
    ]
    if overlap == 0.0:
        # The communication stream is never busier than a computation stream: no weight for it is best.
        raised[-1] = 0.0
    computation = sum(raised[:-1])
    total = computation + raised[-1]
    return Prices(tuple(weight / computation for weight in raised[:-1]), computation / total)

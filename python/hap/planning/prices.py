"""Prices for synthesis, and the best lower bound that they give under fixed splits.

A step takes at least as long as any of its *resources* is busy: a device's computation stream, for its computation and
the part ``1 - hidden`` of communication that does not hide behind it, and the communication stream, for all
communication. So any mixture of these loads, with weights that sum to one, bounds every program's step from below, and
it is additive: the synthesiser minimises it exactly. The best mixture is a saddle point, approached by multiplicative
weights: a resource that the cheapest program overloads gets dearer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hap.balance import Simulation
from hap.planning.engine import Prices

# How strongly the first step reacts to unequal loads.
RATE = 4.0


def loads(simulation: Simulation, hidden: float) -> list[float]:
    """Seconds that each device's computation stream is busy, and the communication stream as the last entry."""
    exposed = (1.0 - hidden) * simulation.communication
    return [seconds + exposed for seconds in simulation.compute] + [simulation.communication]


def busiest(simulation: Simulation, hidden: float) -> Prices:
    """Prices that count only the busiest resources of a program, all alike."""
    busy = loads(simulation, hidden)
    top = max(busy)
    return _prices([float(load >= 0.99 * top) for load in busy], hidden)


def ascend(prices: Prices, busy: Sequence[float], hidden: float, failures: int) -> Prices:
    """Prices with a better bound than ``prices``, under which the cheapest program keeps the resources ``busy``.

    ``busy`` is what :func:`loads` says of that program; the more steps have failed before, the smaller the next one is.
    """
    mixture = [prices.theta * weight for weight in prices.weights] + [1.0 - prices.theta]
    # A weight of zero would never come back.
    floor = 1e-3 / len(mixture)
    rate = RATE / 2.0**failures
    top = max(busy)
    raised = (
        max(weight, floor) * math.exp(rate * (load / top - 1.0)) for weight, load in zip(mixture, busy, strict=True)
    )
    return _prices(list(raised), hidden)


def _prices(mixture: Sequence[float], hidden: float) -> Prices:
    """The prices that a mixture of the resources stands for."""
    computation = sum(mixture[:-1])
    # Where nothing hides no communication stream is busier than a computation stream: any weight for it would be lost.
    total = computation + (mixture[-1] if hidden > 0.0 else 0.0)
    if computation == 0.0:
        devices = len(mixture) - 1
        return Prices((1.0 / devices,) * devices, 0.0)
    return Prices(tuple(weight / computation for weight in mixture[:-1]), computation / total)

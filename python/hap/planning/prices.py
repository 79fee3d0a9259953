"""Prices for synthesis, and the best lower bound that they give under fixed splits.

A step takes at least as long as any of its *resources* is busy: a device's computation stream, for its computation and
the part ``1 - hidden`` of communication that does not hide behind it, and the communication stream, for all
communication. So any mixture of these loads, with weights that sum to one, bounds every program's step from below, and
it is additive: the synthesiser minimises it exactly. The best mixture is a saddle point. The programs that are known
say where it may be: a small linear program finds the mixture under which the cheapest of them costs most. The
synthesiser answers with a program that is cheaper there, or proves the bound (Kelley's cutting planes).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hap.balance import Simulation
from hap.balance.highs import INFINITY, LinearProgram, Solver
from hap.planning.engine import Prices

# At a saddle point programs cost the same, and to tell which is cheapest takes long: the work of a synthesis, for each
# byte of a program; ten times what others take. Its bound holds as far as it comes.
SADDLE_WORK = 100


def loads(simulation: Simulation, hidden: float) -> list[float]:
    """Seconds that each device's computation stream is busy, and the communication stream as the last entry."""
    exposed = (1.0 - hidden) * simulation.communication
    return [seconds + exposed for seconds in simulation.compute] + [simulation.communication]


def busiest(simulation: Simulation, hidden: float) -> Prices:
    """Prices that count only the busiest resources of a program, all alike."""
    busy = loads(simulation, hidden)
    top = max(busy)
    return _prices([float(load >= 0.99 * top) for load in busy], hidden)


def saddle(known: Sequence[Sequence[float]], hidden: float) -> tuple[Prices, float]:
    """The prices under which the cheapest of some programs costs most, and that cost: no prices bound all by more.

    ``known`` holds what :func:`loads` says of each program under the same splits.
    """
    table = np.array(known)
    programs, resources = table.shape
    largest = table.max() or 1.0
    # Columns: the mixture, and the cost, which all programs have at least.
    rows, columns = np.divmod(np.arange(programs * (resources + 1)), resources + 1)
    values = np.hstack([table / largest, np.full((programs, 1), -1.0)]).ravel()
    upper = np.append(np.ones(resources), INFINITY)
    if hidden == 0.0:
        upper[resources - 1] = 0.0
    optimum = Solver().minimise(
        LinearProgram(
            cost=np.append(np.zeros(resources), -1.0),
            lower=np.zeros(resources + 1),
            upper=upper,
            row_lower=np.append(np.zeros(programs), 1.0),
            row_upper=np.append(np.full(programs, INFINITY), 1.0),
            rows=np.append(rows, np.full(resources, programs)),
            columns=np.append(columns, np.arange(resources)),
            values=np.append(values, np.ones(resources)),
        )
    )
    assert optimum is not None, "any mixture is feasible"
    mixture = np.maximum(optimum[0][:resources], 0.0)
    return _prices((mixture / mixture.sum()).tolist(), hidden), float(optimum[0][resources] * largest)


def _prices(mixture: Sequence[float], hidden: float) -> Prices:
    """The prices that a mixture of the resources stands for."""
    computation = sum(mixture[:-1])
    # Where nothing hides no communication stream is busier than a computation stream: any weight for it would be lost.
    total = computation + (mixture[-1] if hidden > 0.0 else 0.0)
    if computation == 0.0:
        devices = len(mixture) - 1
        return Prices((1.0 / devices,) * devices, 0.0)
    return Prices(tuple(weight / computation for weight in mixture[:-1]), computation / total)

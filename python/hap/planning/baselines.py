"""Well-known strategies as programs of the same space under constraints, costed by the same simulator.

* data parallelism (``ddp``): only the batch is split, parameters are whole everywhere;
* fully sharded data parallelism (``zero3``): the batch is split, parameters are stored in shards and gathered for use;
* tensor parallelism (``tensor``): anything but the batch is split.

``even`` gives all devices the same, ``proportional`` in proportion to their FLOP/s.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from hap.errors import PlanError
from hap.planning.engine import Constraints, Prices
from hap.planning.plan import Obstacle
from hap.planning.problem import Candidate, Problem, candidate, first_prices
from hap.planning.subsets import seconds_of
from hap.program import Splits


@dataclass(frozen=True, slots=True)
class Baseline:
    """A strategy: ``candidate`` is ``None`` where it cannot be expressed; ``seconds`` also where it does not fit."""

    name: str
    candidate: Candidate | None
    seconds: float | None

    @property
    def obstacle(self) -> Obstacle | None:
        """Why there are no seconds; ``None`` where there are."""
        if self.seconds is not None:
            return None
        return "impossible" if self.candidate is None else "memory"


def baselines(problem: Problem) -> list[Baseline]:
    """All of them, under the user's constraints as well."""
    even, proportional = problem.even, problem.proportional
    found = [
        baseline(problem, "ddp_even", data_parallel(problem), even),
        baseline(problem, "ddp_proportional", data_parallel(problem), proportional),
        baseline(problem, "zero3_even", fully_sharded(problem), even),
        baseline(problem, "zero3_proportional", fully_sharded(problem), proportional),
        baseline(problem, "tensor_even", _tensor_parallel(problem), even),
    ]
    return found


def baseline(problem: Problem, name: str, constraints: Constraints | None, splits: Splits) -> Baseline:
    """The best program under these constraints with these splits; ``None`` says that there is no such."""
    if constraints is None:
        return Baseline(name, None, None)
    prices = first_prices(problem, splits)
    try:
        synthesis = problem.engine.synthesise(splits, Prices(prices.weights), constraints)
    except PlanError:
        # The space under these constraints is empty: the strategy does not exist for this model.
        return Baseline(name, None, None)
    found = candidate(problem, synthesis, splits)
    fits = found.simulation.excess(problem.engine.machine.capacity) == 0.0
    return Baseline(name, found, seconds_of(problem, found) if fits else None)


def data_parallel(problem: Problem) -> Constraints | None:
    """Nothing but the batch is split."""
    return _batch_parallel(problem, dict.fromkeys(problem.parameters, ("R",)), only_batch=True)


def fully_sharded(problem: Problem) -> Constraints | None:
    """The batch is split, and parameters are stored in shards."""
    stored = {name: shards(len(axes)) for name, axes in problem.parameters.items() if axes}
    return _batch_parallel(problem, stored, only_batch=False)


def _tensor_parallel(problem: Problem) -> Constraints | None:
    if problem.batch is None or problem.batch == problem.constraints.require_axis:
        return None
    return msgspec.structs.replace(
        problem.constraints, forbidden_axes=(*problem.constraints.forbidden_axes, problem.batch)
    )


def _batch_parallel(problem: Problem, stored: dict[str, tuple[str, ...]], *, only_batch: bool) -> Constraints | None:
    given = problem.constraints
    if problem.batch is None or problem.batch in given.forbidden_axes:
        return None
    if given.require_axis not in (None, problem.batch):
        return None
    for name, allowed in given.placements.items():
        if name in stored:
            stored[name] = tuple(placement for placement in stored[name] if placement in allowed)
            if not stored[name]:
                return None
    return msgspec.structs.replace(
        given,
        require_axis=problem.batch,
        allowed_axes=(problem.batch,) if only_batch else given.allowed_axes,
        placements={**given.placements, **stored},
    )


def shards(axes: int) -> tuple[str, ...]:
    """The sharded placements of a tensor with so many axes."""
    return tuple(f"S{occurrence}" for occurrence in range(axes))

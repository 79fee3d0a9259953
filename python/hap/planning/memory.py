"""Plans for memory that is scarce: parameters stored in shards, the largest first, until the simulated peak fits."""

from __future__ import annotations

from typing import NoReturn

import msgspec

from hap.errors import PlanError
from hap.planning.baselines import shards
from hap.planning.engine import Prices
from hap.planning.problem import Candidate, Problem, balanced, candidate, first_prices
from hap.units import bytes_text, listed


def shard_at_rest(problem: Problem, best: Candidate) -> Candidate:
    """The fastest plan found that fits, or the one that overruns memory least.

    The more parameters are stored in shards, the less memory and the more gathering: bisection finds how many of the
    largest it takes.
    """
    capacity = problem.engine.machine.capacity
    names = list(_shardable(problem))
    too_few, count = 0, len(names)
    while too_few < count:
        # All of them first: if that does not fit, fewer do not.
        found = _with_sharded(problem, names[:count], best)
        if found is not None and found.better_than(best, capacity):
            best = found
        if found is not None and found.simulation.excess(capacity) == 0.0:
            enough = count
        elif count == len(names):
            return best
        else:
            too_few = count
        if enough - too_few <= 1:
            return best
        count = (too_few + enough) // 2
    return best


def _shardable(problem: Problem) -> dict[str, tuple[str, ...]]:
    """Of each parameter that need not be a shard but may, the shards that the constraints leave; the largest first."""
    given = problem.constraints.placements
    found = {
        name: tuple(shard for shard in shards(axes) if name not in given or shard in given[name])
        for name, axes in problem.parameters.items()
    }
    return {name: own for name, own in found.items() if own and own != given.get(name)}


def _with_sharded(problem: Problem, names: list[str], start: Candidate) -> Candidate | None:
    """The best plan from these splits with these parameters stored in shards; ``None`` where there is no program."""
    shardable = _shardable(problem)
    placements = problem.constraints.placements | {name: shardable[name] for name in names}
    constraints = msgspec.structs.replace(problem.constraints, placements=placements)
    weights = start.weights or first_prices(problem, start.splits).weights
    try:
        synthesis = problem.engine.synthesise(start.splits, Prices(weights), constraints)
    except PlanError:
        return None
    return balanced(problem, candidate(problem, synthesis, start.splits))


def report_excess(problem: Problem, best: Candidate) -> NoReturn:
    """Raises ``PlanError``: by how much the best plan exceeds memory, on which device, and what the memory holds."""
    capacity = problem.engine.machine.capacity
    memory = best.simulation.memory
    device = max(range(len(memory)), key=lambda rank: (memory[rank] / capacity[rank], -rank))
    name = problem.engine.cluster.devices[device].name
    text = (
        f"no plan fits memory: the one that comes nearest needs {bytes_text(memory[device])} on device {device} "
        f"({name}), {bytes_text(memory[device] - capacity[device])} more than its {bytes_text(capacity[device])}"
    )
    if best.simulation.memory_parts:
        parts = msgspec.structs.asdict(best.simulation.memory_parts[device])
        text += f"; it holds {', '.join(f'{bytes_text(size)} of {part}' for part, size in parts.items())}"
    if problem.pins:
        text += f". The plan is bound by {listed(map(str, problem.pins))}"
    raise PlanError(f"{text}. Use more or larger devices, or a smaller batch")

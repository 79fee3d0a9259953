"""Devices that cost more than they give: those without a share in a program, and those that a job had better not have.

Every device of a job runs the whole program. One without a share still computes what is whole on every device, and
takes part in every collective; only a job that is started without it is rid of that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from hap.balance import largest_remainder
from hap.cluster import Cluster
from hap.planning.engine import NoProgramError, parse_program
from hap.planning.problem import Candidate, Problem, balanced, candidate, first_prices
from hap.program import Program, Splits

# Kinds of devices, or hosts, that are left away together, the slowest first; at most so many.
MOST = 4
# What a smaller job gains must be worth starting it.
WORTH_A_RESTART = 0.01
# Smaller jobs that are looked at more closely.
PROMISING = 2


class Without(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job without these devices takes at most so many seconds per step."""

    devices: tuple[int, ...]
    seconds: float


def split_axes(program: Program) -> list[str]:
    """The axes that the program splits something along, in order of first use."""
    axes = (getattr(instruction, "axis", None) for instruction in program.instructions)
    return list(dict.fromkeys(axis for axis in axes if axis is not None))


def left_out(program: Program, splits: Splits) -> tuple[int, ...]:
    """The devices with no share of any axis that the program splits something along; nobody where there is none."""
    shares = [sum(units) for units in zip(*(splits[axis] for axis in split_axes(program)), strict=True)]
    return tuple(rank for rank, share in enumerate(shares) if share == 0)


def with_all(candidates: Sequence[Candidate], capacity: Sequence[float]) -> float | None:
    """Seconds of the fastest of these in which every device has a share, if any of those fits."""
    fitting = sorted(
        (found for found in candidates if found.simulation.excess(capacity) == 0.0),
        key=lambda found: found.simulation.seconds,
    )
    seconds = (it.simulation.seconds for it in fitting if not left_out(parse_program(it.program), it.splits))
    return next(seconds, None)


def faster_without(problem: Problem, best: Candidate, others: Sequence[Candidate]) -> Without | None:
    """Devices without which a job would be faster, and how fast at most; ``None`` where no such are found.

    Smaller jobs are tried with the best program and the fastest of ``others``, under shares like theirs and in
    proportion to speed; for the most promising ones one more program is made, and the better one is balanced.
    """
    if problem.fixed:
        # The job runs already.
        return None
    fastest = min(others, key=lambda found: found.simulation.seconds, default=best)
    limit = best.simulation.seconds * (1.0 - WORTH_A_RESTART)
    ranks = range(len(problem.engine.machine))
    smaller = {
        removed: replace(problem, engine=problem.engine.on(problem.engine.cluster.without(removed)))
        for removed in _removals(problem, best)
    }
    jobs: list[tuple[float, tuple[int, ...], Candidate]] = []
    for program in dict.fromkeys((best.program, fastest.program)):
        for removed, job in smaller.items():
            kept = [rank for rank in ranks if rank not in removed]
            for splits in (_restricted(best.splits, kept), job.proportional):
                made = Candidate(program, splits, job.engine.simulate(program, splits))
                if made.simulation.seconds < limit and _fits(job, made):
                    jobs.append((made.simulation.seconds, removed, made))
    jobs.sort(key=lambda job: job[:2])
    promising: dict[tuple[int, ...], Candidate] = {}
    for _, removed, made in jobs:
        promising.setdefault(removed, made)
    found = [Without(removed, _improved(smaller[removed], made)) for removed, made in [*promising.items()][:PROMISING]]
    return min(found, key=lambda job: job.seconds, default=None)


def _fits(problem: Problem, found: Candidate) -> bool:
    return found.simulation.excess(problem.engine.machine.capacity) == 0.0


def _improved(problem: Problem, known: Candidate) -> float:
    """Seconds of a candidate that fits, or less."""
    splits = problem.proportional
    with contextlib.suppress(NoProgramError):
        synthesis = problem.engine.synthesise(splits, first_prices(problem, splits), problem.constraints)
        made = candidate(problem, synthesis, splits)
        known = made if made.better_than(known, problem.engine.machine.capacity) else known
    return balanced(problem, known).simulation.seconds


def _removals(problem: Problem, best: Candidate) -> Iterator[tuple[int, ...]]:
    """Ranks to leave away: those left out, the slowest kinds, the slowest hosts, all but the fastest device."""
    machine = problem.engine.machine
    ranks = range(len(machine))
    kinds = sorted({(machine.speeds[rank], -machine.kinds[rank]) for rank in ranks})
    hosts = sorted(_hosts(problem.engine.cluster), key=lambda host: sum(machine.speeds[rank] for rank in host))
    slowest = kinds[:MOST]
    found = [left_out(parse_program(best.program), best.splits)]
    found += [
        tuple(rank for rank in ranks if (machine.speeds[rank], -machine.kinds[rank]) in slowest[:count])
        for count in range(1, len(slowest) + 1)
    ]
    found += [tuple(sorted(sum(hosts[:count], ()))) for count in range(1, min(MOST, len(hosts)) + 1)]
    fastest = max(ranks, key=lambda rank: (machine.speeds[rank], -rank))
    found.append(tuple(rank for rank in ranks if rank != fastest))
    return (removed for removed in dict.fromkeys(found) if 0 < len(removed) < len(machine))


def _hosts(cluster: Cluster) -> list[tuple[int, ...]]:
    """Ranks of the members of the outermost link."""
    found, first = [], 0
    for member in cluster.members:
        count = len(member.devices) if isinstance(member, Cluster) else 1
        found.append(tuple(range(first, first + count)))
        first += count
    return found


def _restricted(splits: Splits, kept: Sequence[int]) -> Splits:
    """The splits among some of the devices, in the same proportion; even where these have nothing."""

    def among(units: tuple[int, ...]) -> list[int]:
        shares = [units[rank] for rank in kept]
        total = sum(shares)
        even = [1.0 / len(kept)] * len(kept)
        return largest_remainder([share / total for share in shares] if total else even, sum(units))

    # Many axes are split alike.
    found = {units: among(units) for units in {tuple(units) for units in splits.values()}}
    return {axis: list(found[tuple(units)]) for axis, units in splits.items()}

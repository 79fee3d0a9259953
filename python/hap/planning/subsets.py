"""Devices that cost more than they give: sets of devices that a plan had better leave out.

Every active device runs the whole program: without a share it still computes what is whole on every device, and takes
part in every collective. A device that is left out stays in the job, idle, without parameters; what it hears of is the
loss. That message is counted as part of the step, with the latency of the slowest link, although it goes out while the
backward runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from hap.balance import largest_remainder
from hap.cluster import Cluster
from hap.planning.engine import NoProgramError, parse_program
from hap.planning.problem import Candidate, Problem, balanced, candidate, first_prices, split_axes
from hap.program import Splits

# Kinds of devices, or hosts, that are left out together, the slowest first; at most so many.
MOST = 4
# Leaving devices out must gain this fraction: for other inputs they might be of use, but stay idle.
WORTH_LEAVING = 0.01
# Programs that take less memory than the best one.
FITTING = 8
# Sets of devices that are looked at more closely.
PROMISING = 2
# The smaller the programs are, as text, the more sets are searched: so many bytes, within these bounds.
SEARCHED, SEARCHES = 4e4, (1, 4)
# Where several are, also those on which known programs take up to this fraction longer: their own may be faster.
NEAR = 0.05
# Of so few devices, any number of the fastest is a set; of more, powers of two.
FEW = 8


def news(cluster: Cluster) -> float:
    """Seconds that a step takes longer because some of these devices are idle, and to hear of its loss."""
    return max(link.latency for link in cluster.links)


def seconds_of(problem: Problem, found: Candidate) -> float:
    """Seconds per step, until all devices of the job have the loss."""
    return found.simulation.seconds + (news(problem.job) if problem.left_out else 0.0)


def fewer(
    problem: Problem, best: Candidate, others: Sequence[Candidate], fitting: Sequence[Candidate] = ()
) -> list[tuple[Problem, Candidate]]:
    """Problems of fewer devices with a program that is faster there, or maybe leads to one; the fastest first.

    Programs for all devices are tried with fewer: the best one, and the fastest of ``others``, under shares like those
    of the best one and in proportion to speed; and the first of ``fitting``, which may take less memory than the best,
    under shares like those of it. Where devices are joined by another link than all together, as those of a host
    are, all of ``others`` are tried. For the most promising sets of devices one more program is made.
    """
    if problem.settled:
        return []
    least, most = SEARCHES
    count = min(most, max(least, int(SEARCHED / len(best.program))))
    fastest = min(others, key=lambda found: found.simulation.seconds, default=best)
    limit = seconds_of(problem, best) * (1.0 - WORTH_LEAVING if count == 1 else 1.0 + NEAR)
    found: list[tuple[float, tuple[int, ...], Candidate]] = []
    every = dict.fromkeys([fastest.program, *(each.program for each in others)])
    outermost = problem.engine.cluster.links[:1]
    problems = dict[tuple[int, ...], Problem]()
    for kept, smaller, alike in _different(problem, best):
        problems[kept], proportional = smaller, smaller.proportional
        within = len(kept) > 1 and smaller.engine.cluster.links[:1] != outermost
        for program, splits in (
            (best.program, alike),
            (best.program, proportional),
            *((program, proportional) for program in (every if within else [fastest.program])),
            *((each.program, alike) for each in fitting[:FITTING]),
        ):
            made = Candidate(program, splits, smaller.engine.simulate(program, splits))
            seconds = seconds_of(smaller, made)
            if seconds < limit and made.simulation.excess(smaller.engine.machine.capacity) == 0.0:
                found.append((seconds, kept, made))
    fastest_of: dict[tuple[int, ...], Candidate] = {}
    for _, kept, made in sorted(found, key=lambda one: one[:2]):
        fastest_of.setdefault(kept, made)
    closer = [*fastest_of.items()][: max(PROMISING, count)]
    tried = [(problems[kept], _improved(problems[kept], made)) for kept, made in closer]
    return sorted(tried, key=lambda one: one[1].simulation.seconds)[:count]


def _different(problem: Problem, best: Candidate) -> list[tuple[tuple[int, ...], Problem, Splits]]:
    """Devices to keep, the problem for them, and shares like those of the best program.

    Of sets of equal devices that have equal shares the first.
    """
    found: dict[tuple[str, str], tuple[tuple[int, ...], Problem, Splits]] = {}
    for kept in sorted({*device_sets(problem, best)}):
        smaller = problem.among(kept)
        alike = restricted(smaller, best.splits, kept)
        found.setdefault((smaller.engine.cluster_json, repr((smaller.fixed, alike))), (kept, smaller, alike))
    return [*found.values()]


def roomier(problem: Problem) -> list[tuple[int, ...]]:
    """Devices to keep where not all have the memory to take part: those with more than the least, the two least, ..."""
    if problem.settled:
        return []
    capacity = problem.engine.machine.capacity
    larger = (tuple(rank for rank, size in enumerate(capacity) if size > least) for least in sorted({*capacity})[:-1])
    return [kept for kept in larger if _needed(problem) <= {*kept}]


def _needed(problem: Problem) -> set[int]:
    """Devices that something is stored on already."""
    return {rank for units in problem.fixed.values() for rank, count in enumerate(units) if count}


def _improved(problem: Problem, known: Candidate) -> Candidate:
    """A candidate that fits, or a faster one."""
    made = cheapest(problem)
    if made is not None and made.better_than(known, problem.engine.machine.capacity):
        known = made
    return balanced(problem, known)


def cheapest(problem: Problem) -> Candidate | None:
    """The cheapest program under shares in proportion to speed; ``None`` where limits end its search."""
    splits = problem.proportional
    with contextlib.suppress(NoProgramError):
        return candidate(
            problem, problem.engine.synthesise(splits, first_prices(problem, splits), problem.constraints), splits
        )
    return None


def device_sets(problem: Problem, best: Candidate) -> Iterator[tuple[int, ...]]:
    """Devices to keep: with a share; all but slow kinds, hosts, little memory; a fast host; some of the fastest."""
    machine, cluster = problem.engine.machine, problem.engine.cluster
    ranks = range(len(machine))
    needed = _needed(problem)
    axes = split_axes(parse_program(best.program))
    kinds = sorted({(machine.speeds[rank], -machine.kinds[rank]) for rank in ranks})
    hosts = sorted(_hosts(cluster), key=lambda host: sum(machine.speeds[rank] for rank in host))
    order = sorted(ranks, key=lambda rank: (-machine.speeds[rank], rank))
    found = [{rank for rank in ranks if any(best.splits[axis][rank] for axis in axes)}]
    for count in range(1, MOST + 1):
        found.append({rank for rank in ranks if (machine.speeds[rank], -machine.kinds[rank]) in kinds[count:]})
        found.append(set[int]().union(*hosts[count:]))
    found += [set(kept) for kept in roomier(problem)[:MOST]]
    found += [set(host) for host in hosts[-MOST:]]
    counts = ranks if len(ranks) <= FEW else [2**power for power in range(len(ranks).bit_length())]
    found += [set(order[:count]) for count in counts]
    return (tuple(sorted(kept)) for kept in found if needed <= kept and 0 < len(kept) < len(ranks))


def _hosts(cluster: Cluster) -> list[tuple[int, ...]]:
    """Ranks of the members of the outermost link."""
    found, first = [], 0
    for member in cluster.members:
        count = len(member.devices) if isinstance(member, Cluster) else 1
        found.append(tuple(range(first, first + count)))
        first += count
    return found


def restricted(problem: Problem, splits: Splits, kept: Sequence[int]) -> Splits:
    """The splits among the devices of a problem, in the same proportion; even where these have nothing."""

    def among(units: tuple[int, ...]) -> list[int]:
        shares = [units[rank] for rank in kept]
        total = sum(shares)
        even = [1.0 / len(kept)] * len(kept)
        return largest_remainder([share / total for share in shares] if total else even, sum(units))

    # Many axes are split alike.
    found = {units: among(units) for units in {tuple(units) for units in splits.values()}}
    return {axis: list(problem.fixed.get(axis, found[tuple(units)])) for axis, units in splits.items()}

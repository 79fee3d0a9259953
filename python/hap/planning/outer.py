"""The search for a plan: synthesis and balance alternate from several starts; the best pair ever seen is kept."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hap.errors import PlanError
from hap.planning.alternation import alternate
from hap.planning.baselines import Baseline, baselines
from hap.planning.engine import MemoryPrices, NoProgramError
from hap.planning.memory import ScarceMemoryError, fit, raise_bound, report_excess
from hap.planning.pins import Pin, conflict
from hap.planning.prices import SADDLE_WORK, loads, saddle
from hap.planning.problem import TOLERANCE, Candidate, Problem, balanced, candidate, first_prices
from hap.planning.progress import Progress
from hap.planning.promising import promising
from hap.planning.segments import with_segments
from hap.planning.storage import with_storage
from hap.planning.subsets import WORTH_LEAVING, fewer, roomier, seconds_of
from hap.program import Splits

_log = logging.getLogger("hap")

# Programs that are looked at on fewer devices where memory is scarce.
FASTEST = 2
# All devices are not searched where even without regard to memory they are slower by this fraction than a plan for
# fewer: more split classes would gain less.
SURELY_SLOWER = 0.1
# Syntheses under the final splits that raise the lower bound, at most.
BOUND_STEPS = 8
# Fewer are done where no prices can raise it by more than this fraction.
WORTH_A_STEP = 1e-4


@dataclass(frozen=True, slots=True)
class Found:
    """What the search found.

    Attributes:
        problem: what is solved: the one that was given, with further split classes and for fewer devices where these
            help.
        best: the best program and splits.
        tried: the programs of the search without regard to memory.
        memory: its prices where it is scarce.
        baselines: the well-known strategies, on all devices of the problem that was given.
        unsegmented: the best program and splits where each axis has one split class.
        others: slower ones that fit, the fastest first, where memory is scarce.
        with_all: seconds per step of a plan for all devices where some are left out, else ``None``; also where none is
            known that fits.
        bound: the best lower bound under the splits of the best program; 0.0 until it was raised.
    """

    problem: Problem
    best: Candidate
    tried: list[Candidate]
    memory: MemoryPrices | None
    baselines: list[Baseline]
    unsegmented: Candidate
    others: list[Candidate]
    with_all: float | None = None
    bound: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds per step, until all devices have the loss."""
        return seconds_of(self.problem, self.best)


def search(problem: Problem, progress: Progress) -> Found:
    """The best plan that the starts lead to, never slower than a baseline that fits.

    Raises:
        PlanError: no program satisfies the constraints, or none fits the devices' memory.
    """
    problem.engine.watch.observer = None if progress.callback is None else progress.observe
    try:
        unlimited = _without_memory(problem, progress, [])
        fewest, found, with_all = _first(problem, unlimited, progress)
        while (step := _with_fewer(fewest, found, progress)) is not None:
            fewest, found = step
    except NoProgramError as error:
        reasons = conflict(problem.pins, lambda pins: _possible(problem, pins)) if problem.pins else []
        if not reasons:
            raise
        raise PlanError(f"{error}. These conflict: {', '.join(map(str, reasons))}. Leave one of them out") from error
    # The bound may find a better program yet of the devices that were chosen; by ``with_all`` they were chosen.
    found = _bounded(found, progress)
    return replace(found, baselines=unlimited.baselines, with_all=None if fewest is problem else with_all)


@dataclass(frozen=True, slots=True)
class _Unlimited:
    """What was found without regard to memory.

    Attributes:
        baselines: the well-known strategies.
        strategies: programs that were there already, those of the baselines among them.
        tried: balanced programs, the fastest first.
    """

    baselines: list[Baseline]
    strategies: list[Candidate]
    tried: list[Candidate]


def _first(problem: Problem, unlimited: _Unlimited, progress: Progress) -> tuple[Problem, Found, float | None]:
    """The problem and its plan, and seconds per step with all devices.

    Where memory is scarce, a plan that fits takes long to find. So sets of fewer devices that promise much come first:
    where a step on them takes much less than on all without regard to memory, all are not searched, and the seconds are
    those of a program that fits them. Where none fits, or was found, plans for the devices with the most memory follow,
    and the seconds are ``None``.
    """
    capacity, fastest = problem.engine.machine.capacity, unlimited.tried[0]
    if fastest.simulation.excess(capacity) == 0.0:
        found = _completed(problem, unlimited, progress)
        return problem, found, found.seconds
    best: tuple[Problem, Found] | None = None
    progress.update("fewer devices")
    strategy = min(unlimited.strategies, key=lambda each: each.simulation.seconds, default=fastest)
    seconds = min(seconds_of(problem, each) for each in (fastest, strategy))
    promises, whole = promising(problem, [*unlimited.tried[:FASTEST], strategy], seconds)
    for promise in promises:
        if best is None or promise.fitting < best[1].seconds * (1.0 - WORTH_LEAVING):
            fast, fits = promise.known
            best = _faster(best, (promise.problem, _search(promise.problem, progress, [fast], [fits])))
    if best is not None and seconds * (1.0 - SURELY_SLOWER) > best[1].seconds:
        return *best, None if whole is None else whole.fitting
    try:
        found = _completed(problem, unlimited, progress, [] if whole is None else whole.known)
    except ScarceMemoryError:
        for kept in roomier(problem):
            progress.update("fewer devices")
            with contextlib.suppress(ScarceMemoryError):
                smaller = problem.among(kept)
                best = _faster(best, (smaller, _search(smaller, progress, [])))
                break
        if best is None:
            raise
        return *best, None
    return *_faster((problem, found), best), found.seconds


def _faster(one: tuple[Problem, Found] | None, other: tuple[Problem, Found] | None) -> tuple[Problem, Found]:
    """The other where it is worth leaving devices out for."""
    if one is None or other is None:
        only = one or other
        assert only is not None
        return only
    return other if other[1].seconds <= one[1].seconds * (1.0 - WORTH_LEAVING) else one


def _with_fewer(problem: Problem, found: Found, progress: Progress) -> tuple[Problem, Found] | None:
    """A problem of fewer devices with a faster plan; ``None`` where there is no such."""
    progress.update("fewer devices")
    strategies = [baseline.candidate for baseline in found.baselines if baseline.candidate is not None]
    sets = fewer(problem, found.unsegmented, strategies, found.others)
    searched = [(smaller, _search(smaller, progress, [known])) for smaller, known in sets]
    step = _faster((problem, found), min(searched, key=lambda one: one[1].seconds, default=None))
    return step if step[0] is not problem else None


def _possible(problem: Problem, pins: Sequence[Pin]) -> bool:
    """Whether any program keeps to these pins and to the other constraints."""
    splits = problem.proportional
    try:
        problem.engine.synthesise(splits, first_prices(problem, splits), problem.constrain(pins))
    except NoProgramError:
        return False
    return True


def _search(problem: Problem, progress: Progress, others: Sequence[Candidate], last: Sequence[Candidate] = ()) -> Found:
    """As :func:`search` with the problem's devices, from other programs too; errors of the core as they are.

    The last ones are for where nothing faster is found: the search does not start from them.
    """
    return _completed(problem, _without_memory(problem, progress, others), progress, last)


def _without_memory(problem: Problem, progress: Progress, others: Sequence[Candidate]) -> _Unlimited:
    progress.update("baselines")
    known = baselines(problem)
    strategies = [*(baseline.candidate for baseline in known if baseline.candidate is not None), *others]
    return _Unlimited(known, strategies, alternate(problem, _starts(problem), strategies, progress))


def _completed(problem: Problem, unlimited: _Unlimited, progress: Progress, last: Sequence[Candidate] = ()) -> Found:
    """A plan that fits, with further split classes where these help; from the last ones where nothing faster is found.

    Raises:
        ScarceMemoryError: none was found that fits the devices' memory.
    """
    capacity, tried = problem.engine.machine.capacity, unlimited.tried
    best, memory, fitting = tried[0], None, list[Candidate]()
    if best.simulation.excess(capacity) > 0.0:
        progress.update("memory")
        best, memory, fitting = fit(
            problem, [*tried, *unlimited.strategies], [problem.split(capacity), *_starts(problem)[1:]]
        )
    for strategy in (*unlimited.strategies, *last):
        if strategy.better_than(best, capacity):
            _log.info("a program that was there already beats the search so far; balancing it")
            best = balanced(problem, strategy)
    progress.update("split classes")
    given, unsegmented = problem, best
    if memory is not None:
        problem, best = with_storage(problem, best, tried[0], memory)
    if best.simulation.excess(capacity) > 0.0:
        report_excess(problem, best)
    problem, best = with_segments(problem, best, tried if problem is given else [], memory)
    return Found(problem, best, tried, memory, unlimited.baselines, unsegmented, fitting)


def _bounded(found: Found, progress: Progress) -> Found:
    """With the best bound, and any better program that is found on the way; warns where limits cut searches short."""
    progress.update("lower bound")
    best, bound = _raise_bound(found.problem, found.best, found.tried, found.memory)
    gap = found.problem.engine.watch.search_gap
    if gap >= 1.0:
        _log.warning("limits left a search for a program without any: there may be a better plan; raise limits")
    elif gap > 0.0:
        _log.warning(
            "limits cut the search for programs short: their priced cost is up to %.2f%% above the least, "
            "and there may be a better plan; raise limits",
            100.0 * gap / (1.0 - gap),
        )
    return replace(found, best=best, bound=bound)


def _starts(problem: Problem) -> list[Splits]:
    """In proportion to speed, even, without the slowest kind of device, the fastest alone, and by memory's bandwidth.

    Shares in proportion to memory are tried where it is scarce.
    """
    speeds = problem.engine.machine.speeds
    weights = [
        list(speeds),
        [1.0] * len(speeds),
        [speed * (speed > min(speeds)) for speed in speeds],
        [speed * (speed == max(speeds)) for speed in speeds],
        [device.memory_bandwidth for device in problem.engine.cluster.devices],
    ]
    starts = [problem.split(one) for one in weights if any(one)]
    return [splits for number, splits in enumerate(starts) if splits not in starts[:number]]


def _raise_bound(
    problem: Problem, best: Candidate, known: Sequence[Candidate], memory: MemoryPrices | None
) -> tuple[Candidate, float]:
    """Syntheses under the final splits with several prices: the best bound, and any better program that they give.

    Programs that are known say which prices to try. Where memory was scarce, there are prices of memory as well.

    Only bounds under the splits of the returned program count, so the splits stay as they are here.
    """
    engine = problem.engine
    capacity, hidden = engine.machine.capacity, engine.cluster.hidden
    splits = best.splits
    programs = dict.fromkeys([best.program, *(found.program for found in known)])
    busy = [loads(engine.simulate(program, splits), hidden) for program in programs]
    prices, _ = saddle(busy, hidden)
    anchor, bound = prices, 0.0
    for _ in range(BOUND_STEPS):
        try:
            synthesis = engine.synthesise(splits, prices, problem.constraints, SADDLE_WORK * len(best.program))
        except NoProgramError:
            break
        found = candidate(problem, synthesis, splits)
        if found.better_than(best, capacity):
            best = replace(found, rounding_loss=best.rounding_loss, weights=best.weights)
        if synthesis.bound > bound:
            anchor, bound = prices, synthesis.bound
        elif synthesis.search_gap > 0.0:
            break
        load = loads(found.simulation, hidden)
        # A program that was known says nothing new: the prices would be the same again.
        if load in busy:
            break
        busy.append(load)
        prices, most = saddle(busy, hidden)
        if min(most, best.simulation.seconds) <= bound * (1.0 + WORTH_A_STEP):
            break
    if memory is not None and best.simulation.seconds > bound * (1.0 + TOLERANCE):
        best, bound = raise_bound(problem, best, bound, anchor, memory)
    assert bound <= best.simulation.seconds * (1.0 + 1e-6), "the bound must be below the simulated time"
    return best, bound

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
from hap.planning.prices import loads, saddle
from hap.planning.problem import TOLERANCE, Candidate, Problem, balanced, candidate, first_prices
from hap.planning.progress import Progress
from hap.planning.segments import with_segments
from hap.planning.storage import with_storage
from hap.planning.subsets import WORTH_LEAVING, fewer, roomier, seconds_of
from hap.program import Splits

_log = logging.getLogger("hap")

# Syntheses under the final splits that raise the lower bound, at most.
BOUND_STEPS = 8
# Fewer are done where no prices can raise it by more than this fraction.
WORTH_A_STEP = 1e-4
# At a saddle point programs cost the same, and to tell which is cheapest takes long: the work of a synthesis, for each
# byte of a program; ten times what others take. Its bound holds as far as it comes.
BOUND_WORK = 100
# Further split classes are tried for the plans that would be the best if these gained this fraction.
CLASSES_GAIN = 0.2


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
        undivided: the problem without further split classes.
        unsegmented: the best program and splits where each axis has one split class.
        others: slower ones that fit, the fastest first, where memory is scarce.
        with_all: seconds per step of the plan for all devices where some are left out, else ``None``.
        divided: whether further split classes were tried.
        bound: the best lower bound under the splits of the best program; 0.0 until it was raised.
    """

    problem: Problem
    best: Candidate
    tried: list[Candidate]
    memory: MemoryPrices | None
    baselines: list[Baseline]
    undivided: Problem
    unsegmented: Candidate
    others: list[Candidate]
    with_all: float | None = None
    divided: bool = False
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
    try:
        # Plans for fewer and fewer devices, each faster than the one before.
        found = [_with_room(problem, progress)]
        while (step := _with_fewer(found[-1], progress)) is not None:
            found.append(step)
        progress.update("split classes")
        first, best = _chosen(found)
    except NoProgramError as error:
        reasons = conflict(problem.pins, lambda pins: _possible(problem, pins)) if problem.pins else []
        if not reasons:
            raise
        raise PlanError(f"{error}. These conflict: {', '.join(map(str, reasons))}. Leave one of them out") from error
    # The bound may find a better program yet of the devices that were chosen; by ``with_all`` they were chosen.
    bounded = _bounded(best, progress)
    if first.undivided is not problem:
        return replace(bounded, baselines=baselines(problem))
    return replace(bounded, baselines=first.baselines, with_all=None if best is first else first.seconds)


def _with_room(problem: Problem, progress: Progress) -> Found:
    """The plan; where none fits the devices' memory, one for the devices with the most of it."""
    try:
        return _search(problem, progress, [])
    except ScarceMemoryError:
        for kept in roomier(problem):
            progress.update("fewer devices")
            with contextlib.suppress(ScarceMemoryError):
                return _search(problem.among(kept), progress, [])
        raise


def _with_fewer(found: Found, progress: Progress) -> Found | None:
    """A faster plan for fewer devices; ``None`` where there is no such."""
    progress.update("fewer devices")
    strategies = [baseline.candidate for baseline in found.baselines if baseline.candidate is not None]
    promising = fewer(found.undivided, found.unsegmented, strategies, found.others)
    if promising is None:
        return None
    smaller, known = promising
    again = _search(smaller, progress, [known])
    return again if _worth_leaving(found, again) else None


def _worth_leaving(larger: Found, smaller: Found) -> bool:
    """Whether the plan for fewer devices is so much faster that it is worth leaving some out."""
    return smaller.seconds <= larger.seconds * (1.0 - WORTH_LEAVING)


def _chosen(found: Sequence[Found]) -> tuple[Found, Found]:
    """The first plan, and the best one with further split classes: the last one, or one before that is near it."""
    first, best = found[0], _divided(found[-1])
    for larger in found[-2::-1]:
        if larger.seconds * (1.0 - CLASSES_GAIN) <= best.seconds:
            divided = _divided(larger)
            first = divided if larger is first else first
            best = best if _worth_leaving(divided, best) else divided
    best.problem.engine.search_gap = max(each.problem.engine.search_gap for each in found)
    return (best if len(found) == 1 else first), best


def _possible(problem: Problem, pins: Sequence[Pin]) -> bool:
    """Whether any program keeps to these pins and to the other constraints."""
    splits = problem.proportional
    try:
        problem.engine.synthesise(splits, first_prices(problem, splits), problem.constrain(pins))
    except NoProgramError:
        return False
    return True


def _search(problem: Problem, progress: Progress, others: Sequence[Candidate]) -> Found:
    """As :func:`search` with the problem's devices, from other programs too; errors of the core as they are."""
    problem.engine.observer = None if progress.callback is None else progress.observe
    capacity = problem.engine.machine.capacity
    progress.update("baselines")
    known = baselines(problem)
    strategies = [*(baseline.candidate for baseline in known if baseline.candidate is not None), *others]
    starts = _starts(problem)
    tried = alternate(problem, starts, strategies, progress)
    best, memory, fitting = tried[0], None, list[Candidate]()
    if best.simulation.excess(capacity) > 0.0:
        progress.update("memory")
        best, memory, fitting = fit(problem, [*tried, *strategies], [problem.split(capacity), *starts[1:]])
    for strategy in strategies:
        if strategy.better_than(best, capacity):
            _log.info("a program that was there already beats the search so far; balancing it")
            best = balanced(problem, strategy)
    found = Found(problem, best, tried, memory, known, problem, best, fitting)
    return _divided(found) if best.simulation.excess(capacity) > 0.0 else found


def _divided(found: Found) -> Found:
    """The same with further split classes of axes, where these help.

    Raises:
        ScarceMemoryError: the plan overruns memory with these, too.
    """
    if found.divided:
        return found
    problem, best = found.problem, found.best
    if found.memory is not None:
        problem, best = with_storage(problem, best, found.tried[0], found.memory)
    if best.simulation.excess(problem.engine.machine.capacity) > 0.0:
        report_excess(problem, best)
    problem, best = with_segments(problem, best, found.tried if problem is found.problem else [], found.memory)
    return replace(found, problem=problem, best=best, divided=True)


def _bounded(found: Found, progress: Progress) -> Found:
    """With the best bound, and any better program that is found on the way; warns where limits cut searches short."""
    progress.update("lower bound")
    best, bound = _raise_bound(found.problem, found.best, found.tried, found.memory)
    gap = found.problem.engine.search_gap
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
            synthesis = engine.synthesise(splits, prices, problem.constraints, BOUND_WORK * len(best.program))
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

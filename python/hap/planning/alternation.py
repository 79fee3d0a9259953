"""Synthesis and balance alternate: many programs are synthesised, which is cheap, and the most promising are balanced.

Programs are synthesised under several splits, each with several prices, and wait. The best one from each start is
balanced first, then the fastest that waits, unless it is far from the best; under the splits that balance finds,
further programs are synthesised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hap.balance import Machine
from hap.planning.engine import CutShortError, Prices
from hap.planning.prices import SADDLE_WORK, loads, saddle
from hap.planning.problem import Candidate, Problem, balanced, candidate, first_prices, least_seconds
from hap.planning.progress import Progress
from hap.program import Splits

# The smaller the programs are, as text, the more are synthesised and balanced: so many bytes, within these bounds.
SYNTHESISED, SYNTHESES = 8e6, (16, 60)
BALANCED, BALANCES = 2e6, (4, 12)
# Of these balances in turn without any gain, this part ends the search.
FRUITLESS = 0.2
# Balance takes many linear programs: what takes so many times as long as the best by one of them is left out.
HOPELESS = 1.2
# A program must gain this fraction.
WORTH_A_ROUND = 1e-3
# Weights of the devices under the splits of a start; those in proportion to speed find nothing there.
PRICES = 2
# Of weights, that tell them apart.
DIGITS = 9
# Syntheses at saddle points.
SADDLES = 4
# Bytes of a device whose memory does not count.
ROOMY = 2.0**60


def alternate(
    problem: Problem, starts: Sequence[Splits], known: Iterable[Candidate], progress: Progress
) -> list[Candidate]:
    """Balanced programs, the fastest first, as if memory had no limit; at least one.

    Args:
        problem: the problem.
        starts: splits to synthesise the first programs under.
        known: programs that are there already.
        progress: hears of the starts.

    Raises:
        NoProgramError: no program satisfies the constraints, or limits cut all searches for one short.
    """
    pool = _Pool(problem)
    prices = [_weights(problem, first_prices(problem, start).weights) for start in starts]
    firsts: dict[int, Candidate] = {}
    for turn in range(PRICES):
        for number, start in enumerate(starts):
            if turn == 0:
                progress.update(f"start {number + 1} of {len(starts)}")
            for made in pool.synthesise(start, prices[number][turn]):
                if made.better_than(firsts.get(number), pool.roomy.capacity):
                    firsts[number] = made
    # Last, so that of equals a cheapest program wins.
    for found in known:
        pool.add(found)
    if not pool.waiting:
        raise pool.errors[0]
    progress.update("splits")
    most = pool.most(BALANCED, BALANCES)
    queue, fruitless, best = list(firsts.values()), 0, float("inf")
    while pool.waiting and len(pool.balanced) < most and fruitless < FRUITLESS * most:
        queue = [made for made in queue if made.program in pool.waiting]
        opening = bool(queue)
        made = queue.pop(0) if opening else pool.fastest(pool.waiting)
        if not opening and least_seconds(problem, made, pool.roomy.capacity) > HOPELESS * best:
            del pool.waiting[made.program]
            fruitless += 1
            continue
        found = pool.balance(made.program)
        seconds = found.simulation.seconds
        fruitless = 0 if queue or seconds < best * (1.0 - WORTH_A_ROUND) else fruitless + 1
        best = min(best, seconds)
        assert found.weights is not None
        for weights in _weights(problem, found.weights):
            pool.synthesise(found.splits, weights)
    _with_saddle_prices(pool)
    first = pool.fastest(pool.balanced)
    others = sorted(pool.balanced.values(), key=lambda found: found.simulation.seconds)
    return [first, *(found for found in others if found is not first)]


def _with_saddle_prices(pool: _Pool) -> None:
    """Balances a program that is cheapest at prices at which those that are known cost the same, if it is faster."""
    problem, best = pool.problem, pool.fastest(pool.balanced)
    engine, hidden = problem.engine, problem.engine.cluster.hidden
    busy = [loads(engine.simulate(program, best.splits), hidden) for program in pool.balanced]
    for _ in range(SADDLES):
        prices, _ = saddle(busy, hidden)
        try:
            work = SADDLE_WORK * len(best.program)
            synthesis = engine.synthesise(best.splits, prices, problem.constraints, work)
        except CutShortError:
            return
        made = candidate(problem, synthesis, best.splits)
        if made.better_than(best, pool.roomy.capacity):
            pool.add(made)
            if made.program in pool.waiting:
                pool.balance(made.program)
            return
        busy.append(loads(made.simulation, hidden))
        least = best.simulation.seconds * (1.0 - WORTH_A_ROUND)
        if synthesis.bound > least or busy[-1] in busy[:-1]:
            return


@dataclass(slots=True)
class _Pool:
    """Programs by their text: those that wait, with the splits that they were fastest under, and those balanced."""

    problem: Problem
    waiting: dict[str, Candidate] = field(default_factory=dict)
    balanced: dict[str, Candidate] = field(default_factory=dict)
    errors: list[CutShortError] = field(default_factory=list)
    # What was synthesised: weights that differ by rounding are the same.
    seen: set[tuple[str, tuple[float, ...], float]] = field(default_factory=set)

    @property
    def roomy(self) -> Machine:
        """The devices, with more memory than any program takes."""
        machine = self.problem.engine.machine
        return replace(machine, capacity=(ROOMY,) * len(machine))

    def fastest(self, programs: Mapping[str, Candidate]) -> Candidate:
        """The fastest of at least one, the first of equals."""
        best: Candidate | None = None
        for found in programs.values():
            best = found if found.better_than(best, self.roomy.capacity) else best
        assert best is not None, "there is one"
        return best

    def most(self, size: float, bounds: tuple[int, int]) -> int:
        """How many programs have this size together, within bounds."""
        least, most = bounds
        return min(most, max(least, int(size / max(map(len, self.waiting or self.balanced), default=1))))

    def add(self, found: Candidate) -> None:
        """Lets a program wait that is new, or was not seen under splits that are as good."""
        known = self.waiting.get(found.program) or self.balanced.get(found.program)
        if found.better_than(known, self.roomy.capacity):
            self.waiting[found.program] = found

    def synthesise(self, splits: Splits, weights: tuple[float, ...]) -> list[Candidate]:
        """Adds programs under these splits and prices of the devices, while there may be more."""
        made = list[Candidate]()
        for theta in thetas(self.problem):
            what = (repr(splits), tuple(round(weight, DIGITS) for weight in weights), theta)
            if what in self.seen or len(self.seen) >= self.most(SYNTHESISED, SYNTHESES):
                continue
            self.seen.add(what)
            try:
                synthesis = self.problem.engine.synthesise(splits, Prices(weights, theta), self.problem.constraints)
            except CutShortError as error:
                # Others may still lead to a program.
                self.errors.append(error)
            else:
                made.append(candidate(self.problem, synthesis, splits))
                self.add(made[-1])
        return made

    def balance(self, program: str) -> Candidate:
        """A waiting program with its best splits."""
        found = balanced(self.problem, self.waiting.pop(program), self.roomy)
        self.balanced[program] = found
        return found


def _weights(problem: Problem, weights: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    """Weights of the devices: these, equal ones, and in proportion to speed, as where work is shared well."""
    speeds = problem.engine.machine.speeds
    total = sum(speeds)
    return weights, (1.0 / len(speeds),) * len(speeds), tuple(speed / total for speed in speeds)


def thetas(problem: Problem) -> tuple[float, ...]:
    """Where nothing hides the whole of the computation and the whole of the communication count: 1 is best."""
    return (1.0,) if problem.engine.cluster.hidden == 0.0 else (1.0, 0.5)

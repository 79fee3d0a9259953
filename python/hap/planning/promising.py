"""Fewer devices to look at first, where memory is too scarce for the fastest program on all of them.

A plan that fits takes long to find, while what a step takes without regard to memory is known at once: where that is
much more than a plan for fewer devices takes, no plan for all is searched. What fits a set of devices is told by
programs that hold little memory, made for all devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hap.planning.memory import lean
from hap.planning.problem import Candidate, Problem
from hap.planning.subsets import WORTH_LEAVING, cheapest, device_sets, restricted, seconds_of

# Devices come first that promise to gain this fraction without regard to memory.
MUCH = 0.2
# Sets of devices that a program is made for, with the most to gain in either way.
CLOSER = 2


@dataclass(frozen=True, slots=True)
class Promise:
    """What some of the devices promise, where memory is scarce.

    Attributes:
        problem: the problem for them.
        fastest: seconds per step of the fastest program that is known, without regard to memory.
        fitting: the same of the fastest that fits.
        known: both.
    """

    problem: Problem
    fastest: float
    fitting: float
    known: tuple[Candidate, Candidate]


def promising(problem: Problem, programs: Sequence[Candidate], seconds: float) -> tuple[list[Promise], Promise | None]:
    """Fewer devices, on which some program fits, for a plan that may be faster than any for all; and what all promise.

    First those that promise the most without regard to memory, if much; then those whose program that fits is the
    fastest, which are of use where it is faster than what was found for the first ones. ``None`` where nothing that is
    known fits all devices.

    Args:
        problem: the problem.
        programs: the fastest ones without regard to memory, balanced; at least one.
        seconds: what a step of the fastest of them takes.
    """
    fewer = [] if problem.settled else [*dict.fromkeys(device_sets(problem, programs[0]))]
    if not fewer:
        return [], None
    little = lean(problem, programs[0])
    whole = _promise(problem, range(len(problem.devices)), programs, little)
    made = (_promise(problem, kept, programs, little) for kept in fewer)
    # Of those that promise the same the smallest.
    distinct: dict[tuple[float, float], Promise] = {}
    for promise in sorted(filter(None, made), key=lambda promise: len(promise.problem.devices)):
        distinct.setdefault((promise.fastest, promise.fitting), promise)
    found = [*distinct.values()]
    if not found:
        return [], whole
    most = [promise.problem.devices for key in (_fastest, _fitting) for promise in sorted(found, key=key)[:CLOSER]]
    found = [_with_own(promise) for promise in found if promise.problem.devices in most]
    first, second = min(found, key=_fastest), min(found, key=_fitting)
    if first.fastest < seconds * (1.0 - MUCH):
        return ([first] if second is first else [first, second]), whole
    return ([second] if second.fitting < seconds * (1.0 - WORTH_LEAVING) else []), whole


def _fastest(promise: Promise) -> float:
    return promise.fastest


def _fitting(promise: Promise) -> float:
    return promise.fitting


def _promise(
    problem: Problem, kept: Sequence[int], programs: Sequence[Candidate], little: Sequence[str]
) -> Promise | None:
    """What some devices promise; ``None`` where no program fits."""
    smaller = problem.among(kept)
    engine, capacity = smaller.engine, smaller.engine.machine.capacity
    alike = restricted(smaller, programs[0].splits, kept)
    pairs = [(program.program, splits) for program in programs for splits in (alike, smaller.proportional)]
    pairs += [(program, splits) for program in little for splits in (alike, smaller.split(capacity))]
    return _best(smaller, [Candidate(text, splits, engine.simulate(text, splits)) for text, splits in pairs])


def _best(problem: Problem, made: Sequence[Candidate]) -> Promise | None:
    """The promise of the fastest of these candidates, and the fastest that fits; ``None`` where none does."""
    capacity = problem.engine.machine.capacity
    made = sorted(made, key=lambda each: each.simulation.seconds)
    fits = next((each for each in made if each.simulation.excess(capacity) == 0.0), None)
    if fits is None:
        return None
    return Promise(problem, seconds_of(problem, made[0]), seconds_of(problem, fits), (made[0], fits))


def _with_own(promise: Promise) -> Promise:
    """The promise with a program that is made for its devices."""
    own = cheapest(promise.problem)
    again = None if own is None else _best(promise.problem, [*promise.known, own])
    return again or promise

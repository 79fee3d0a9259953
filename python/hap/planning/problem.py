"""What the search for a plan works on: an engine, the axes, the user's constraints; and what it compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from hap.balance import DoesNotFitError, Machine, Simulation, Stages, balance, fractions, largest_remainder
from hap.balance.linear_program import solve
from hap.cluster import Cluster
from hap.planning.engine import Constraints, Engine, Prices, Synthesis, parse_program
from hap.planning.pins import Pin
from hap.program import Compute, Convert, Program, SplitClass, Splits
from hap.rules import BATCH

# A step counts as faster when it gains this fraction.
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One planning problem.

    Attributes:
        engine: the graph on the cluster.
        sizes: units of each axis.
        parameters: the axes of each parameter, by the name of its tensor: it can be stored as ``S0``, ``S1``, ...
        constraints: what every program must satisfy.
        pins: those of them that name tensors, as the user wrote them.
        constrain: the constraints with other pins.
        fixed: splits of axes that must stay, because parameters are already split so.
        batch: name of the axis of the samples; ``None`` where the model has none.
        origins: by name of a tensor, the user's name of a parameter or an input, or the source line that makes it.
        classes: further split classes of axes, by name; :attr:`sizes` holds them, too.
        divided: the problem with these split classes of axes beside its own; ``None`` where each axis is to have one.
        job: all devices of the job.
        devices: the ranks there of the devices that the problem is for.
        settled: whether these must stay, because something is stored there already.
    """

    engine: Engine
    sizes: Mapping[str, int]
    parameters: Mapping[str, tuple[str, ...]]
    constraints: Constraints
    constrain: Callable[[Sequence[Pin]], Constraints]
    pins: tuple[Pin, ...] = ()
    fixed: Mapping[str, list[int]] = field(default_factory=dict)
    batch: str | None = BATCH
    origins: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, SplitClass] = field(default_factory=dict)
    divided: Callable[[Mapping[str, SplitClass]], Problem] | None = None
    job: Cluster
    devices: tuple[int, ...]
    settled: bool = False

    def among(self, kept: Sequence[int]) -> Problem:
        """The problem for some of its devices, ascending; the others have nothing of what is fixed."""
        if len(kept) == len(self.devices):
            return self
        removed = set(range(len(self.devices))) - set(kept)
        divided = self.divided
        return replace(
            self,
            engine=self.engine.on(self.engine.cluster.without(removed)),
            fixed={axis: [units[place] for place in kept] for axis, units in self.fixed.items()},
            divided=None if divided is None else lambda classes: divided(classes).among(kept),
            devices=tuple(self.devices[place] for place in kept),
        )

    @property
    def left_out(self) -> tuple[int, ...]:
        """Ranks of the job's other devices."""
        return tuple(rank for rank in range(len(self.job.devices)) if rank not in self.devices)

    def split(self, weights: Sequence[float]) -> Splits:
        """Every axis split in proportion to ``weights``, fixed ones as they are."""
        total = sum(weights)
        shares = [weight / total for weight in weights]
        # Many axes have one size.
        units = {size: largest_remainder(shares, size) for size in {*self.sizes.values()}}
        return {axis: list(self.fixed.get(axis, units[size])) for axis, size in self.sizes.items()}

    @property
    def even(self) -> Splits:
        """Every axis split evenly."""
        return self.split([1.0] * len(self.engine.machine))

    @property
    def proportional(self) -> Splits:
        """Every axis split in proportion to the devices' speeds."""
        return self.split(self.engine.machine.speeds)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program with splits, simulated.

    Attributes:
        program: as JSON.
        splits: units of each axis by device.
        simulation: one step.
        rounding_loss: of the balance that made the splits; ``None`` where none did.
        weights: the prices that balance suggests for these splits.
    """

    program: str
    splits: Splits
    simulation: Simulation
    rounding_loss: float | None = None
    weights: tuple[float, ...] | None = None

    def better_than(self, other: Candidate | None, capacity: Sequence[float]) -> bool:
        """Whether it overruns memory less, or, overrunning it as little, is faster."""
        if other is None:
            return True
        excess, limit = self.simulation.excess(capacity), other.simulation.excess(capacity)
        if abs(excess - limit) > 1e-9:
            return excess < limit
        return self.simulation.seconds < other.simulation.seconds * (1.0 - TOLERANCE)


def candidate(problem: Problem, synthesis: Synthesis, splits: Splits) -> Candidate:
    """A synthesised program, simulated under the splits that it was made for."""
    simulation = problem.engine.simulate(synthesis.program, splits)
    return Candidate(synthesis.program, splits, simulation)


def balanced(
    problem: Problem, made: Candidate, machine: Machine | None = None, rival: Candidate | None = None
) -> Candidate:
    """The program with its best splits, by default under the memory that there is.

    Axes that do not matter to it stay as they are. With a rival that fits, all do where the program's real shares take
    as long as it, or overrun memory by much.
    """
    engine = problem.engine
    machine = machine or engine.machine
    evaluator = engine.evaluator(made.program)
    stages = evaluator.stages(fractions(made.splits))
    matter = {*stages.axes, *split_axes(parse_program(made.program))}
    others = {axis: units for axis, units in made.splits.items() if axis not in matter}
    enough = None
    if rival is not None and rival.simulation.excess(machine.capacity) == 0.0:
        enough = rival.simulation.seconds / _hiding(made, stages)
    ratios = balance(evaluator, problem.sizes, machine, made.splits, {**others, **problem.fixed}, enough)
    if ratios is None:
        return made
    return replace(
        made,
        splits=ratios.splits,
        simulation=ratios.simulation,
        rounding_loss=ratios.rounding_loss,
        weights=ratios.weights,
    )


def may_beat(problem: Problem, made: Candidate, rival: Candidate) -> bool:
    """Whether balance is likely to make a program better than a rival: not where one linear program says otherwise."""
    capacity = problem.engine.machine.capacity
    if rival.simulation.excess(capacity) > 0.0:
        return True
    return least_seconds(problem, made, capacity) < rival.simulation.seconds * (1.0 - TOLERANCE)


def least_seconds(problem: Problem, made: Candidate, capacity: Sequence[float]) -> float:
    """What one linear program says that a program takes at its best shares; infinite where it fits under none.

    Times and memory are mostly convex in the shares, and a convex function lies above its tangents. Not where a device
    is left out, which spares it launches and messages: such a program may be faster.
    """
    shares = fractions(made.splits)
    stages = problem.engine.stages(made.program, shares)
    try:
        return _hiding(made, stages) * solve(stages, shares, capacity).seconds
    except DoesNotFitError:
        return inf


def _hiding(made: Candidate, stages: Stages) -> float:
    """The part of its stages' time that a program takes, whose communication hides behind computation."""
    seconds = stages.seconds(fractions(made.splits))
    return made.simulation.seconds / seconds if seconds > 0.0 else 1.0


def split_axes(program: Program) -> list[str]:
    """The axes and classes that a program splits something along, in order of first use."""
    axes = (getattr(instruction, "axis", None) for instruction in program.instructions)
    return list(dict.fromkeys(axis for axis in axes if axis is not None))


def computed_axes(program: str) -> set[str]:
    """The axes and classes that the operators of a program share their work along."""
    instructions = parse_program(program).instructions
    return {each.axis for each in instructions if isinstance(each, Compute) and each.axis is not None}


def moved_axes(program: str) -> set[str]:
    """The axes and classes that the collectives of a program gather, scatter or leave."""
    instructions = (each for each in parse_program(program).instructions if isinstance(each, Convert))
    return {each.axis for each in instructions if each.implementation is not None and each.axis is not None}


def first_prices(problem: Problem, splits: Splits) -> Prices:
    """Prices before any linear program: equal ones for the devices that are busy longest under these splits."""
    machine = problem.engine.machine
    loads = [0.0] * len(machine)
    for units in splits.values():
        total = sum(units)
        for device, count in enumerate(units):
            loads[device] += count / total / machine.speeds[device]
    longest = max(loads)
    busy = [load >= 0.9 * longest for load in loads]
    count = sum(busy)
    return Prices(tuple(slow / count for slow in busy))

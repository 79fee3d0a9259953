"""A program's instructions resolved against its graph, in two parts: before and behind the loss.

The joint program is cut at the tangents. The forward part holds what losses, outputs and new buffers need; all else
that a gradient needs runs in the backward part, also where it does not depend on a tangent (a weight gathered for the
backward alone). Whatever crosses is saved. Both parts are the same on every rank, so that all meet in every
collective.

What is freed before anything depends on a tangent does not cross: where the backward needs it again, it makes it again,
from what was saved; and what reads it before it is freed runs in the forward part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hap.errors import LoweringError
from hap.graph import Graph
from hap.program import Compute, Convert, Free, InputInstruction, OutputInstruction, Placements, Program

if TYPE_CHECKING:
    from hap.rules import AxisGraph, Choice


class Property(NamedTuple):
    """A tensor of the graph, by index, in a placement; ``generation`` counts how often it was freed before."""

    tensor: int
    placements: Placements
    generation: int = 0


_FORWARD_OUTPUTS = ("loss", "output", "buffer")


@dataclass(frozen=True, slots=True)
class Given:
    """An input of the graph in the placement in which it is there; ``input`` is an index into ``Graph.inputs``."""

    input: int
    gains: Property


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator under a choice; ``operator`` is an index into ``Graph.operators``."""

    operator: int
    choice: Choice
    needs: tuple[Property, ...]
    gains: tuple[Property, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A conversion; ``keeps`` tells whether it keeps memory for what it sends until it has ended.

    Sums are made in a copy, and inputs are there all the time.
    """

    instruction: Convert
    needs: Property
    gains: Property
    keeps: bool


Step: TypeAlias = Apply | Change


@dataclass(frozen=True, slots=True)
class Asked:
    """An output of the graph and the property that it is read from; ``output`` is an index into ``Graph.outputs``."""

    output: int
    needs: Property


@dataclass(frozen=True, slots=True)
class Schedule:
    """A program in two parts.

    Attributes:
        inputs: all inputs but the tangents.
        forward: steps of the forward part.
        outputs: losses, outputs and new buffers.
        saved: properties of the forward part that the backward part needs.
        tangents: the tangents.
        backward: steps of the backward part; empty where there is nothing to differentiate.
        gradients: gradients of parameters and inputs.
    """

    inputs: tuple[Given, ...]
    forward: tuple[Step, ...]
    outputs: tuple[Asked, ...]
    saved: tuple[Property, ...]
    tangents: tuple[Given, ...]
    backward: tuple[Step, ...]
    gradients: tuple[Asked, ...]


def arrange(axes: AxisGraph, program: Program) -> Schedule:
    """Resolve the names of a program against its graph and cut it at the tangents.

    Raises:
        LoweringError: an instruction names what the graph does not have, or needs a property that is not there.
    """
    names = _Names(axes)
    inputs: list[Given] = []
    steps: list[Step] = []
    asked: list[Asked] = []
    there = _There(axes.graph)
    freed: dict[Property, int] = {}
    for position, instruction in enumerate(program.instructions):
        where = f"instruction {position} of the program"
        match instruction:
            case InputInstruction():
                index = names.input(instruction.tensor, where)
                inputs.append(Given(index, there.gain(axes.graph.inputs[index].tensor, instruction.placement)))
                there.stored.add(inputs[-1].gains)
            case OutputInstruction():
                prop = there.need(names.tensor(instruction.tensor, where), instruction.placement, where)
                asked.append(Asked(names.output(instruction, where), prop))
            case Free():
                freed[there.free(names.tensor(instruction.tensor, where), instruction.placement, where)] = len(steps)
            case _:
                steps.append(names.step(instruction, there, where))
    return _cut(axes.graph, inputs, steps, asked, freed)


def needs_of(step: Step) -> tuple[Property, ...]:
    """The properties that a step reads."""
    return step.needs if isinstance(step, Apply) else (step.needs,)


def gains_of(step: Step) -> tuple[Property, ...]:
    """The properties that a step yields."""
    return step.gains if isinstance(step, Apply) else (step.gains,)


class _There:
    """The properties that are there at a point of a program."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.held: set[Property] = set()
        self.stored: set[Property] = set()
        self.generations: Counter[tuple[int, Placements]] = Counter()

    def current(self, tensor: int, placements: Placements) -> Property:
        return Property(tensor, placements, self.generations[tensor, placements])

    def gain(self, tensor: int, placements: Placements) -> Property:
        prop = self.current(tensor, placements)
        self.held.add(prop)
        return prop

    def need(self, tensor: int, placements: Placements, where: str) -> Property:
        prop = self.current(tensor, placements)
        if prop not in self.held:
            name, placement = self.graph.tensors[tensor].name, ", ".join(placements)
            missing = "was freed before it" if prop.generation else "nothing before it yields"
            raise LoweringError(f'{where} needs "{name}" in placement {placement}, which {missing}')
        return prop

    def free(self, tensor: int, placements: Placements, where: str) -> Property:
        prop = self.need(tensor, placements, where)
        self.generations[tensor, placements] += 1
        return prop


class _Names:
    """Looks up what a program names."""

    def __init__(self, axes: AxisGraph) -> None:
        graph = axes.graph
        self.axes = axes
        self.tensors = {tensor.name: index for index, tensor in enumerate(graph.tensors)}
        self.operators = {operator.name: index for index, operator in enumerate(graph.operators)}
        self.inputs = {entry.tensor: index for index, entry in enumerate(graph.inputs)}
        self.outputs = {
            (entry.name, entry.tensor): index for index, entry in enumerate(graph.outputs) if entry.tensor is not None
        }

    def tensor(self, name: str, where: str) -> int:
        if name not in self.tensors:
            raise LoweringError(f'{where} names the tensor "{name}", which the graph does not have')
        return self.tensors[name]

    def input(self, name: str, where: str) -> int:
        tensor = self.tensor(name, where)
        if tensor not in self.inputs:
            raise LoweringError(f'{where} takes "{name}" for an input of the graph, which it is not')
        return self.inputs[tensor]

    def output(self, instruction: OutputInstruction, where: str) -> int:
        key = (instruction.name, self.tensor(instruction.tensor, where))
        if key not in self.outputs:
            raise LoweringError(f'{where} names the output "{key[0]}" of "{instruction.tensor}", which the graph lacks')
        return self.outputs[key]

    def step(self, instruction: Compute | Convert, there: _There, where: str) -> Step:
        if isinstance(instruction, Convert):
            tensor = self.tensor(instruction.tensor, where)
            source = there.need(tensor, instruction.source, where)
            keeps = instruction.implementation not in (None, "builtin") and source not in there.stored
            return Change(instruction, source, there.gain(tensor, instruction.target), keeps)
        if instruction.operator not in self.operators:
            raise LoweringError(f'{where} names the operator "{instruction.operator}", which the graph does not have')
        operator = self.operators[instruction.operator]
        needs = tuple(there.need(self.tensor(name, where), lies, where) for name, lies in instruction.inputs)
        gains = tuple(there.gain(self.tensor(name, where), lies) for name, lies in instruction.outputs)
        return Apply(operator, self.choice(operator, instruction, where), needs, gains)

    def choice(self, operator: int, instruction: Compute, where: str) -> Choice:
        inputs = tuple(placements for _, placements in instruction.inputs)
        outputs = tuple(placements for _, placements in instruction.outputs)
        for choice in self.axes.choices[operator]:
            axis = None if choice.axis is None else self.axes.axes[choice.axis].name
            found = (axis, choice.composite, texts(choice.inputs), texts(choice.outputs))
            if found == (instruction.axis, instruction.composite, inputs, outputs):
                return choice
        raise LoweringError(
            f'{where} applies "{instruction.operator}" ({instruction.target}) as {inputs} -> {outputs} along '
            f"{instruction.axis} (composite: {instruction.composite}), which is none of its choices"
        )


def texts(placements: tuple[tuple[object, ...], ...]) -> tuple[Placements, ...]:
    """Placements of several tensors as programs write them."""
    return tuple(tuple(str(placement) for placement in levels) for levels in placements)


def _cut(
    graph: Graph, inputs: list[Given], steps: list[Step], asked: list[Asked], freed: dict[Property, int]
) -> Schedule:
    """Cut at the tangents; ``freed`` tells for what is freed how many steps stand before that."""
    forward_asked = [one for one in asked if graph.outputs[one.output].kind in _FORWARD_OUTPUTS]
    backward_asked = [one for one in asked if graph.outputs[one.output].kind not in _FORWARD_OUTPUTS]
    tangents = [given for given in inputs if graph.inputs[given.input].kind == "tangent"]
    before = [given for given in inputs if graph.inputs[given.input].kind != "tangent"]

    backward = ancestors(steps, [one.needs for one in backward_asked])
    wanted = [one.needs for one in forward_asked]
    turn = _turn(steps, {given.gains for given in tangents})
    gone = {prop for prop, position in freed.items() if position <= turn}
    for step, needed in zip(steps[:turn], backward[:turn], strict=True):
        if needed and not gone.isdisjoint(needs_of(step)):
            wanted.extend(gains_of(step))
    forward = ancestors(steps, wanted)
    forward_steps = [step for step, needed in zip(steps, forward, strict=True) if needed]
    backward_steps = [
        step for step, first, needed in zip(steps, forward, backward, strict=True) if needed and not first
    ]

    there = {given.gains for given in before}
    for step in forward_steps:
        assert all(prop in there for prop in needs_of(step)), "a loss or an output depends on a tangent"
        there.update(gains_of(step))
    made = {given.gains for given in tangents}
    crossing: dict[Property, None] = {}  # keeps the order
    for step in backward_steps:
        crossing.update(dict.fromkeys(prop for prop in needs_of(step) if prop not in made))
        made.update(gains_of(step))
    crossing.update(dict.fromkeys(one.needs for one in backward_asked if one.needs not in made))
    return Schedule(
        tuple(before),
        tuple(forward_steps),
        tuple(sorted(forward_asked, key=lambda one: one.output)),
        tuple(crossing),
        tuple(tangents),
        tuple(backward_steps),
        tuple(sorted(backward_asked, key=lambda one: one.output)),
    )


def _turn(steps: list[Step], tangents: set[Property]) -> int:
    """Index of the first step that reads a tangent; their number where none does."""
    reading = (index for index, step in enumerate(steps) if not tangents.isdisjoint(needs_of(step)))
    return next(reading, len(steps))


def ancestors(steps: Sequence[Step], wanted: Iterable[Property]) -> list[bool]:
    """Which steps the wanted properties need; where two steps yield one property, the first is taken."""
    first: dict[Property, int] = {}
    for index, step in enumerate(steps):
        for prop in gains_of(step):
            first.setdefault(prop, index)
    needed = [False] * len(steps)
    pending = [first[prop] for prop in wanted if prop in first]
    while pending:
        index = pending.pop()
        if not needed[index]:
            needed[index] = True
            pending.extend(first[prop] for prop in needs_of(steps[index]) if prop in first)
    return needed

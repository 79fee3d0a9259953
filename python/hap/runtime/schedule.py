"""A program's instructions resolved against its graph, in two parts: before and behind the loss.

The joint program is cut at the tangents. The forward part holds what losses, outputs and new buffers need; all else
that a gradient needs runs in the backward part, also where it does not depend on a tangent (a weight gathered for the
backward alone). Whatever crosses is saved. Both parts are the same on every rank, so that all meet in every
collective.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from hap.errors import LoweringError
from hap.graph import Graph
from hap.program import Compute, Convert, InputInstruction, Instruction, OutputInstruction, Placements, Program

if TYPE_CHECKING:
    from hap.rules import AxisGraph, Choice

Property: TypeAlias = tuple[int, Placements]
"""A tensor of the graph, by index, in a placement."""

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
    """A conversion."""

    instruction: Convert
    needs: Property
    gains: Property


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
    graph = axes.graph
    names = _Names(axes)
    inputs: list[Given] = []
    steps: list[Step] = []
    asked: list[Asked] = []
    held: set[Property] = set()
    for position, instruction in enumerate(program.instructions):
        where = f"instruction {position} of the program"
        match instruction:
            case InputInstruction():
                given = Given(
                    names.input(instruction.tensor, where),
                    (names.tensor(instruction.tensor, where), instruction.placement),
                )
                inputs.append(given)
                held.add(given.gains)
            case OutputInstruction():
                prop = (names.tensor(instruction.tensor, where), instruction.placement)
                _require(graph, prop, held, where)
                asked.append(Asked(names.output(instruction, where), prop))
            case _:
                step = names.step(instruction, where)
                for prop in needs_of(step):
                    _require(graph, prop, held, where)
                held.update(gains_of(step))
                steps.append(step)
    return _cut(graph, inputs, steps, asked)


def needs_of(step: Step) -> tuple[Property, ...]:
    """The properties that a step reads."""
    return step.needs if isinstance(step, Apply) else (step.needs,)


def gains_of(step: Step) -> tuple[Property, ...]:
    """The properties that a step yields."""
    return step.gains if isinstance(step, Apply) else (step.gains,)


def _require(graph: Graph, prop: Property, held: set[Property], where: str) -> None:
    if prop not in held:
        name, placement = graph.tensors[prop[0]].name, ", ".join(prop[1])
        raise LoweringError(f'{where} needs "{name}" in placement {placement}, which nothing before it yields')


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

    def step(self, instruction: Instruction, where: str) -> Step:
        if isinstance(instruction, Convert):
            tensor = self.tensor(instruction.tensor, where)
            return Change(instruction, (tensor, instruction.source), (tensor, instruction.target))
        assert isinstance(instruction, Compute)
        if instruction.operator not in self.operators:
            raise LoweringError(f'{where} names the operator "{instruction.operator}", which the graph does not have')
        operator = self.operators[instruction.operator]
        needs = tuple((self.tensor(name, where), placements) for name, placements in instruction.inputs)
        gains = tuple((self.tensor(name, where), placements) for name, placements in instruction.outputs)
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


def _cut(graph: Graph, inputs: list[Given], steps: list[Step], asked: list[Asked]) -> Schedule:
    forward_asked = [one for one in asked if graph.outputs[one.output].kind in _FORWARD_OUTPUTS]
    backward_asked = [one for one in asked if graph.outputs[one.output].kind not in _FORWARD_OUTPUTS]
    tangents = [given for given in inputs if graph.inputs[given.input].kind == "tangent"]
    before = [given for given in inputs if graph.inputs[given.input].kind != "tangent"]

    forward = _ancestors(steps, [one.needs for one in forward_asked])
    backward = _ancestors(steps, [one.needs for one in backward_asked])
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


def _ancestors(steps: list[Step], wanted: list[Property]) -> list[bool]:
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

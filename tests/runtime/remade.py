"""Programs that free values and make them again, from programs that do not."""

from __future__ import annotations

import random
from typing import TypeAlias

import msgspec

from hap.program import Compute, Convert, Free, InputInstruction, Instruction, OutputInstruction, Placements, Program
from hap.rules import AxisGraph

Value: TypeAlias = tuple[str, Placements]


def reads(instruction: Instruction) -> list[Value]:
    """What an instruction needs."""
    match instruction:
        case InputInstruction():
            return []
        case Compute():
            return list(instruction.inputs)
        case Convert():
            return [(instruction.tensor, instruction.source)]
        case _:
            return [(instruction.tensor, instruction.placement)]


def makes(instruction: Instruction) -> list[Value]:
    """What an instruction yields."""
    match instruction:
        case InputInstruction():
            return [(instruction.tensor, instruction.placement)]
        case Compute():
            return list(instruction.outputs)
        case Convert():
            return [(instruction.tensor, instruction.target)]
        case _:
            return []


def boundary(axes: AxisGraph, program: Program) -> int:
    """Index of the first instruction, not an input's, that reads a tangent; the program's length where none does."""
    tensors = axes.graph.tensors
    tangents = {tensors[entry.tensor].name for entry in axes.graph.inputs if entry.kind == "tangent"}
    reading = (n for n, one in enumerate(program.instructions) if any(tensor in tangents for tensor, _ in reads(one)))
    return next(reading, len(program.instructions))


class _Remaker:
    """Writes a program in which values may be gone when they are read: then they are made again, as at first."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.maker: dict[Value, Instruction] = {}
        self.there: dict[Value, None] = {}

    def write(self, instruction: Instruction) -> None:
        for value in reads(instruction):
            if value not in self.there:
                self.write(self.maker[value])
        if isinstance(instruction, Convert):
            # What is made again leaves its bucket, which would be in two parts.
            instruction = msgspec.structs.replace(instruction, bucket=None)
        self.instructions.append(instruction)
        for value in makes(instruction):
            self.maker.setdefault(value, instruction)
            self.there[value] = None

    def free(self, value: Value) -> None:
        self.instructions.append(Free(*value))
        del self.there[value]

    def made(self) -> list[Value]:
        """What is there and may be freed."""
        return [value for value in self.there if not isinstance(self.maker[value], InputInstruction)]


def remade_anywhere(program: Program, generator: random.Random, often: float) -> Program:
    """Any value may be freed after any instruction, as many times as there are."""
    writer = _Remaker()
    for instruction in program.instructions:
        writer.write(instruction)
        while (made := writer.made()) and generator.random() < often:
            writer.free(generator.choice(made))
    return Program(tuple(writer.instructions))


def remade_in_backward(
    axes: AxisGraph, program: Program, generator: random.Random, share: float
) -> tuple[Program, set[Value]]:
    """A share of the forward's values is freed behind the last reader before the boundary, and made again for others.

    What outputs of the forward are read from behind the boundary stays. Returns what was freed as well.
    """
    cut = boundary(axes, program)
    kept = _read_by_forward(axes, program.instructions[cut:])
    last: dict[Value, int] = {}
    for position, instruction in enumerate(program.instructions[:cut]):
        for value in (*reads(instruction), *makes(instruction)):
            last[value] = position
    writer = _Remaker()
    due: dict[int, list[Value]] = {}
    for position, instruction in enumerate(program.instructions):
        writer.write(instruction)
        if not isinstance(instruction, InputInstruction):
            for value in makes(instruction):
                if last.get(value, -1) >= position and value not in kept and generator.random() < share:
                    due.setdefault(generator.randrange(last[value], cut), []).append(value)
        for value in due.get(position, ()):
            writer.free(value)
    return Program(tuple(writer.instructions)), {value for values in due.values() for value in values}


def _read_by_forward(axes: AxisGraph, instructions: tuple[Instruction, ...]) -> set[Value]:
    """What losses, outputs and new buffers need of the instructions' operands."""
    tensors = axes.graph.tensors
    forward = {
        (one.name, tensors[one.tensor].name)
        for one in axes.graph.outputs
        if one.tensor is not None and one.kind in ("loss", "output", "buffer")
    }
    needed: set[Value] = set()
    for instruction in reversed(instructions):
        if isinstance(instruction, OutputInstruction):
            wanted = (instruction.name, instruction.tensor) in forward
        else:
            wanted = not needed.isdisjoint(makes(instruction))
        needed.update(reads(instruction) if wanted else ())
    return needed

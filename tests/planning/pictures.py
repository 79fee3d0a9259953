"""Programs in short: where parameters lie, what is computed along which axis, and what travels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from hap.placement import Partial, Shard, parse
from hap.program import Compute, Convert, Free, InputInstruction, Instruction, OutputInstruction, Placements, Program
from hap.rules import AxisGraph

_COPIES = ("aten.clone.default", "aten._to_copy.default", "aten.expand.default")
_LOCAL = ("slice", "keep_one", "pad")


def picture(axes: AxisGraph, program: Program, names: Mapping[str, str] | None = None) -> str:
    """A program, one line for each thing that matters, such as::

        stored up.weight[features]
        stored down.weight[features]
        mm[features] = mm(args.0, up.weight[features])
        mm_1[partial] = mm(relu[features], down.weight[features])
        mm_1 = all_reduce(mm_1[partial])
        backward
        ...
        gradient of up.weight: mm_4[features]

    A tensor stands with the axis that it is sharded along, with ``partial``, or alone where it is whole everywhere. A
    view of all of another or a copy has the name of what it is made of; results of one operator stand together, as
    ``[batch|partial]`` where they lie differently. Left out are such views, copies, pointwise operators, what is made
    of nothing, conversions that move nothing, and inputs but for parameters and buffers. What runs a second time is
    there with ``again``, also where it is pointwise.

    Args:
        axes: the annotated graph.
        program: a program of it.
        names: short names of axes.
    """
    return "\n".join(_Picture(axes, names or {}).lines(program))


class _Picture:
    def __init__(self, axes: AxisGraph, names: Mapping[str, str]) -> None:
        graph = axes.graph
        self.axes, self.names = axes, names
        self.tensors = {tensor.name: number for number, tensor in enumerate(graph.tensors)}
        self.operators = {operator.name: number for number, operator in enumerate(graph.operators)}
        self.run: set[str] = set()
        self.stored = {graph.tensors[i.tensor].name for i in graph.inputs if i.kind in ("parameter", "buffer")}
        # Of results: the operator, or the operand of which they are a view or a copy.
        self.maker: dict[str, str] = {}
        self.copied: dict[str, str] = {}
        for operator, layout in zip(graph.operators, axes.layout, strict=True):
            for result in operator.results:
                if result is None:
                    continue
                made, source = graph.tensors[result], next((graph.tensors[o] for o in operator.operands), None)
                if source and ((layout and made.bytes == source.bytes) or str(operator.target) in _COPIES):
                    self.copied[made.name] = source.name
                else:
                    self.maker[made.name] = operator.name

    def lines(self, program: Program) -> Iterator[str]:
        instructions = program.instructions
        inputs = [i for i in instructions if isinstance(i, InputInstruction) and i.tensor in self.stored]
        yield from (f"stored {self.value(i.tensor, i.placement)}" for i in inputs)
        backward = False
        for instruction in instructions:
            if not backward and self.of_backward(instruction):
                backward = True
                yield "backward"
            yield from self.line(instruction)

    def of_backward(self, instruction: Instruction) -> bool:
        if isinstance(instruction, Compute):
            return self.axes.graph.operators[self.operators[instruction.operator]].phase == "backward"
        return isinstance(instruction, Free)

    def line(self, instruction: Instruction) -> Iterator[str]:
        if isinstance(instruction, Compute):
            tags = self.axes.graph.operators[self.operators[instruction.operator]].target.tags
            copy = instruction.outputs[0][0] in self.copied
            again = instruction.operator in self.run
            self.run.add(instruction.operator)
            if instruction.inputs and not copy and (again or torch.Tag.pointwise not in tags):
                name = instruction.target.split(".")[1].lstrip("_").removeprefix("native_")
                suffix = f" by {instruction.composite}" if instruction.composite else ""
                suffix += " again" if again else ""
                yield f"{self.values(instruction.outputs)} = {name}({self.values(instruction.inputs)}){suffix}"
        elif isinstance(instruction, Convert):
            if instruction.conversion not in _LOCAL:
                source, target = (self.value(instruction.tensor, p) for p in (instruction.source, instruction.target))
                yield f"{target} = {instruction.conversion}({source})"
        elif isinstance(instruction, OutputInstruction) and instruction.name:
            yield f"gradient of {instruction.name}: {self.value(instruction.tensor, instruction.placement)}"

    def values(self, values: Iterable[tuple[str, Placements]]) -> str:
        """Operands or results of an operator; what another one has made together, with the ways in which it lies."""
        found: dict[str, dict[str, None]] = {}
        for tensor, placements in values:
            made = self.base(tensor)
            found.setdefault(self.maker.get(made, made), {})[self.lies(tensor, placements)] = None
        return ", ".join(_written(name, "|".join(ways)) for name, ways in found.items())

    def value(self, tensor: str, placements: Placements) -> str:
        return _written(self.base(tensor), self.lies(tensor, placements))

    def base(self, tensor: str) -> str:
        """What it is a view or a copy of."""
        while tensor in self.copied:
            tensor = self.copied[tensor]
        return tensor

    def lies(self, tensor: str, placements: Placements) -> str:
        placement = parse(placements[0])
        if isinstance(placement, Shard):
            axis = self.axes.axes[self.axes.occurrences[self.tensors[tensor]][placement.occurrence].axis].name
            return self.names.get(axis, axis)
        return "partial" if isinstance(placement, Partial) else "whole"


def _written(name: str, lies: str) -> str:
    name = name.removeprefix("native_")
    return name if lies == "whole" else f"{name}[{lies}]"

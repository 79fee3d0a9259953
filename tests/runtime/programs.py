"""Random programs and random splits, made without the synthesiser.

They take detours that no synthesiser would: every kind of conversion stands in them, also those that nothing needs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from hap.placement import Partial, parse
from hap.program import (
    Compute,
    Convert,
    InputInstruction,
    Instruction,
    OutputInstruction,
    Placements,
    Program,
    Splits,
)
from hap.rules import AxisGraph
from hap.rules.pieces import Place


def random_units(total: int, ranks: int, generator: random.Random) -> list[int]:
    """Units of each rank, summing to ``total``; often none or one for some."""
    kind = generator.random()
    units = [0] * ranks
    if kind < 0.25 and total >= ranks:
        units = [1] * ranks
        units[generator.randrange(ranks)] += total - ranks
        return units
    allowed = [rank for rank in range(ranks) if kind > 0.6 or generator.random() < 0.6] or [0]
    for _ in range(total):
        units[generator.choice(allowed)] += 1
    return units


def random_splits(axes: AxisGraph, ranks: int, generator: random.Random) -> Splits:
    """Every axis split at random."""
    return {axis.name: random_units(axis.size, ranks, generator) for axis in axes.axes}


class _Writer:
    def __init__(self, axes: AxisGraph, generator: random.Random, forbidden: frozenset[str], detours: float) -> None:
        self.axes, self.random, self.detours = axes, generator, detours
        # With an axis, the runs that it is part of.
        named = (({axis.name, *(axes.axes[part].name for part in axis.parts)}, axis.name) for axis in axes.axes)
        self.forbidden = frozenset(name for names, name in named if names & forbidden)
        self.held: dict[int, list[Placements]] = {}
        self.instructions: list[Instruction] = []

    def shards(self, tensor: int) -> list[Placements]:
        occurrences = self.axes.occurrences[tensor]
        return [(f"S{i}",) for i, o in enumerate(occurrences) if self.axes.axes[o.axis].name not in self.forbidden]

    def axis(self, tensor: int, placements: Placements) -> str:
        return self.axes.axes[self.axes.occurrences[tensor][int(placements[0][1:])].axis].name

    def index(self, tensor: int, placements: Placements) -> tuple[Place, int]:
        """Where an index of a tensor lies and which axis it is, whatever its split class."""
        occurrence = self.axes.occurrences[tensor][int(placements[0][1:])]
        of = self.axes.axes[occurrence.axis].of
        return occurrence.place, occurrence.axis if of is None else of

    def convert(self, tensor: int, source: Placements, target: Placements) -> None:
        if target in self.held[tensor]:
            return
        kinds = source[0][0] + target[0][0]
        conversion = {
            "SR": "all_gather", "PR": "all_reduce", "PS": "reduce_scatter", "SS": "all_to_all", "RS": "slice",
            "RP": "keep_one", "SP": "pad",
        }[kinds]  # fmt: skip
        if kinds == "SS" and self.index(tensor, source) == self.index(tensor, target):
            conversion = "re_split"
        at = source if kinds in ("SR", "SS", "SP") else target if kinds in ("PS", "RS") else None
        implementation = None
        if conversion in ("all_gather", "reduce_scatter"):
            implementation = self.random.choice(["padded", "grouped", "exchange"])
        elif conversion in ("all_to_all", "re_split"):
            implementation = "exchange"
        elif conversion == "all_reduce":
            implementation = "builtin"
        name = self.axes.graph.tensors[tensor].name
        axis = None if at is None else self.axis(tensor, at)
        self.instructions.append(Convert(conversion, name, source, target, axis, implementation))
        self.held[tensor].append(target)

    def need(self, tensor: int, target: Placements) -> None:
        if target in self.held[tensor]:
            return
        source = self.random.choice(self.held[tensor])
        if self.random.random() < self.detours:
            middle = self.random.choice([("R",), *self.shards(tensor)])
            self.convert(tensor, source, middle) if middle != source else None
            source = middle
        if source != target:
            self.convert(tensor, source, target)


def random_program(
    axes: AxisGraph,
    generator: random.Random,
    *,
    forbidden_axes: tuple[str, ...] = (),
    stored: Mapping[str, Placements] | None = None,
    sharded: float = 0.8,
    detours: float = 0.1,
) -> Program:
    """A random program: random choices, sharded ones with probability ``sharded``, and random ways to what they need.

    ``stored`` names parameters and buffers whose placement is given.
    """
    graph = axes.graph
    writer = _Writer(axes, generator, frozenset(forbidden_axes), detours)
    placed: dict[int, Placements] = {}
    # Tangents lie as their outputs do.
    followed = {output.of for output in graph.outputs if output.kind == "output"}
    for entry in graph.inputs:
        shardable = entry.kind in ("parameter", "buffer", "input") or entry.tensor in followed
        placements = generator.choice([("R",), *writer.shards(entry.tensor)]) if shardable else ("R",)
        placements = (stored or {}).get(entry.name, placements)
        writer.instructions.append(InputInstruction(graph.tensors[entry.tensor].name, placements))
        writer.held[entry.tensor] = [placements]
        placed[entry.tensor] = placements
    for index, operator in enumerate(graph.operators):
        choices = [
            choice
            for choice in axes.choices[index]
            if (choice.axis is None or axes.axes[choice.axis].name not in writer.forbidden)
            and _reachable(writer, operator.operands, choice.inputs)
        ]
        busy = [choice for choice in choices if choice is not choices[0]]
        choice = generator.choice(busy) if busy and generator.random() < sharded else generator.choice(choices)
        needs = [(t, _text(p)) for t, p in zip(operator.operands, choice.inputs, strict=True)]
        for tensor, placements in needs:
            writer.need(tensor, placements)
        gains = [
            (t, _text(p)) for t, p in zip((r for r in operator.results if r is not None), choice.outputs, strict=True)
        ]
        writer.instructions.append(
            Compute(
                operator.name,
                str(operator.target),
                tuple((graph.tensors[t].name, p) for t, p in needs),
                tuple((graph.tensors[t].name, p) for t, p in gains),
                None if choice.axis is None else axes.axes[choice.axis].name,
                choice.composite,
            )
        )
        for tensor, placements in gains:
            writer.held[tensor] = [placements]
    outputs: list[OutputInstruction] = []
    for output in graph.outputs:
        if output.tensor is None:
            continue
        if output.kind in ("gradient", "buffer") or (output.kind == "output" and output.of is not None):
            assert output.of is not None
            placements = placed[output.of]
        elif output.kind == "output":
            placements = generator.choice([("R",), *writer.shards(output.tensor)])
        else:
            placements = ("R",)
        writer.need(output.tensor, placements)
        outputs.append(OutputInstruction(output.name, graph.tensors[output.tensor].name, placements))
    return Program((*_in_buckets(axes, writer.instructions, generator), *outputs))


def _in_buckets(axes: AxisGraph, instructions: list[Instruction], generator: random.Random) -> list[Instruction]:
    """All-reduces that follow each other in buckets, with gaps and ends at random."""
    dtypes = {tensor.name: tensor.dtype for tensor in axes.graph.tensors}
    found: list[Instruction] = []
    bucket, before = 0, None
    for one in instructions:
        if isinstance(one, Convert) and one.conversion == "all_reduce" and generator.random() < 0.8:
            bucket += before != dtypes[one.tensor] or generator.random() < 0.2
            before = dtypes[one.tensor]
            found.append(msgspec.structs.replace(one, bucket=bucket))
        else:
            before = None
            found.append(one)
    return found


def _text(placements: object) -> Placements:
    return tuple(str(placement) for placement in placements)  # type: ignore[attr-defined]


def _reachable(writer: _Writer, operands: tuple[int, ...], inputs: tuple[object, ...]) -> bool:
    """Whether the operands can be had so: all can, but for partial booleans."""
    for tensor, placements in zip(operands, inputs, strict=True):
        if isinstance(parse(_text(placements)[0]), Partial) and writer.axes.graph.tensors[tensor].dtype.itemsize == 1:
            return False
    return True

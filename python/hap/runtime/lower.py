"""Lowering: from a program to what one rank runs, a ``torch.fx`` graph for the forward and one for the backward.

Every compute instruction becomes the calls of its local code, every conversion a call of
:mod:`hap.runtime.collectives`. Collectives start where they stand in the program and are waited for at the first use of
their result; of those that keep their operands' memory (:attr:`hap.runtime.schedule.Change.keeps`) few are under way.
Graphs run as generated straight-line code that frees each value after its last use and
takes its arguments boxed: as one list that it empties, so that saved values are freed as the backward uses them up.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.graph import _BoxedCodeGen

from hap.placement import Shard, parse
from hap.program import Placements, Program, Splits
from hap.rules.local import AllGather, AllReduce, Collective, Shift, Stack, Value, replace_values
from hap.runtime import collectives
from hap.runtime.along import Along
from hap.runtime.code import Maker, straight
from hap.runtime.local_program import LocalProgram, drop_unused
from hap.runtime.passes import PASSES, improve
from hap.runtime.passes.values import note
from hap.runtime.placing import along
from hap.runtime.schedule import Apply, Change, Property, Schedule, Step, arrange, gains_of

if TYPE_CHECKING:
    from hap.rules import AxisGraph

KEPT = 0.125
"""Bytes of operands that collectives under way keep at most beside the largest, in parts of that; as in the core."""

GIVEN, MADE = "hap_given", "hap_made"
"""In a node's ``meta``: the property that is given; or a step's number, a property of its, and it."""


def lower(
    axes: AxisGraph,
    program: Program,
    splits: Splits,
    rank: int,
    *,
    ranks: int,
    schedule: Schedule | None = None,
    device: torch.device | None = None,
    make: Maker | None = None,
) -> LocalProgram:
    """What rank ``rank`` runs.

    Args:
        axes: the annotated graph.
        program: a program of this graph.
        splits: units that each rank gets, by the name of the axis.
        rank: the rank.
        ranks: the number of ranks.
        schedule: ``arrange(axes, program)``, where it has been made already.
        device: the device that tensors made by the graph live on; as traced if ``None``.
        make: makes what runs a graph, which then has every instruction as it stands in the program.

    Raises:
        LoweringError: the program does not fit the graph.
    """
    schedule = arrange(axes, program) if schedule is None else schedule
    rewrite = _Rewrite(axes, splits, rank, ranks, device)

    backward_graph, saved = None, schedule.saved
    if schedule.gradients:
        emitter = _Emitter(rewrite, [*schedule.saved, *(given.gains for given in schedule.tangents)])
        emitter.steps(schedule.backward)
        backward_graph = emitter.finish([one.needs for one in schedule.gradients])
        # A rank without a share reads less than the others.
        saved = tuple(prop for prop in schedule.saved if emitter.drop_unused(prop))
    emitter = _Emitter(rewrite, [given.gains for given in schedule.inputs])
    emitter.steps(schedule.forward)
    forward_graph = emitter.finish([*(one.needs for one in schedule.outputs), *saved])
    if make is None:
        improve(forward_graph, backward_graph, len(saved), PASSES)
    return LocalProgram(
        rank,
        forward_graph,
        backward_graph,
        schedule.inputs,
        schedule.tangents,
        schedule.outputs,
        schedule.gradients,
        saved,
        straight if make is None else make,
    )


def lower_steps(
    axes: AxisGraph,
    steps: Sequence[Step],
    inputs: Sequence[Property],
    outputs: Sequence[Property],
    splits: Splits,
    rank: int,
    *,
    ranks: int,
    device: torch.device | None = None,
    absent: Collection[Property] = (),
) -> fx.Graph:
    """Some steps as a graph of rank ``rank``, from ``[*inputs, group]`` to ``outputs``; all else as for :func:`lower`.

    Those of the inputs that are ``absent`` are not taken: this rank, without a share, does not read them.
    """
    emitter = _Emitter(_Rewrite(axes, splits, rank, ranks, device), list(inputs))
    emitter.steps(tuple(steps))
    graph = emitter.finish(list(outputs))
    for prop in absent:
        assert emitter.drop_unused(prop) is False, "the whole backward does not read it"
    return graph


def bucket_of(step: Step) -> int | None:
    """The bucket that a step is part of."""
    return step.instruction.bucket if isinstance(step, Change) else None


@dataclass(frozen=True)
class _Rewrite:
    """What is the same for all instructions of a rank."""

    axes: AxisGraph
    splits: Splits
    rank: int
    size: int
    device: torch.device | None

    def along(self, tensor: int, placements: Placements) -> Along:
        """The occurrence that a tensor is sharded along, split as planned."""
        assert len(placements) == 1, "the mesh has one level"
        placement = parse(placements[0])
        assert isinstance(placement, Shard)
        return along(self.axes, self.splits, tensor, placement.occurrence)

    def shape(self, prop: Property) -> tuple[int, ...]:
        """Shape of this rank's piece."""
        placements = tuple(parse(text) for text in prop.placements)
        return self.axes.local_shape(prop.tensor, placements, self.splits, self.rank)

    def note(self, node: fx.Node, prop: Property) -> None:
        """Note what a node's value is, for the passes."""
        note(node, self.shape(prop), self.axes.graph.tensors[prop.tensor].dtype)


class _Emitter:
    """Writes one graph, node by node."""

    def __init__(self, rewrite: _Rewrite, inputs: list[Property]) -> None:
        self.rewrite = rewrite
        self.graph = fx.Graph()
        self.graph.set_codegen(_BoxedCodeGen())
        self.values: dict[Property, fx.Node] = {}
        # What makes them: the number of a step, the property, the step.
        self.made: dict[Property, tuple[int, Property, Step]] = {}
        # Collectives that are not waited for yet, by what they yield.
        self.started: dict[Property, fx.Node] = {}
        # The last collectives that keep their operands, by what they yield, with the bytes of that.
        self.keeping: deque[tuple[Property, int]] = deque()
        # Where what is reduced in a bucket lies in it, and the buckets that were waited for.
        self.members: dict[Property, tuple[int, tuple[int, ...]]] = {}
        self.totals: dict[fx.Node, fx.Node] = {}
        tensors = rewrite.axes.graph.tensors
        for prop in inputs:
            node = self.graph.create_node("placeholder", "input", name=tensors[prop.tensor].name)
            # Both stand in the code; names of tensors need not be identifiers, names of nodes are.
            node.target = node.name
            rewrite.note(node, prop)
            node.meta[GIVEN] = prop
            self.values.setdefault(prop, node)
        self.inputs = dict(self.values)
        self.group = self.graph.create_node("placeholder", "group")

    def finish(self, outputs: list[Property]) -> fx.Graph:
        """End the graph with these outputs."""
        results = [self.value(prop) for prop in outputs]
        for started in dict.fromkeys(self.started.values()):
            if started in self.totals:
                continue
            # A rank without a share reads nothing of it, and must not run ahead of the others.
            with self.graph.inserting_after(started):
                self.graph.call_function(collectives.wait, (started,))
        self.graph.output(results)
        for prop, made in self.made.items():
            if prop in self.values:
                self.values[prop].meta.setdefault(MADE, made)
        drop_unused(self.graph)
        return self.graph

    def drop_unused(self, prop: Property) -> bool:
        """Drop the placeholder of ``prop`` if nothing reads it; whether it stays."""
        node = self.inputs[prop]
        if not node.users:
            self.graph.erase_node(node)
            return False
        return True

    def value(self, prop: Property) -> fx.Node:
        """What is read as ``prop``; waits for it before its first use."""
        started = self.started.pop(prop, None)
        if started is not None:
            name = f"{self.rewrite.axes.graph.tensors[prop.tensor].name}_{'_'.join(prop.placements)}"
            if prop not in self.members:
                self.values[prop] = self.graph.create_node("call_function", collectives.wait, (started,), name=name)
                return self.values[prop]
            total = self.totals.get(started)
            if total is None:
                total = self.totals[started] = self.graph.create_node("call_function", collectives.wait, (started,))
            offset, shape = self.members[prop]
            way: dict[str, Any] = {"offset": offset, "shape": shape}
            self.values[prop] = self.graph.create_node("call_function", collectives.member, (total,), way, name=name)
        return self.values[prop]

    def meet(self, step: Change) -> None:
        """Wait for the first of the collectives that keep operands, so that those beside the largest have few bytes.

        The core's ``ValidProgram::ended`` says the same.
        """
        if not step.keeps:
            return
        self.keeping.append((step.gains, self.rewrite.axes.graph.tensors[step.gains.tensor].bytes))
        while sum(sizes := [size for _, size in self.keeping]) > (1.0 + KEPT) * max(sizes):
            first, _ = self.keeping.popleft()
            if first in self.started:
                self.value(first)

    def steps(self, steps: tuple[Step, ...]) -> None:
        """Write the nodes of all steps."""
        for number, step in enumerate(steps):
            for prop in gains_of(step):
                self.made.setdefault(prop, (number, prop, step))
        for bucket, run in groupby(steps, key=bucket_of):
            if bucket is not None and self.rewrite.size > 1:
                self.together([step for step in run if isinstance(step, Change)])
                continue
            for step in run:
                if isinstance(step, Apply):
                    self.apply(step)
                else:
                    self.change(step)

    def together(self, changes: list[Change]) -> None:
        """Write the start of a bucket: one all-reduce of several tensors."""
        values = [self.value(change.needs) for change in changes]
        arguments: dict[str, Any] = {"name": changes[0].instruction.tensor, "group": self.group}
        started = self.graph.create_node("call_function", collectives.start, ("all_reduce_together", values), arguments)
        offset = 0
        for change in changes:
            shape = self.rewrite.shape(change.gains)
            self.started[change.gains] = started
            self.members[change.gains] = (offset, shape)
            offset += math.prod(shape)

    def apply(self, step: Apply) -> None:
        """Write the calls of an operator's local code; results bear their names in the reference program."""
        rewrite = self.rewrite
        tensors = rewrite.axes.graph.tensors
        code = rewrite.axes.local_code(step.operator, step.choice, rewrite.splits, rewrite.rank)
        made: dict[Value, Any] = {Value(index): self.value(prop) for index, prop in enumerate(step.needs)}
        names = {value: tensors[prop.tensor].name for value, prop in zip(code.results, step.gains, strict=True)}
        for call in code.calls:
            args = self.on_device(replace_values(call.args, made))
            kwargs = self.on_device(replace_values(call.kwargs, made))
            if isinstance(call.target, Collective):
                (value,) = call.results
                made[value] = self.inside(call.target, args[0], tensors[step.gains[0].tensor].name)
            elif call.sequence:
                every = self.graph.create_node("call_function", call.target, args, kwargs)
                for position, value in enumerate(call.results):
                    name = names.get(value)
                    made[value] = self.graph.create_node("call_function", getitem, (every, position), name=name)
            else:
                (value,) = call.results
                made[value] = self.graph.create_node("call_function", call.target, args, kwargs, name=names.get(value))
        for value, prop in zip(code.results, step.gains, strict=True):
            rewrite.note(made[value], prop)
            self.values.setdefault(prop, made[value])

    def inside(self, collective: Collective, value: fx.Node, name: str) -> fx.Node:
        """Write a collective inside a composite operator; ``name`` is that of the operator's first result."""
        ranks = self.rewrite.size
        if ranks == 1:
            if isinstance(collective, Stack):
                return self.graph.create_node("call_function", torch.unsqueeze, (value, 0))
            return value

        def call(function: Any, **kwargs: Any) -> fx.Node:
            shared = {"name": name, "group": self.group}
            return self.graph.create_node("call_function", function, (value,), kwargs | shared)

        match collective:
            case AllReduce(op):
                return call(collectives.all_reduce, op=op)
            case Stack():
                return call(collectives.stack, ranks=ranks)
            case AllGather(shape, dim, lengths):
                along = Along(dim, ((1, 1),), lengths)
                return call(collectives.all_gather, shape=shape, along=along, implementation="padded")
            case Shift(shape):
                return call(collectives.shift, shape=shape, ranks=ranks)
            case _:
                raise AssertionError(f"no such collective: {collective}")

    def on_device(self, argument: Any) -> Any:
        """An argument with this rank's device in the place of the traced one."""
        if self.rewrite.device is None:
            return argument
        if isinstance(argument, torch.device):
            return self.rewrite.device
        if isinstance(argument, (tuple, list)):
            return type(argument)(self.on_device(item) for item in argument)
        if isinstance(argument, dict):
            return {key: self.on_device(item) for key, item in argument.items()}
        return argument

    def change(self, step: Change) -> None:
        """Write a conversion, unless what it yields is there: a local one, or the start of a collective."""
        instruction, source, target = step.instruction, step.needs, step.gains
        value = self.value(source)
        if target in self.values or target in self.started:
            return
        if self.rewrite.size == 1:
            self.values[target] = value
            return
        rewrite, tensor = self.rewrite, source.tensor
        shape = rewrite.shape(target)
        name = f"{rewrite.axes.graph.tensors[tensor].name}_{'_'.join(target.placements)}"

        def local(function: Any, **kwargs: Any) -> None:
            self.values[target] = self.graph.create_node("call_function", function, (value,), kwargs, name=name)

        def start(**kwargs: Any) -> None:
            self.meet(step)
            arguments: dict[str, Any] = {"name": instruction.tensor, "group": self.group} | kwargs
            self.started[target] = self.graph.create_node(
                "call_function",
                collectives.start,
                (instruction.conversion, value),
                arguments,
                name=f"{name}_started",
            )

        match instruction.conversion:
            case "all_gather":
                gathered = rewrite.along(tensor, source.placements)
                start(shape=shape, along=gathered, implementation=instruction.implementation)
            case "reduce_scatter":
                scattered = rewrite.along(tensor, target.placements)
                start(shape=shape, along=scattered, implementation=instruction.implementation)
            case "all_to_all" | "re_split":
                ends = (rewrite.along(tensor, source.placements), rewrite.along(tensor, target.placements))
                start(shape=shape, source=ends[0], target=ends[1])
            case "all_reduce":
                start()
            case "slice":
                local(collectives.slice_share, along=rewrite.along(tensor, target.placements), rank=rewrite.rank)
            case "keep_one":
                local(collectives.keep_one, rank=rewrite.rank)
            case "pad":
                at = rewrite.along(tensor, source.placements)
                local(collectives.pad, shape=shape, along=at, rank=rewrite.rank)

"""What an idle rank runs: nothing. Its results are zeros of the sizes of its pieces, which are empty.

What is whole on every rank, such as the loss, then comes from an active rank (:mod:`hap.runtime.active`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx
from torch.fx.graph import _BoxedCodeGen

from hap.runtime.accumulate import Parts
from hap.runtime.local_program import LocalProgram
from hap.runtime.schedule import Asked, Given, Property, Schedule

if TYPE_CHECKING:
    from hap.graph import Graph
    from hap.runtime.step import Step

Shape = tuple[int, ...]


def idle_program(
    graph: Graph, schedule: Schedule, rank: int, shape_of: Callable[[Property], Shape], device: torch.device
) -> LocalProgram:
    """In the place of what :func:`hap.runtime.lower.lower` gives an active rank.

    Args:
        graph: the reference program.
        schedule: the program.
        rank: this rank.
        shape_of: the shapes of this rank's pieces.
        device: where they are.
    """

    def code(given: Sequence[Given], asked: Sequence[Asked]) -> fx.Graph:
        return _zeros(len(given), [_result(graph, one, shape_of) for one in asked], device)

    return LocalProgram(
        rank,
        code(schedule.inputs, schedule.outputs),
        code(schedule.tangents, schedule.gradients) if schedule.gradients else None,
        schedule.inputs,
        schedule.tangents,
        schedule.outputs,
        schedule.gradients,
        (),
    )


def idle_parts(step: Step, shape_of: Callable[[Property], Shape]) -> Parts:
    """In the place of :func:`hap.runtime.accumulate.in_parts`: sums of as much as nothing."""
    graph, program = step.graph, step.program
    own, others = list[Asked](), list[Asked]()
    for one in program.gradients:
        (own if graph.outputs[one.output].kind == "gradient" else others).append(one)
    results = [_result(graph, one, shape_of) for one in [*own, *others]]
    names = tuple(graph.outputs[one.output].name for one in own)
    summing = _zeros(len(program.tangents), results, step.device)
    reducing, sums = _taking(len(own))
    reducing.output(sums)
    return Parts(
        step,
        program.make(summing, "backward"),
        program.make(reducing, "backward"),
        tuple(dtype for _, dtype in results[: len(own)]),
        names,
        tuple(frozenset({name}) for name in names),
    )


def _result(graph: Graph, asked: Asked, shape_of: Callable[[Property], Shape]) -> tuple[Shape, torch.dtype]:
    """Shape and element type of a result on this rank."""
    tensor = graph.tensors[asked.needs.tensor]
    whole = graph.outputs[asked.output].kind in ("loss", "input_gradient")
    return tensor.shape if whole else shape_of(asked.needs), tensor.dtype


def _zeros(taken: int, results: Sequence[tuple[Shape, torch.dtype]], device: torch.device) -> fx.Graph:
    """A graph from so many values and a group to zeros."""
    graph, _ = _taking(taken)
    graph.output(
        [graph.call_function(torch.zeros, (shape,), {"dtype": dtype, "device": device}) for shape, dtype in results]
    )
    return graph


def _taking(count: int) -> tuple[fx.Graph, list[fx.Node]]:
    """A graph that takes so many values, which are returned, and a group."""
    graph = fx.Graph()
    graph.set_codegen(_BoxedCodeGen())
    values = [graph.placeholder(f"given_{number}") for number in range(count)]
    graph.placeholder("group")
    return graph, values

"""A whole step of all ranks in one process, from whole tensors to whole tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hap.program import Program, Splits
from hap.runtime import lockstep
from hap.runtime.lower import lower
from hap.runtime.placing import Layout, layout
from hap.runtime.schedule import Asked, Given, Property, arrange

if TYPE_CHECKING:
    from hap.graph import OutputKind
    from hap.rules import AxisGraph


@dataclass(frozen=True, slots=True)
class Emulated:
    """One output: the whole tensor as each rank sees it (one entry where it had to be put together)."""

    kind: OutputKind
    name: str
    copies: tuple[torch.Tensor, ...]


def emulate(
    axes: AxisGraph, program: Program, splits: Splits, ranks: int, values: Mapping[int, torch.Tensor]
) -> list[Emulated]:
    """Lower a program for every rank and run all of them in lock-step, forward and backward.

    Args:
        axes: the annotated graph.
        program: a program of this graph.
        splits: units of each rank, by axis.
        ranks: number of ranks.
        values: whole values of the graph's inputs, by tensor (:func:`hap.interpret.bind`); none is changed.

    Returns:
        All outputs in the order of the graph, but for gradients that do not exist.
    """
    schedule = arrange(axes, program)
    programs = [lower(axes, program, splits, rank, ranks=ranks, schedule=schedule) for rank in range(ranks)]

    def placed(prop: Property) -> Layout:
        return layout(axes, splits, prop.tensor, prop.placements, ranks)

    def pieces(given: Sequence[Given], rank: int) -> list[torch.Tensor]:
        return [placed(one.gains).share(values[one.gains.tensor], rank) for one in given]

    def merged(asked: Sequence[Asked], results: Sequence[Sequence[torch.Tensor]]) -> dict[int, Emulated]:
        found = {}
        for position, one in enumerate(asked):
            output = axes.graph.outputs[one.output]
            lying = placed(one.needs)
            by_rank = [result[position] for result in results]
            for piece, shape in zip(by_rank, lying.shapes, strict=True):
                assert tuple(piece.shape) == shape, f"{output.name}: a piece of shape {tuple(piece.shape)}, not {shape}"
            copies = tuple(by_rank) if lying.along is None else (lying.assemble(by_rank),)
            found[one.output] = Emulated(output.kind, output.name, copies)
        return found

    with torch.no_grad():
        here = [lockstep.Here(rank, ranks) for rank in range(ranks)]
        forward = lockstep.run(
            [
                lockstep.interpret(local.forward_graph, [*pieces(local.inputs, rank), here[rank]], rank)
                for rank, local in enumerate(programs)
            ]
        )
        count = len(schedule.outputs)
        outputs = merged(schedule.outputs, forward)
        if schedule.gradients:
            backward = lockstep.run(
                [
                    lockstep.interpret(
                        local.backward_graph,
                        [*forward[rank][count:], *pieces(local.tangents, rank), here[rank]],
                        rank,
                    )
                    for rank, local in enumerate(programs)
                    if local.backward_graph is not None
                ]
            )
            outputs.update(merged(schedule.gradients, backward))
    return [outputs[index] for index in sorted(outputs)]

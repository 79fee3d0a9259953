"""Names of axes: after the first tensor that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from hap.graph import Graph
from hap.rules.axes import Factor
from hap.rules.axes import axes as axes_of
from hap.rules.binding import Dims
from hap.rules.runs import Run

BATCH = "batch"
"""Name of the axis of the samples: the outermost axis of the first input."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A named index of the model: ``size`` units that can be given to devices.

    Attributes:
        name: unique.
        size: the number of units.
        parts: of a run (:mod:`hap.rules.runs`), the numbers of the axes that it is the product of, outermost first.
        of: of another split class of an axis (:mod:`hap.rules.classes`), the number of that.
    """

    name: str
    size: int
    parts: tuple[int, ...] = ()
    of: int | None = None


def name_axes(graph: Graph, dims: Sequence[Dims]) -> tuple[tuple[Axis, ...], dict[Factor, int]]:
    """The axes of a graph with deterministic, unique names, and the number of each leaf's axis.

    ``batch`` is the outermost axis of dimension 0 of the first input. Others are called after the first tensor that
    holds them, inputs of the graph before results: its name and the dimension, ``transformer.wte.weight.0``; where the
    dimension is a product, also the place in it.
    """
    axes: list[Axis] = []
    numbers: dict[Factor, int] = {}
    taken: set[str] = set()

    def add(leaf: Factor, name: str) -> None:
        unique, count = name, 1
        while unique in taken:
            count += 1
            unique = f"{name}#{count}"
        taken.add(unique)
        numbers[leaf] = len(axes)
        axes.append(Axis(unique, leaf.size))

    for value in graph.inputs:
        if value.kind == "input" and dims[value.tensor]:
            outermost = axes_of(dims[value.tensor][0])
            if outermost:
                add(outermost[0], BATCH)
            break
    named = {value.tensor: value.name for value in graph.inputs}
    order = [value.tensor for value in graph.inputs]
    order += [tensor for operator in graph.operators for tensor in operator.results if tensor is not None]
    for tensor in order:
        base = named.get(tensor, graph.tensors[tensor].name)
        for dim, factors in enumerate(dims[tensor]):
            own = axes_of(factors)
            for place, leaf in enumerate(own):
                if leaf not in numbers:
                    add(leaf, f"{base}.{dim}" if len(own) == 1 else f"{base}.{dim}.{place}")
    return tuple(axes), numbers


def name_runs(runs: Sequence[Run], axes: Sequence[Axis], numbers: Mapping[Factor, int]) -> tuple[Axis, ...]:
    """The axes of runs, called after their parts: ``batch*labels.1``."""
    parts = [tuple(numbers[leaf] for leaf in run) for run in runs]
    return tuple(
        Axis("*".join(axes[part].name for part in own), prod(axes[part].size for part in own), own) for own in parts
    )

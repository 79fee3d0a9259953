"""Other split classes of axes: the same index, split otherwise in a stretch of the model, or where parameters rest.

A class is one more axis of the graph. Each tensor that can be sharded along the axis can be sharded along its classes,
too, in the same place: its occurrences there follow behind all others, in the order of those of the axis. For a class
of role ``compute`` every operator that can share its work along the axis may do so along the class; which does is for
the search to say, and so where the stretches end. For one of role ``storage`` only parameters, buffers, their gradients
and new values have the class, and the views of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from hap.errors import PlanError
from hap.graph import Graph
from hap.placement import Placements, Shard, shard
from hap.program import SplitClass
from hap.rules.choices import Choice
from hap.rules.naming import Axis

if TYPE_CHECKING:
    from hap.rules.annotate import AxisGraph


def class_name(axis: str, role: str) -> str:
    """The name of another split class of an axis: ``batch@2``, ``mlp.weight.0@stored``."""
    return f"{axis}@2" if role == "compute" else f"{axis}@stored"


def divided(axes: AxisGraph, classes: Mapping[str, SplitClass]) -> AxisGraph:
    """The graph with these split classes, by name, beside those that it has.

    Raises:
        PlanError: a class is of no axis of the graph, or has the name of one.
    """
    if not classes:
        return axes
    base = axes.base or axes
    numbers = {axis.name: number for number, axis in enumerate(base.axes)}
    found = replace(base, base=base, classes={**axes.classes, **classes})
    for name, split_class in found.classes.items():
        number = numbers.get(split_class.axis)
        if number is None or name in numbers:
            raise PlanError(
                f'classes: "{name}": expected a new name for a split class of an axis of the graph, got one of '
                f'"{split_class.axis}"'
            )
        found = _with_class(found, number, name, split_class)
    return found


def _with_class(axes: AxisGraph, number: int, name: str, split_class: SplitClass) -> AxisGraph:
    """With one more class, of the axis with this number."""
    graph, new = axes.graph, len(axes.axes)
    stored = split_class.role == "storage"
    holders = _at_rest(axes) if stored else [True] * len(graph.tensors)
    occurrences = tuple(
        own + tuple(it._replace(axis=new) for it in own if it.axis == number) if holds else own
        for own, holds in zip(axes.occurrences, holders, strict=True)
    )

    def moved(tensor: int, placements: Placements) -> Placements:
        (placement,) = placements
        if not isinstance(placement, Shard):
            return placements
        own = axes.occurrences[tensor]
        before = sum(it.axis == number for it in own[: placement.occurrence])
        return shard(len(own) + before)

    choices = []
    for index, operator in enumerate(graph.operators):
        results = [tensor for tensor in operator.results if tensor is not None]
        held = all(holders[tensor] for tensor in (*operator.operands, *results))
        own = axes.choices[index]
        if held and (axes.layout[index] or not stored):
            along = (choice for choice in own if choice.axis == number)
            own += tuple(_moved(choice, new, operator.operands, results, moved) for choice in along)
        choices.append(own)
    axis = Axis(name, axes.axes[number].size, of=number)
    return replace(axes, axes=(*axes.axes, axis), occurrences=occurrences, choices=tuple(choices))


def _moved(
    choice: Choice,
    axis: int,
    operands: tuple[int, ...],
    results: list[int],
    moved: Callable[[int, Placements], Placements],
) -> Choice:
    """A choice along another class of its axis."""
    inner = (replace(it, axis=axis) if it.axis == choice.axis else it for it in choice.collectives)
    return replace(
        choice,
        inputs=tuple(map(moved, operands, choice.inputs)),
        outputs=tuple(map(moved, results, choice.outputs)),
        axis=axis,
        collectives=tuple(inner),
    )


def _at_rest(axes: AxisGraph) -> list[bool]:
    """Which tensors are parameters or buffers, gradients or new values of these, or views of such."""
    graph = axes.graph
    found = [False] * len(graph.tensors)
    for tensor in _stored(graph):
        found[tensor] = True
    views = [operator for operator, layout in zip(graph.operators, axes.layout, strict=True) if layout]
    for order in (views, views[::-1]):
        for operator in order:
            ends = [*operator.operands, *(tensor for tensor in operator.results if tensor is not None)]
            if any(found[tensor] for tensor in ends):
                for tensor in ends:
                    found[tensor] = True
    return found


def _stored(graph: Graph) -> list[int]:
    inputs = [entry.tensor for entry in graph.inputs if entry.kind in ("parameter", "buffer")]
    outputs = [entry.tensor for entry in graph.outputs if entry.kind in ("gradient", "buffer")]
    return [*inputs, *(tensor for tensor in outputs if tensor is not None)]

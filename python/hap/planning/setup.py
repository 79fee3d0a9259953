"""From a graph, a cluster and the user's arguments to a :class:`Problem`: checks, and tensors for names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hap.cluster import Cluster
from hap.errors import PlanError
from hap.planning.engine import Constraints, Engine, Limits, Watch
from hap.planning.optimisers import Optimiser, optimiser_memory, steps_together
from hap.planning.pins import Pin, allowed
from hap.planning.problem import Problem
from hap.program import Placements, SplitClass
from hap.rules import BATCH, divided
from hap.units import listed

if TYPE_CHECKING:
    from hap.rules import AxisGraph


def make_problem(
    axes: AxisGraph,
    cluster: Cluster,
    *,
    forbidden_axes: Sequence[str] = (),
    required_axis: str | None = None,
    pins: Sequence[Pin] = (),
    strict: bool = True,
    optimiser: Optimiser = "Adam",
    placements: Mapping[str, Placements] | None = None,
    splits: Mapping[str, Sequence[int]] | None = None,
    limits: Limits | None = None,
    classes: Mapping[str, SplitClass] | None = None,
    watch: Watch | None = None,
) -> Problem:
    """The problem; arguments as in :func:`hap.planning.plan_axes`, and ``strict`` as in :func:`allowed`.

    ``classes`` are split classes of the graph's axes beside those that it has; ``watch`` is that of the search that the
    problem is part of.

    Raises:
        PlanError: an argument names what is not there, or does not fit the axes and the devices.
    """
    from hap import _core

    axes = divided(axes, classes or {})
    sizes = {axis.name: axis.size for axis in axes.axes}
    fixed = {axis: list(units) for axis, units in (splits or {}).items()}
    _check_splits(fixed, sizes, len(cluster.devices))
    watch = watch or Watch()
    held = optimiser_memory(optimiser, together=steps_together(cluster))
    if limits is not None and not isinstance(limits, Limits):
        raise PlanError(f"limits: expected hap.planning.engine.Limits, or None, got {limits!r}")
    try:
        core = _core.Graph(axes.to_json())
    except ValueError as error:
        raise PlanError(f"the graph cannot be planned: {error}") from error

    def constrain(pins: Sequence[Pin]) -> Constraints:
        return make_constraints(axes, forbidden_axes, required_axis, pins, placements, strict=strict)

    def divide(classes: Mapping[str, SplitClass]) -> Problem:
        return make_problem(
            axes,
            cluster,
            forbidden_axes=forbidden_axes,
            required_axis=required_axis,
            pins=pins,
            strict=strict,
            optimiser=optimiser,
            placements=placements,
            splits=splits,
            limits=limits,
            classes=classes,
            watch=watch,
        )

    return Problem(
        engine=Engine(core, cluster, optimiser=held, limits=limits, watch=watch),
        sizes=sizes,
        parameters=_parameters(axes),
        constraints=constrain(pins),
        constrain=constrain,
        pins=tuple(pins),
        fixed=fixed,
        batch=BATCH if BATCH in sizes else None,
        origins=_origins(axes),
        classes=axes.classes,
        divided=divide,
        job=cluster,
        devices=tuple(range(len(cluster.devices))),
        settled=bool(placements),
    )


def make_constraints(
    axes: AxisGraph,
    forbidden_axes: Sequence[str],
    required_axis: str | None,
    pins: Sequence[Pin],
    placements: Mapping[str, Placements] | None = None,
    *,
    strict: bool = True,
) -> Constraints:
    """What every program must keep to. What is placed already stays where it is.

    Raises:
        PlanError: an argument names what is not there (where ``strict``), or leaves a tensor nothing.
    """
    sizes = {axis.name: axis.size for axis in axes.axes}
    if not strict:
        forbidden_axes = [name for name in forbidden_axes if name in sizes]
        required_axis = required_axis if required_axis in sizes else None
    _check_axes(forbidden_axes, sizes)
    if required_axis is not None and required_axis not in sizes:
        raise PlanError(f'required_axis: there is no axis "{required_axis}"; the axes are {listed(sizes)}')
    if required_axis in forbidden_axes:
        raise PlanError(f'required_axis: "{required_axis}" is among forbidden_axes, too')
    left = allowed(axes, pins, forbidden_axes, strict=strict)
    return Constraints(
        forbidden_axes=tuple(forbidden_axes),
        placements=left.placements | _placements(axes, placements or {}),
        outputs=left.outputs,
        require_axis=required_axis,
    )


def _check_axes(names: Sequence[str], sizes: Mapping[str, int]) -> None:
    if isinstance(names, str):
        raise PlanError(f'forbidden_axes: expected a list of names, got the string "{names}"')
    for name in names:
        if name not in sizes:
            raise PlanError(f'forbidden_axes: there is no axis "{name}"; the axes are {listed(sizes)}')


def _check_splits(fixed: Mapping[str, list[int]], sizes: Mapping[str, int], devices: int) -> None:
    for axis, units in fixed.items():
        if axis not in sizes:
            raise PlanError(f'splits: there is no axis "{axis}"; the axes are {listed(sizes)}')
        if len(units) != devices or min(units) < 0 or sum(units) != sizes[axis]:
            raise PlanError(
                f"splits.{axis}: expected {devices} numbers of units that sum to {sizes[axis]}, got {units}"
            )


def _parameters(axes: AxisGraph) -> dict[str, tuple[str, ...]]:
    """The axes of each parameter, by the name of its tensor, the largest parameter first."""
    graph = axes.graph
    tensors = [item.tensor for item in graph.inputs if item.kind == "parameter"]
    tensors.sort(key=lambda tensor: (-graph.tensors[tensor].bytes, tensor))
    return {
        graph.tensors[tensor].name: tuple(axes.axes[each.axis].name for each in axes.occurrences[tensor])
        for tensor in tensors
    }


def _origins(axes: AxisGraph) -> dict[str, str]:
    """By name of a tensor, the user's name of what it is, or the source line that makes it."""
    graph = axes.graph
    found = {graph.tensors[item.tensor].name: f'"{item.name}"' for item in graph.inputs if item.name}
    for operator in graph.operators:
        results = (graph.tensors[result].name for result in operator.results if result is not None)
        found.update((name, operator.source) for name in results if operator.source)
    return found


def _placements(axes: AxisGraph, placements: Mapping[str, Placements]) -> dict[str, tuple[str, ...]]:
    """The constraint by tensor from that by the user's names."""
    graph = axes.graph
    known = {item.name: item.tensor for item in graph.inputs if item.kind in ("parameter", "buffer")}
    found: dict[str, tuple[str, ...]] = {}
    for name, levels in placements.items():
        if name not in known:
            raise PlanError(f'placements: there is no parameter or buffer "{name}"')
        if len(levels) != 1:
            raise PlanError(f'placements: "{name}": expected one level of the mesh, got {len(levels)}')
        found[graph.tensors[known[name]].name] = (levels[0],)
    return found

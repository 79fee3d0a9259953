"""The entry points: a plan for a module, or for a graph whose axes are known."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from hap.cluster import Cluster, Device
from hap.errors import PlanError
from hap.planning.engine import Constraints, Engine, Limits, parse_program
from hap.planning.outer import Found, search
from hap.planning.plan import FORMAT, Fingerprints, Plan, Replica, Stage
from hap.planning.problem import Problem
from hap.planning.progress import Progress
from hap.program import Placements
from hap.units import listed

if TYPE_CHECKING:
    from hap.rules import AxisGraph

_log = logging.getLogger("hap")

BATCH = "batch"


def plan(
    module: torch.nn.Module,
    *,
    devices: Cluster | Sequence[str | Device | Cluster],
    example_inputs: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None = None,
    forbidden_axes: Sequence[str] = (),
    optimiser_tensors: int = 2,
    limits: Limits | None = None,
) -> Plan:
    """The fastest way found to train a module on these devices. Needs no devices and no process group.

    Args:
        module: any module that :func:`hap.trace` captures; left as it is.
        devices: a cluster, or its devices in rank order (names of known accelerators, or :class:`hap.Device`).
        example_inputs: positional arguments of one *global* batch; shapes and element types count, values do not.
        example_kwargs: keyword arguments likewise.
        forbidden_axes: names of axes that must not be split (see :attr:`Plan.axes`).
        optimiser_tensors: tensors of optimiser state per parameter, for the prediction of memory; Adam has two.
        limits: limits of each synthesis; by default there are none that models of usual size meet.

    Raises:
        ClusterError: a device is unknown or a figure is wrong.
        TraceError: the module or the inputs cannot be traced.
        PlanError: an argument is wrong, or no plan fits the devices' memory.
    """
    from hap.rules import annotate
    from hap.trace import trace

    cluster = Cluster.of(devices)
    if not isinstance(module, torch.nn.Module):
        raise PlanError(f"plan: expected a torch.nn.Module, got {type(module).__name__}")
    axes = annotate(trace(module, example_inputs, example_kwargs))
    return plan_axes(axes, cluster, forbidden_axes=forbidden_axes, optimiser_tensors=optimiser_tensors, limits=limits)


def plan_axes(
    axes: AxisGraph,
    cluster: Cluster,
    *,
    forbidden_axes: Sequence[str] = (),
    optimiser_tensors: int = 2,
    placements: Mapping[str, Placements] | None = None,
    splits: Mapping[str, Sequence[int]] | None = None,
    limits: Limits | None = None,
) -> Plan:
    """The fastest plan found for a graph whose axes are known.

    Args:
        axes: the graph.
        cluster: the devices.
        forbidden_axes: names of axes that must not be split.
        optimiser_tensors: tensors of optimiser state per parameter.
        placements: by name of a parameter or buffer, the placement that it must be stored in, because it already is.
        splits: by name of an axis, the units by device that must be kept, because something is already stored so.
        limits: limits of each synthesis.

    Raises:
        PlanError: an argument is wrong, no program satisfies the constraints, or no plan fits the devices' memory.
    """
    from hap import _core

    sizes = {axis.name: axis.size for axis in axes.axes}
    fixed = {axis: list(units) for axis, units in (splits or {}).items()}
    _check_axes(forbidden_axes, sizes)
    _check_splits(fixed, sizes, len(cluster.devices))
    if optimiser_tensors < 0:
        raise PlanError(f"optimiser_tensors: expected at least 0, got {optimiser_tensors}")
    engine = Engine(_core.Graph(axes.to_json()), cluster, optimiser_tensors=optimiser_tensors, limits=limits)
    problem = Problem(
        engine=engine,
        sizes=sizes,
        parameters=_parameters(axes),
        constraints=Constraints(forbidden_axes=tuple(forbidden_axes), placements=_placements(axes, placements or {})),
        fixed=fixed,
        batch=BATCH if BATCH in sizes else None,
    )
    with Progress() as progress:
        found = search(problem, progress)
    return _plan(problem, found, axes.fingerprint, optimiser_tensors)


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


def _parameters(axes: AxisGraph) -> dict[str, int]:
    """Number of axes of each parameter, by the name of its tensor, the largest parameter first."""
    graph = axes.graph
    tensors = [item.tensor for item in graph.inputs if item.kind == "parameter"]
    tensors.sort(key=lambda tensor: (-graph.tensors[tensor].bytes, tensor))
    return {graph.tensors[tensor].name: len(axes.occurrences[tensor]) for tensor in tensors}


def _placements(axes: AxisGraph, placements: Mapping[str, Placements]) -> dict[str, tuple[str, ...]]:
    """The constraint by tensor from that by the user's names."""
    graph = axes.graph
    known = {item.name: item.tensor for item in graph.inputs if item.kind in ("parameter", "buffer")}
    for name in placements:
        if name not in known:
            raise PlanError(f'placements: there is no parameter or buffer "{name}"')
    return {graph.tensors[known[name]].name: (",".join(levels),) for name, levels in placements.items()}


def _plan(problem: Problem, found: Found, fingerprint: str, optimiser_tensors: int) -> Plan:
    best, cluster = found.best, problem.engine.cluster
    text = cluster.to_json()
    seconds = best.simulation.seconds
    return Plan(
        format=FORMAT,
        description=_decoded(text),
        fingerprints=Fingerprints(
            graph=fingerprint,
            cluster=hashlib.sha256(text.encode()).hexdigest(),
            hap=_version(),
            torch=str(torch.__version__),
        ),
        axes=dict(problem.sizes),
        replicas=(
            Replica(
                micro_batches=1,
                stages=(
                    Stage(
                        devices=tuple(range(len(cluster.devices))),
                        part="all",
                        program=parse_program(best.program),
                        splits=best.splits,
                    ),
                ),
            ),
        ),
        optimiser_tensors=optimiser_tensors,
        predicted_time=seconds,
        predicted_memory=tuple(math.ceil(size) for size in best.simulation.memory),
        memory_parts=best.simulation.memory_parts,
        search_gap=best.search_gap,
        lower_bound=found.bound,
        optimality_gap=max(0.0, seconds / found.bound - 1.0) if found.bound > 0.0 else 0.0,
        rounding_loss=best.rounding_loss,
        baselines={baseline.name: baseline.seconds for baseline in found.baselines},
        synthesis_time=problem.engine.last_synthesis_time,
    )


def _decoded(text: str) -> dict[str, Any]:
    content: dict[str, Any] = msgspec.json.decode(text)
    return content


def _version() -> str:
    """The installed version of hap."""
    try:
        return importlib.metadata.version("hap-spmd")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"

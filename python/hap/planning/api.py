"""The entry points: a plan for a module, or for a graph whose axes are known."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from hap.cluster import Cluster, Device
from hap.errors import PlanError
from hap.planning.engine import Limits, parse_program
from hap.planning.outer import Found, search
from hap.planning.plan import FORMAT, Fingerprints, Plan, Replica, Stage
from hap.planning.problem import Problem
from hap.planning.progress import Progress
from hap.planning.setup import make_problem
from hap.program import Placements

if TYPE_CHECKING:
    from hap.rules import AxisGraph


def plan(
    module: torch.nn.Module,
    *,
    devices: Cluster | Sequence[str | Device | Cluster],
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    forbidden_axes: Sequence[str] = (),
    optimiser_tensors: int = 2,
    limits: Limits | None = None,
) -> Plan:
    """The fastest way found to train a module on these devices. Needs no devices and no process group.

    Args:
        module: any module that :func:`hap.trace` captures; left as it is.
        devices: a cluster, or its devices in rank order (names of known accelerators, or :class:`hap.Device`).
        example_inputs: positional arguments of one *global* batch, if any; shapes and element types count, and values
            only where the forward inspects them in Python (``if mask.all():``).
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
    with Progress() as progress:
        progress.update("tracing")
        graph = trace(module, example_inputs, example_kwargs)
        progress.update("finding axes")
        axes = annotate(graph)
        problem = make_problem(
            axes, cluster, forbidden_axes=forbidden_axes, optimiser_tensors=optimiser_tensors, limits=limits
        )
        return make_plan(problem, search(problem, progress), axes)


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
    problem = make_problem(
        axes,
        cluster,
        forbidden_axes=forbidden_axes,
        optimiser_tensors=optimiser_tensors,
        placements=placements,
        splits=splits,
        limits=limits,
    )
    with Progress() as progress:
        return make_plan(problem, search(problem, progress), axes)


def make_plan(problem: Problem, found: Found, axes: AxisGraph) -> Plan:
    """What the search found for this graph, as a plan."""
    engine, best = problem.engine, found.best
    cluster = engine.cluster.to_json()
    seconds = best.simulation.seconds
    stage = Stage(
        devices=tuple(range(len(engine.machine))),
        part="all",
        program=parse_program(best.program),
        splits=best.splits,
    )
    return Plan(
        format=FORMAT,
        description=msgspec.json.decode(cluster, type=dict[str, Any]),
        fingerprints=Fingerprints(
            graph=axes.fingerprint,
            cluster=hashlib.sha256(cluster.encode()).hexdigest(),
            hap=_version(),
            torch=str(torch.__version__),
        ),
        axes=dict(problem.sizes),
        replicas=(Replica(micro_batches=1, stages=(stage,)),),
        optimiser_tensors=engine.optimiser_tensors,
        predicted_time=seconds,
        predicted_memory=tuple(math.ceil(size) for size in best.simulation.memory),
        memory_parts=best.simulation.memory_parts,
        search_gap=best.search_gap,
        lower_bound=found.bound,
        # The bound and the simulation add the same terms in another order: the last digits may differ.
        optimality_gap=max(0.0, seconds / found.bound - 1.0) if found.bound > 0.0 else 0.0,
        rounding_loss=best.rounding_loss,
        baselines={baseline.name: baseline.seconds for baseline in found.baselines},
        obstacles={baseline.name: baseline.obstacle for baseline in found.baselines if baseline.obstacle is not None},
        replicated=axes.without_rule,
        synthesis_time=engine.last_synthesis_time,
    )


def _version() -> str:
    """The installed version of hap."""
    try:
        return importlib.metadata.version("hap-spmd")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"

"""The entry points: a plan for a module, or for a graph whose axes are known."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from hap.cluster import Cluster, Device
from hap.errors import PlanError
from hap.planning.details import make_details
from hap.planning.element_types import warn_of_slow_types
from hap.planning.engine import Limits, parse_program
from hap.planning.optimisers import Optimiser, optimiser_memory, steps_together
from hap.planning.outer import Found, search
from hap.planning.pins import Pins, read_pins, spelled_by_name
from hap.planning.plan import FORMAT, NOTHING, Fingerprints, Plan, Replica, Stage
from hap.planning.progress import Progress, Report
from hap.planning.setup import make_problem
from hap.program import Placements

if TYPE_CHECKING:
    from hap.planning.problem import Problem
    from hap.rules import AxisGraph


def plan(
    module: torch.nn.Module,
    *,
    devices: Cluster | Sequence[str | Device | Cluster],
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    forbidden_axes: Sequence[str] = (),
    required_axis: str | None = None,
    pin: Pins | None = None,
    forbid: Pins | None = None,
    optimiser: Optimiser = "Adam",
    accumulation: bool = False,
    sharded_outputs: bool = False,
    active: Sequence[int] | None = None,
    limits: Limits | None = None,
    progress: Callable[[Report], object] | None = None,
) -> Plan:
    """The fastest way found to train a module on these devices. Needs no devices and no process group.

    What is known better than the search may be said by ``pin`` and ``forbid``, in the placements of PyTorch::

        from torch.distributed.tensor import Replicate, Shard

        hap.plan(
            model,
            devices=cluster,
            example_inputs=(x, y),
            pin={
                "layers.0.weight": Shard(0),  # a parameter or buffer, by any of its names
                "layers.2": Replicate(),  # a module: all parameters and buffers in it; "" is the whole model
                "args.0": [Replicate(), Shard(0)],  # an input, args.0 or kwargs.x: one of these
            },
            forbid={"*.bias": Shard(0)},  # a pattern of fnmatch
        )

    Outputs beside a loss are called ``outputs.logits`` or ``outputs.1``; losses are whole on every rank, and so are all
    outputs where there is none, but with ``sharded_outputs``. ``args.1``, ``kwargs`` and ``outputs`` also name all that
    is in them. ``Shard(dim)`` is a dimension of the tensor, the last one for -1, and any axis that stands there;
    ``Partial`` is nothing that stays. Of several placements those that a tensor cannot have do not count, but one must
    remain. All constraints on a tensor hold together.

    A parameter is pinned as it is *stored*, and with it its gradient and its optimiser's state; a buffer likewise, with
    its new value. Operators may still read it otherwise, for which it is gathered or sliced at each use. To say how
    operators compute, forbid an axis or require one.

    Args:
        module: any module that :func:`hap.trace` captures; left as it is.
        devices: a cluster, or its devices in rank order (names of known accelerators, or :class:`hap.Device`).
        example_inputs: positional arguments of one *global* batch, if any; shapes and element types count, and values
            only where the forward inspects them in Python (``if mask.all():``).
        example_kwargs: keyword arguments likewise.
        forbidden_axes: names of axes that must not be split (see :attr:`Plan.axes`).
        required_axis: the axis that every operator shares its work along, if it can at all.
        pin: by names of parameters, buffers, modules, inputs or outputs, the placement that they must have, or a
            sequence of placements to choose from.
        forbid: likewise, the placements that they must not have.
        optimiser: what will train the parameters, for the prediction of memory: an optimiser of ``torch.optim``, its
            class, the name of that, or the number of tensors of a parameter's shape that it keeps per parameter. What
            it makes while it steps counts, too, but for a number: on known accelerators as with ``foreach=True``,
            unless an optimiser itself says otherwise.
        accumulation: whether gradients will be accumulated over microbatches, for the prediction of memory: one tensor
            more per parameter, as for :func:`hap.parallelize`.
        sharded_outputs: whether outputs need not be whole, as for :func:`hap.parallelize`.
        active: ranks of the devices that have to do the work, all others being left out; by default those with which
            the plan is fastest.
        limits: limits of each synthesis, :class:`hap.planning.engine.Limits`; by default there are none that models of
            usual size meet.
        progress: called with a :class:`hap.planning.progress.Report` at each phase of planning, and about every 20 ms
            during a synthesis. What it raises ends planning. It changes nothing about the plan.

    Raises:
        ClusterError: a device is unknown or a figure is wrong.
        TraceError: the module or the inputs cannot be traced.
        PlanError: an argument is wrong, constraints conflict, or no plan fits the devices' memory.
    """
    from hap.rules import annotate
    from hap.trace import trace

    cluster = Cluster.of(devices)
    if not isinstance(module, torch.nn.Module):
        raise PlanError(f"plan: expected a torch.nn.Module, got {type(module).__name__}")
    pins = read_pins(pin, forbid)
    with Progress(progress) as shown:
        shown.update("tracing")
        graph = trace(module, example_inputs, example_kwargs, sharded_outputs=sharded_outputs)
        shown.update("finding axes")
        axes = annotate(graph)
        problem = make_problem(
            axes,
            cluster,
            forbidden_axes=forbidden_axes,
            required_axis=required_axis,
            pins=pins,
            optimiser=optimiser_memory(optimiser, together=steps_together(cluster), accumulation=accumulation),
            limits=limits,
        )
        return make_plan(search(_among(problem, active), shown), axes)


def plan_axes(
    axes: AxisGraph,
    cluster: Cluster,
    *,
    forbidden_axes: Sequence[str] = (),
    required_axis: str | None = None,
    pin: Pins | None = None,
    forbid: Pins | None = None,
    strict: bool = True,
    optimiser: Optimiser = "Adam",
    placements: Mapping[str, Placements] | None = None,
    splits: Mapping[str, Sequence[int]] | None = None,
    active: Sequence[int] | None = None,
    limits: Limits | None = None,
    progress: Callable[[Report], object] | None = None,
) -> Plan:
    """The fastest plan found for a graph whose axes are known.

    Args:
        axes: the graph.
        cluster: the devices.
        forbidden_axes: names of axes that must not be split.
        required_axis: as for :func:`plan`.
        pin: as for :func:`plan`.
        forbid: as for :func:`plan`.
        strict: whether all that these name must be there.
        optimiser: as for :func:`plan`.
        placements: by name of a parameter or buffer, the placement that it must be stored in, because it already is.
        splits: by name of an axis, the units by device that must be kept, because something is already stored so.
        active: ranks of the devices that the plan must be for, ascending, because something is stored there; by
            default those that make it fastest, but all where ``placements`` are given.
        limits: limits of each synthesis.
        progress: as for :func:`plan`.

    Raises:
        PlanError: an argument is wrong, no program satisfies the constraints, or no plan fits the devices' memory.
    """
    problem = make_problem(
        axes,
        cluster,
        forbidden_axes=forbidden_axes,
        required_axis=required_axis,
        pins=read_pins(pin, forbid),
        strict=strict,
        optimiser=optimiser,
        placements=placements,
        splits=splits,
        limits=limits,
    )
    problem = _among(problem, active)
    with Progress(progress) as shown:
        return make_plan(search(problem, shown), axes)


def _among(problem: Problem, active: Sequence[int] | None) -> Problem:
    """The problem of these devices, from which none is left out; as it is where there are none."""
    if active is None:
        return problem
    count = len(problem.engine.machine)
    ranks = sorted(set(active))
    if not ranks or len(ranks) != len(active) or ranks[0] < 0 or ranks[-1] >= count:
        raise PlanError(f"active: expected different ranks from 0 to {count - 1}, got {list(active)}")
    return replace(problem.among(tuple(ranks)), settled=True)


def make_plan(found: Found, axes: AxisGraph) -> Plan:
    """What the search found for this graph, as a plan."""
    problem, best = found.problem, found.best
    engine = problem.engine
    warn_of_slow_types(found, axes)
    bound = found.bound and found.bound + found.seconds - best.simulation.seconds
    cluster = problem.job.to_json()
    memory = zip(map(math.ceil, best.simulation.memory), best.simulation.memory_parts, strict=True)
    held = dict(zip(problem.devices, memory, strict=True))
    by_rank = [held.get(rank, (0, NOTHING)) for rank in range(len(problem.job.devices))]
    stage = Stage(
        devices=problem.devices,
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
            hap=version(),
            torch=str(torch.__version__),
        ),
        axes={axis: size for axis, size in problem.sizes.items() if axis not in problem.classes},
        classes=dict(problem.classes),
        replicas=(Replica(micro_batches=1, stages=(stage,)),),
        optimiser_tensors=engine.optimiser.tensors,
        temporaries=engine.optimiser.temporaries,
        predicted_time=found.seconds,
        predicted_memory=tuple(size for size, _ in by_rank),
        memory_parts=tuple(parts for _, parts in by_rank),
        search_gap=engine.watch.search_gap,
        lower_bound=bound,
        # The bound and the simulation add the same terms in another order: the last digits may differ.
        optimality_gap=_gap(found.seconds, bound),
        rounding_loss=best.rounding_loss or 0.0,
        baselines={baseline.name: baseline.seconds for baseline in found.baselines},
        obstacles={baseline.name: baseline.obstacle for baseline in found.baselines if baseline.obstacle is not None},
        active=problem.devices if problem.settled else None,
        with_all=found.with_all,
        replicated=axes.without_rule,
        forbidden_axes=problem.constraints.forbidden_axes,
        required_axis=problem.constraints.require_axis,
        sharded_outputs=axes.graph.sharded_outputs,
        pin=spelled_by_name(problem.pins, "pin"),
        forbid=spelled_by_name(problem.pins, "forbid"),
        details=make_details(found, axes),
        synthesis_time=engine.last_synthesis_time,
    )


def version() -> str:
    """The installed version of hap."""
    try:
        return importlib.metadata.version("hap-spmd")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _gap(seconds: float, bound: float) -> float | None:
    """How far a plan may be from the best one; ``None`` where no bound above zero is proven."""
    if bound > 0.0:
        return max(0.0, seconds / bound - 1.0)
    return 0.0 if seconds == 0.0 else None

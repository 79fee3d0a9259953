"""What hap's simulator says of a step of all systems."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatch

import msgspec
import torch
from benches.cluster.workloads import Batch, Workload
from torch.distributed.tensor.parallel import ColwiseParallel

import hap
from hap.planning.baselines import baseline, data_parallel, fully_sharded
from hap.planning.engine import Constraints
from hap.planning.setup import make_problem
from hap.profiling.collectives import moved
from hap.rules import AxisGraph, annotate

# Bytes.
PLENTY = 1e15


def predictions(
    workload: Workload, cluster: hap.Cluster, plan: hap.Plan, batch: Batch, *, keep: bool
) -> dict[str, float | None]:
    """Seconds of a step by name of a system, without the optimiser; ``None`` for what would not fit into memory.

    ``plan`` is hap's, and ``keep`` is whether FSDP2 gathers once a step.
    """
    axes = annotate(hap.trace(workload.model(), batch))
    problem = make_problem(axes, cluster)
    # What tensor parallelism reduces is read at once.
    waiting = make_problem(axes, replace(cluster, overlap=0.0))
    ways = {
        "ddp_even": (data_parallel, problem.even),
        "ddp_proportional": (data_parallel, problem.proportional),
        "fsdp2": (fully_sharded, problem.even),
    }
    found = {name: baseline(problem, name, way(problem), splits).seconds for name, (way, splits) in ways.items()}
    if found["fsdp2"] is not None:
        alone = make_problem(axes, without_communication(cluster))
        computing = baseline(alone, "computing", data_parallel(alone), alone.even).seconds
        assert computing is not None, "memory does not count"
        found["fsdp2"] = computing + gathering(workload, cluster, parts(workload, axes, computing), keep=keep)
    if workload.tensor:
        only = by_hand(workload, axes, waiting.constraints)
        tensor = baseline(waiting, "tensor", only, waiting.even)
        assert tensor.candidate is not None, "people write it so"
        found["tensor"] = tensor.seconds
    found["hap"] = plan.predicted_time
    return found


def without_communication(cluster: hap.Cluster) -> hap.Cluster:
    """The cluster with links that take no time, and memory for anything."""
    devices = [replace(device, memory=PLENTY) for device in cluster.devices]
    return hap.Cluster(devices, link=hap.Link(bandwidth=1e15, latency=0.0))


def gathering(workload: Workload, cluster: hap.Cluster, computing: dict[str, float], *, keep: bool) -> float:
    """Seconds of FSDP2's collectives, which gloo waits for where they begin: its padded ones, of a unit at a time.

    Those of the backward go on beside the computation of another unit, but for the last, which are the root's; this
    counts as long as a unit computes, at most. ``computing`` says how long, by unit.
    """
    modules = dict(workload.model().named_modules())
    sizes = {name: sum(one.numel() * one.itemsize for one in modules[name].parameters()) for name in ("", *computing)}
    sizes[""] -= sum(size for name, size in sizes.items() if name)
    even = (1,) * len(cluster.devices)
    found = 0.0
    for collective, backward in (
        ("all_gather", False),
        ("reduce_scatter", True),
        *(() if keep else (("all_gather", True),)),
    ):
        name = f"{collective}/padded"
        cost = cluster.collectives[name]
        for unit, size in sizes.items():
            beside = min(cluster.contention, computing.get(unit, 0.0)) if backward else 0.0
            found += cost.latency + moved(name, size, even) / cost.bandwidth + beside if size else 0.0
    return found


def parts(workload: Workload, axes: AxisGraph, seconds: float) -> dict[str, float]:
    """What each of the modules that FSDP2 gathers together, but for the root, computes of so many seconds.

    By its part of the floating-point operations.
    """
    found = {name: 0.0 for name, _ in workload.model().named_modules() if workload.is_unit(name)}
    each = seconds / sum(axes.flops)
    for operator, flops in zip(axes.graph.operators, axes.flops, strict=True):
        for name in found:
            if f"{operator.module}.".startswith(f"{name}."):
                found[name] += each * flops
    return found


def by_hand(workload: Workload, axes: AxisGraph, given: Constraints) -> Constraints:
    """What the styles of tensor parallelism say, beside what is given.

    Their weights are split, and all that is computed with these is shared along the same axes. All else is whole: no
    other operator sees summands.
    """
    graph, names, placements = axes.graph, set(), {}
    weights = {entry.name: entry.tensor for entry in graph.inputs if entry.kind == "parameter"}
    for operator, choices, layout in zip(graph.operators, axes.choices, axes.layout, strict=True):
        weight = weights.get(f"{operator.module}.weight")
        styles = [style for pattern, style in workload.tensor.items() if fnmatch(operator.module, pattern)]
        results = [result for result in operator.results if result is not None]
        # Gradients are added up before they are reduced.
        if layout or (operator.phase == "backward" and operator.target == torch.ops.aten.add.Tensor):
            continue
        if not styles:
            for result in results:
                shards = (f"S{number}" for number in range(len(axes.occurrences[result])))
                placements[graph.tensors[result].name] = ("R", *shards)
            continue
        if weight is None:
            continue
        dimension = 0 if styles[0] is ColwiseParallel else 1
        occurrences = axes.occurrences[weight]
        split = {each.axis: f"S{number}" for number, each in enumerate(occurrences) if each.dim == dimension}
        names |= {axes.axes[axis].name for axis in split}
        placements[f"{operator.module}.weight"] = (*split.values(),)
        for position, result in enumerate(results):
            ways = {str(*choice.outputs[position]) for choice in choices if choice.axis in split}
            if ways:
                placements[graph.tensors[result].name] = (*sorted(ways),)
    return msgspec.structs.replace(given, allowed_axes=(*sorted(names),), placements=placements)

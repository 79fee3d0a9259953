"""What hap's simulator says of a step of all systems."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatch

import msgspec
from benches.cluster.workloads import Batch, Workload
from torch.distributed.tensor.parallel import ColwiseParallel

import hap
from hap.planning.baselines import baseline, data_parallel, fully_sharded
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
        found["fsdp2"] = computing + gathering(workload, cluster, keep=keep)
    if workload.tensor:
        only = msgspec.structs.replace(waiting.constraints, allowed_axes=by_hand(workload, axes))
        found["tensor"] = baseline(waiting, "tensor", only, waiting.even).seconds
    found["hap"] = plan.predicted_time
    return found


def without_communication(cluster: hap.Cluster) -> hap.Cluster:
    """The cluster with links that take no time, and memory for anything."""
    devices = [replace(device, memory=PLENTY) for device in cluster.devices]
    return hap.Cluster(devices, link=hap.Link(bandwidth=1e15, latency=0.0))


def gathering(workload: Workload, cluster: hap.Cluster, *, keep: bool) -> float:
    """Seconds of FSDP2's collectives, which gloo waits for where they begin: its padded ones, of a unit at a time."""
    modules = dict(workload.model().named_modules())
    units = [name for name in modules if fnmatch(name, workload.units) and name.count(".") == workload.units.count(".")]
    sizes = [sum(one.numel() * one.itemsize for one in modules[name].parameters()) for name in units]
    sizes.append(sum(one.numel() * one.itemsize for one in modules[""].parameters()) - sum(sizes))
    even = (1,) * len(cluster.devices)
    found = 0.0
    for name, times in (("all_gather/padded", 1 if keep else 2), ("reduce_scatter/padded", 1)):
        cost = cluster.collectives[name]
        found += sum(times * (cost.latency + moved(name, size, even) / cost.bandwidth) for size in sizes if size)
    return found


def by_hand(workload: Workload, axes: AxisGraph) -> tuple[str, ...]:
    """The axes of the dimensions that the styles of tensor parallelism split."""
    found = set()
    for entry in axes.graph.inputs:
        module = entry.name.rpartition(".")[0]
        styles = [style for pattern, style in workload.tensor.items() if fnmatch(module, pattern)]
        if entry.kind == "parameter" and entry.name.endswith(".weight") and styles:
            split = 0 if styles[0] is ColwiseParallel else 1
            own = (each for each in axes.occurrences[entry.tensor] if each.place.dim == split)
            found |= {axes.axes[each.axis].name for each in own}
    return tuple(sorted(found))

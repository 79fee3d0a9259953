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
from hap.rules import AxisGraph, annotate


def predictions(
    workload: Workload, cluster: hap.Cluster, profiled: hap.Cluster, plan: hap.Plan, batch: Batch
) -> dict[str, float | None]:
    """Seconds of a step by name of a system, without the optimiser; ``None`` for what would not fit into memory.

    ``profiled`` is the cluster that ``plan`` is hap's plan for, and that decides on proportional shares.
    """
    axes = annotate(hap.trace(workload.model(), batch))
    problem = make_problem(axes, cluster)
    # On gloo FSDP2 waits for its collectives where they begin, and what tensor parallelism reduces is read at once.
    waiting = make_problem(axes, replace(cluster, overlap=0.0))
    padded = make_problem(axes, padded_only(replace(cluster, overlap=0.0)))
    proportional = make_problem(axes, profiled).proportional
    ways = {
        "ddp_even": (problem, data_parallel, problem.even),
        "ddp_proportional": (problem, data_parallel, proportional),
        "fsdp2": (padded, fully_sharded, padded.even),
    }
    found = {name: baseline(way, name, strategy(way), splits).seconds for name, (way, strategy, splits) in ways.items()}
    if workload.tensor:
        only = msgspec.structs.replace(waiting.constraints, allowed_axes=by_hand(workload, axes))
        found["tensor"] = baseline(waiting, "tensor", only, waiting.even).seconds
    found["hap"] = hap.simulate(plan, workload.model(), example_inputs=batch, devices=cluster).seconds
    return found


def padded_only(cluster: hap.Cluster) -> hap.Cluster:
    """The cluster on which nothing gathers or scatters faster than the collectives that FSDP2 uses."""
    costs = dict(cluster.collectives)
    for kind in ("all_gather", "reduce_scatter"):
        costs |= {f"{kind}/{other}": costs[f"{kind}/padded"] for other in ("exchange", "grouped")}
    return replace(cluster, collectives=costs)


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

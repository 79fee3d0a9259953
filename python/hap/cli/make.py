"""From what hap's functions return to what commands print."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hap.cli import results

if TYPE_CHECKING:
    from pathlib import Path

    import hap
    from hap.cluster import Cluster

# Of hap check: relative errors in float64 that are rounding, and how many roundings are of coarser types. Of 16 bits so
# many would let pass what is wrong: a program that loses one device's summand of several is off by a tenth and more.
TOLERANCE = 1e-8
ROUNDINGS = 100
COARSEST = 5e-2


def known() -> results.Devices:
    """The tables of accelerators and links, and the devices of this machine."""
    import torch

    from hap.cluster import ACCELERATORS, LINKS
    from hap.cluster.accelerators import recognised_name
    from hap.profiling.machine import machine

    count = torch.accelerator.device_count()
    kind = torch.accelerator.current_accelerator() if count else None
    here = [machine(torch.device(kind.type, index)) for index in range(count)] if kind else []
    return results.Devices(
        accelerators=tuple(
            results.Accelerator(name, figures.flops(tf32=False), figures.memory_bandwidth * 1e9, figures.memory * 1e9)
            for name, figures in ACCELERATORS.items()
        ),
        links=tuple(results.KnownLink(name, *figures) for name, figures in LINKS.items()),
        here=tuple(
            results.Here(each.name, each.memory, each.free, recognised_name(each.name, each.memory))
            for each in here or [machine(torch.device("cpu"))]
        ),
    )


def members(cluster: Cluster) -> tuple[results.Member, ...]:
    """The devices of a cluster."""
    return tuple(
        results.Member(each.name, each.speed, each.memory_bandwidth, each.usable_memory, bool(each.measured))
        for each in cluster.devices
    )


def collectives(cluster: Cluster) -> tuple[results.Collective, ...]:
    """The measured collectives of a cluster."""
    return tuple(
        results.Collective(name, cost.latency, cost.bandwidth, cost.error) for name, cost in cluster.collectives.items()
    )


def planned(plan: hap.Plan, output: str | None) -> results.Planned:
    """What a plan says."""
    from hap.explain.use import conversions

    devices = plan.cluster.devices
    return results.Planned(
        output=output,
        devices=tuple(device.name for device in devices),
        left_out=plan.left_out,
        active=plan.active,
        with_all=plan.with_all,
        predicted_time=plan.predicted_time,
        lower_bound=plan.lower_bound,
        optimality_gap=plan.optimality_gap,
        search_gap=plan.search_gap,
        predicted_memory=plan.predicted_memory,
        usable_memory=tuple(device.usable_memory for device in devices),
        splits=plan.split_units,
        baselines=plan.baselines,
        obstacles=dict(plan.obstacles),
        conversions=dict(sorted(conversions(plan).items())),
        replicated=tuple(each.operator for each in plan.replicated),
    )


def simulated(
    step: hap.SimulatedStep, cluster: Cluster, trace: Path | None, linear_program: Path | None
) -> results.Simulated:
    """What a simulated step says, with the files that were written."""
    return results.Simulated(
        seconds=step.seconds,
        compute=step.compute,
        communication=step.communication,
        memory=step.memory,
        usable_memory=tuple(device.usable_memory for device in cluster.devices),
        trace=None if trace is None else str(trace),
        linear_program=None if linear_program is None else str(linear_program),
    )


def checked(found: hap.CheckResult, tolerance: float | None) -> results.Checked:
    """What a check has found; without a tolerance, by that of the module's own precision."""
    import torch

    if tolerance is None:
        rounding = torch.finfo(getattr(torch, found.precision)).eps
        tolerance = min(max(TOLERANCE, ROUNDINGS * rounding), COARSEST)
    return results.Checked(
        precision=found.precision,
        equal=found.error <= tolerance,
        tolerance=tolerance,
        error=_finite(found.error),
        errors={name: _finite(error) for name, error in found.errors.items()},
        sharded_flops=found.sharded_flops,
        programs=found.programs,
        replicated=tuple(each.operator for each in found.replicated),
    )


def _finite(number: float) -> float | None:
    """JSON has no infinity."""
    return number if math.isfinite(number) else None

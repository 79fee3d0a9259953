"""Element types that a device has no fast instructions for: what they cost is known before training, and said then."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from hap.cluster import Cluster, Device
from hap.planning.engine import Engine
from hap.rules.costs import dtype_name, speed_dtype
from hap.units import listed, seconds_text

if TYPE_CHECKING:
    from hap.planning.outer import Found
    from hap.rules import AxisGraph

_log = logging.getLogger("hap")

# An element type counts where this part of all arithmetic is done in it. A plan that leaves a device out because of its
# lack costs nothing more, which is worth knowing too.
WORTH_MENTIONING = 0.01


def warn_of_slow_types(found: Found, axes: AxisGraph) -> None:
    """Warns of each element type that devices of the plan lack, with the predicted cost.

    The cost is the difference to the same plan where these devices compute as fast as in the fastest type that they
    have: float16 on a V100 that is asked for bfloat16, float32 on a GTX 1080 that is asked for float16. Devices
    that are left out, maybe for what they lack, cost nothing.
    """
    problem, best = found.problem, found.best
    engine, everybody = problem.engine, problem.job.devices
    for dtype in _types(axes):
        idle = [everybody[rank].name for rank in problem.left_out if everybody[rank].lacks(dtype)]
        if idle:
            _log.warning(
                "%s: no fast instructions for %s, and left out of the predicted %s a step",
                listed(dict.fromkeys(idle)),
                dtype,
                seconds_text(found.seconds),
            )
        lacking = [rank for rank, device in enumerate(engine.cluster.devices) if device.lacks(dtype)]
        if not lacking:
            continue
        devices = engine.cluster.devices
        names = listed(dict.fromkeys(devices[rank].name for rank in lacking))
        better = Engine(engine.graph, _faster(engine.cluster, dtype), optimiser=engine.optimiser)
        saved = best.simulation.seconds - better.simulate(best.program, best.splits).seconds
        others = listed(dict.fromkeys(_fastest(devices[rank]) for rank in lacking))
        _log.warning(
            "%s: no fast instructions for %s. Of the predicted %s a step, that costs %s, or more where the kernels "
            "convert; these would be saved in %s",
            names,
            dtype,
            seconds_text(found.seconds),
            seconds_text(max(0.0, saved)),
            others,
        )


def _types(axes: AxisGraph) -> list[str]:
    """The 16-bit element types that a noticeable part of the arithmetic is done in."""
    flops: dict[str, float] = defaultdict(float)
    for call, count in zip(axes.calls, axes.flops, strict=True):
        flops[dtype_name(speed_dtype(call))] += count
    return [dtype for dtype in ("bfloat16", "float16") if flops[dtype] > WORTH_MENTIONING * sum(flops.values())]


def _fastest(device: Device) -> str:
    """The element type that takes the place of one that the device lacks."""
    have = [dtype for dtype in ("float32", "float16", "bfloat16") if not device.lacks(dtype)]
    return max(have, key=device.rate)


def _faster(cluster: Cluster, dtype: str) -> Cluster:
    """The cluster as it would be if no device lacked the type."""

    def mended(device: Device) -> Device:
        if not device.lacks(dtype):
            return device
        measured = {name: points for name, points in device.measured.items() if not name.endswith(f"/{dtype}")}
        return replace(device, flops=device.flops | {dtype: device.rate(_fastest(device))}, measured=measured)

    return cluster.with_devices(map(mended, cluster.devices))

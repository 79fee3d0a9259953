"""Measures the machines of a job, all ranks together, and describes them as a cluster."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence

import msgspec
import torch
from rich import progress as bars
from rich.console import Console

from hap.cluster import COLLECTIVES, Cluster, CollectiveCost, Device, Link
from hap.cluster.accelerators import recognised_name
from hap.cluster.device import MEMORY, RESERVE, Points
from hap.errors import HapError
from hap.profiling import collectives, interference, operands, operators
from hap.profiling.clock import quartile
from hap.profiling.fingerprint import fingerprint
from hap.profiling.fit import Line
from hap.profiling.machine import Machine, machine
from hap.runtime.agree import Control, process_group
from hap.runtime.devices import own_accelerator
from hap.runtime.group import Group

_log = logging.getLogger("hap")

# Seconds for all operators, and for all collectives.
OPERATORS, TRANSFERS = 35.0, 35.0
QUICK_OPERATORS, QUICK_TRANSFERS = 2.0, 2.0
# Of the seconds for collectives, those beside for computation that overlaps them.
OVERLAPS = 0.2
# Ranks on equal hardware whose times differ by less are equal.
NOISE = 1.15
# A process that has its processor for less of the time is kept from it on purpose: what takes longer in between is as
# much a part of a collective's time as any other. In a step it has just computed, so that its quota is used up: so many
# seconds of computation see to that.
WHOLE, BUSY = 0.9, 0.03
# Fits that are off by more are told of.
POOR_FIT = 0.25


class Measured(msgspec.Struct, frozen=True):
    """What one rank has measured: its hardware, and the times of its operators by name."""

    machine: Machine
    points: dict[str, Points]


def profile(
    *, device: torch.device | str | None = None, dtypes: Sequence[torch.dtype] | None = None, quick: bool = False
) -> Cluster:
    """Measures every rank's operators and the collectives between them; called by all ranks of a job.

    The ranks are those of the default process group, which is made from the environment of ``torchrun`` if there is
    none. All measure at the same time, as they compute in training. It takes under two minutes, or some seconds if
    ``quick``; rank 0 shows a bar on a terminal. Nothing else should run meanwhile.

    Args:
        device: what this rank computes on; by default the accelerator of ``LOCAL_RANK``, or the CPU without one.
        dtypes: element types to measure; by default float32, and on accelerators float16 and bfloat16 too.
        quick: measures for a few seconds.

    Returns:
        The cluster, the same on all ranks: devices with measured times and their free memory, measured collectives, the
        link that these follow from, how far communication and computation that overlap slow each other, and the
        fingerprint of the hardware. Save it by :meth:`hap.Cluster.save`.

    Raises:
        CommunicationError: another rank has stopped.
        HapError: the ranks compute on devices of different types, or an element type cannot be computed with.
    """
    ranks = process_group(None)
    control, group = Control(ranks), Group(ranks)
    where = own_accelerator() or torch.device("cpu") if device is None else torch.device(device)
    kinds = Counter(control.gather(where.type, "comparing devices"))
    if len(kinds) > 1:
        raise HapError(f"profile: all ranks must compute on one type of device, got {dict(kinds)}: pass device=")
    if dtypes is None:
        dtypes = (torch.float32,) if where.type == "cpu" else (torch.float32, torch.float16, torch.bfloat16)
    operator_seconds, transfer_seconds = (QUICK_OPERATORS, QUICK_TRANSFERS) if quick else (OPERATORS, TRANSFERS)
    names = COLLECTIVES if control.size > 1 else ()
    bar = bars.Progress(
        bars.TextColumn("hap: measuring {task.description}"),
        bars.BarColumn(),
        bars.TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=control.rank != 0 or not Console(stderr=True).is_terminal,
    )
    with bar, torch.no_grad():
        control.numbers((0,), "waiting for all ranks")
        task = bar.add_task("operators", total=operator_seconds + (transfer_seconds if names else 0.0))
        started = time.perf_counter()

        def advance() -> None:
            bar.update(task, completed=time.perf_counter() - started)

        points, share = control.together(
            lambda: operators.measure(tuple(dtypes), where, seconds=operator_seconds, advance=advance),
            "measuring operators",
        )
        bar.update(task, description="collectives")
        shared = min(control.gather(share, "comparing shares of processors")) < WHOLE
        estimate, busy = (statistics.fmean, 0.0 if quick else BUSY) if shared else (quartile, 0.0)
        sizes = collectives.FEW_SIZES if quick else collectives.SIZES
        lines = collectives.measure(
            names, group, control, where,
            seconds=transfer_seconds, sizes=sizes, busy=busy, estimate=estimate, advance=advance,
        )  # fmt: skip
        bar.update(task, description="both at once")
        disturbed = (0.0, 0.0)
        if names:
            disturbed = interference.measure(group, control, where, seconds=OVERLAPS * transfer_seconds, busy=busy)
    everybody = control.gather(Measured(machine(where), slowed(points, share)), "exchanging measurements")
    for name, line in lines.items():
        level = logging.WARNING if line.error > POOR_FIT and control.rank == 0 else logging.DEBUG
        _log.log(level, "profile: the times of %s are off their line by %.0f%%", name, 100.0 * line.error)
    # By one rank, as others may compute the last digit otherwise.
    described = control.settle(lambda: describe(everybody, lines, disturbed).to_json(), "describing the cluster")
    return Cluster.from_json(described)


def slowed(points: dict[str, Points], share: float) -> dict[str, Points]:
    """What points become that a process measured while it had its processor, of which it has a share."""
    return {name: tuple((amount, seconds / share) for amount, seconds in line) for name, line in points.items()}


def describe(
    everybody: Sequence[Measured], lines: dict[str, Line], disturbed: tuple[float, float] = (0.0, 0.0)
) -> Cluster:
    """The cluster that these measurements, by rank, describe; ``disturbed`` are its interference and contention."""
    mark = fingerprint([measured.machine for measured in everybody])
    everybody = alike(everybody)
    hosts = Counter(measured.machine.host for measured in everybody if measured.machine.threads)
    devices = [
        # Processes on CPUs share the memory of their host.
        _device(measured, measured.machine.free / (hosts[measured.machine.host] or 1))
        for measured in everybody
    ]
    if not lines:
        return Cluster(devices, link=Link(bandwidth=1e12, latency=0.0), fingerprint=mark)
    # What has no collective of its own is an exchange: each rank waits for all others.
    exchange = lines["all_to_all/exchange"]
    others = len(everybody) - 1
    costs = {
        name: CollectiveCost(latency=line.latency, bandwidth=line.rate, error=line.error)
        for name, line in lines.items()
    }
    link = Link(bandwidth=exchange.rate, latency=exchange.latency / others)
    # Collectives of programs are waited for at the first use of their results.
    interfering, contending = disturbed
    return Cluster(
        devices,
        link=link,
        overlap=1.0,
        interference=interfering,
        contention=contending,
        collectives=costs,
        fingerprint=mark,
    )


def alike(everybody: Sequence[Measured]) -> list[Measured]:
    """Ranks on equal hardware that are as fast, but for noise, have the same times: their means.

    Else no two devices would be equal, and equal ones would get unequal work. Ranks on equal hardware of which one is
    throttled are not as fast.
    """
    found = list(everybody)
    kinds: dict[tuple[object, ...], list[int]] = {}
    for rank, measured in enumerate(everybody):
        hardware = measured.machine
        kinds.setdefault((hardware.name, hardware.memory, hardware.threads), []).append(rank)
    for ranks in kinds.values():
        times = {rank: _common_times(everybody[rank], [everybody[other] for other in ranks]) for rank in ranks}
        classes: list[list[int]] = []
        for rank in sorted(ranks, key=lambda rank: times[rank]):
            if classes and times[rank] <= NOISE * times[classes[-1][0]]:
                classes[-1].append(rank)
            else:
                classes.append([rank])
        for members in classes:
            points = _means([everybody[rank].points for rank in members])
            free = min(everybody[rank].machine.free for rank in members)
            for rank in members:
                hardware = msgspec.structs.replace(everybody[rank].machine, free=free)
                found[rank] = Measured(hardware, points)
    return found


def _common_times(measured: Measured, others: Sequence[Measured]) -> float:
    """The geometric mean of a rank's times at the amounts that all have measured."""
    total = 0.0
    for name, points in measured.points.items():
        shared = set.intersection(*({amount for amount, _ in other.points[name]} for other in others))
        total += statistics.fmean(math.log(seconds) for amount, seconds in points if amount in shared)
    return math.exp(total / len(measured.points))


def _means(lists: Sequence[dict[str, Points]]) -> dict[str, Points]:
    """By name, the mean times of the amounts that all lists hold; both still rise."""
    found = {}
    for name in lists[0]:
        tables = [dict(points[name]) for points in lists]
        amounts = sorted(set.intersection(*map(set, tables)))
        found[name] = tuple((amount, statistics.fmean(table[amount] for table in tables)) for amount in amounts)
    return found


def _device(measured: Measured, memory: float) -> Device:
    """A device by its measured points; its figures are those of the largest problems, with their operands."""
    points = measured.points

    def rate(name: str) -> float:
        (amount, seconds) = points[name][-1]
        return amount / seconds

    flops = {name.split("/")[1]: rate(name) for name in points if name.startswith("matmul/")}
    hardware = measured.machine
    return Device(
        recognised_name(hardware.name, hardware.memory) or hardware.name,
        flops=flops,
        memory_bandwidth=rate(MEMORY),
        memory=memory,
        reserve=0.0 if hardware.threads else min(RESERVE, 0.1 * memory),
        launch_overhead=points[MEMORY][0][1],
        measured=operands.told_apart(points),
    )

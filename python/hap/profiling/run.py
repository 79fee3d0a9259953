"""Measures the machines of a job, all ranks together, and describes them as a cluster."""

from __future__ import annotations

import logging
import statistics
import time
from collections import Counter
from collections.abc import Sequence

import torch
from rich import progress as bars
from rich.console import Console

from hap.cluster import COLLECTIVES, Cluster
from hap.cluster.device import Points
from hap.errors import HapError
from hap.profiling import collectives, hosts, interference, operators
from hap.profiling.clock import quartile
from hap.profiling.describe import Measured, describe
from hap.profiling.machine import machine
from hap.runtime.agree import Control, process_group
from hap.runtime.devices import own_accelerator
from hap.runtime.group import Group

_log = logging.getLogger("hap")

# Seconds for all operators, and for all collectives.
OPERATORS, TRANSFERS = 35.0, 35.0
QUICK_OPERATORS, QUICK_TRANSFERS = 2.0, 2.0
# Seconds for the exchanges within hosts, where there are several.
INSIDE, QUICK_INSIDE = 3.0, 0.5
# Of the seconds for collectives, those beside for computation that overlaps them.
OVERLAPS = 0.2
# A process that has its processor for less of the time is kept from it on purpose: what takes longer in between is as
# much a part of a collective's time as any other. In a step it has just computed, so that its quota is used up: so many
# seconds of computation see to that.
WHOLE, BUSY = 0.9, 0.03
# Fits that are off by more are told of.
POOR_FIT = 0.25


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
        fingerprint of the hardware. On several hosts it is a tree of them, each with its own link, unless the ranks of
        some are among those of others. Save it by :meth:`hap.Cluster.save`.

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
        bar.update(task, description="hosts")
        found, inside = hosts.hosts_of(control.gather(machine(where).host, "comparing hosts")), None
        if found:
            seconds = QUICK_INSIDE if quick else INSIDE
            inside = hosts.measure(found, group, control, where, seconds=seconds, busy=busy, estimate=estimate)
    mine = Measured(machine(where), slowed(points, share), inside)
    everybody = control.gather(mine, "exchanging measurements")
    for name, line in lines.items():
        level = logging.WARNING if line.error > POOR_FIT and control.rank == 0 else logging.DEBUG
        _log.log(level, "profile: the times of %s are off their line by %.0f%%", name, 100.0 * line.error)
    # By one rank, as others may compute the last digit otherwise.
    described = control.settle(lambda: describe(everybody, lines, disturbed).to_json(), "describing the cluster")
    return Cluster.from_json(described)


def slowed(points: dict[str, Points], share: float) -> dict[str, Points]:
    """What points become that a process measured while it had its processor, of which it has a share."""
    return {name: tuple((amount, seconds / share) for amount, seconds in line) for name, line in points.items()}

"""The hosts of a job, and how fast the ranks of each exchange among themselves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

from hap.profiling import collectives
from hap.profiling.fit import Line
from hap.runtime.agree import Control
from hap.runtime.group import Group

# What has no collective of its own is an exchange: each rank waits for all others.
EXCHANGE = "all_to_all/exchange"


def hosts_of(names: Sequence[str]) -> list[tuple[int, ...]]:
    """The ranks of each host, in order, from the names of their hosts by rank.

    Empty where there is one host only, or ranks of some are among those of another: a cluster keeps the order of ranks.
    """
    runs = [[rank for rank, _ in run] for _, run in itertools.groupby(enumerate(names), key=lambda entry: entry[1])]
    return [tuple(run) for run in runs] if 1 < len(runs) == len({*names}) else []


def measure(
    hosts: Sequence[tuple[int, ...]],
    group: Group,
    control: Control,
    device: torch.device,
    *,
    seconds: float,
    busy: float,
    estimate: Callable[[Sequence[float]], float],
) -> Line | None:
    """The exchange among the ranks of this rank's host, fitted; ``None`` where it is alone there.

    Called by all ranks; hosts measure at the same time. The last four arguments are those of
    :func:`hap.profiling.collectives.measure`.
    """
    # A group is made by all ranks, in the same order.
    made = [(group.among(ranks), control.among(ranks)) for ranks in hosts if len(ranks) > 1]
    inside = next(((some, few) for some, few in made if some is not None and few is not None), None)

    def exchange() -> Line | None:
        if inside is None:
            return None
        return collectives.measure(
            (EXCHANGE,), *inside, device,
            seconds=seconds, sizes=collectives.FEW_SIZES, busy=busy, estimate=estimate,
        )[EXCHANGE]  # fmt: skip

    # All have ended before any group is closed.
    line = control.together(exchange, "measuring within hosts")
    for each in inside or ():
        each.close()
    return line

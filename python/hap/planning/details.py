"""What a plan also tells people: where its operators come from, its step by the clock, and what strategies would take.

Runs need nothing of it. It lies in the plan file, so that a report can be made from that alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from hap.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hap.balance import Simulation
    from hap.planning.engine import Timeline
    from hap.planning.outer import Found
    from hap.program import Program
    from hap.rules import AxisGraph

DIGITS = 12
"""Decimals of seconds that are kept: one picosecond."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where operators come from.

    Attributes:
        source: the user's source line, ``model.py:12: x = self.fc(x)``; empty where there is none.
        module: path of the user's module, ``transformer.h.0.attn``; empty at the root.
        phase: the pass that they belong to.
    """

    source: str
    module: str
    phase: Literal["forward", "backward"]


class Busy(msgspec.Struct, frozen=True, array_like=True):
    """What a stream does from ``start`` to ``end``, in seconds since the step began.

    ``instruction`` is the position in the program; of a bucket of all-reduces, that of its first.
    """

    instruction: int
    start: float
    end: float


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The step of one device: what it computes when, and from when on it holds how many bytes."""

    computation: tuple[Busy, ...]
    memory: tuple[tuple[float, int], ...]


class Strategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A well-known strategy on all devices, whether it fits their memory or not.

    Attributes:
        seconds: of a step.
        compute: seconds of computation by device.
        communication: seconds of all collectives.
        memory: peak bytes by device.
    """

    seconds: float
    compute: tuple[float, ...]
    communication: float
    memory: tuple[int, ...]


class Details(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See the module.

    Attributes:
        places: where operators come from.
        operators: by name of an operator, its index in ``places``.
        line_of: by active device, its index in ``lines``: equal devices with equal shares do the same.
        lines: the steps of different devices.
        communication: the collectives, in which all active devices take part.
        strategies: those of the plan's baselines that are possible.
    """

    places: tuple[Place, ...]
    operators: dict[str, int]
    line_of: tuple[int, ...]
    lines: tuple[Line, ...]
    communication: tuple[Busy, ...]
    strategies: dict[str, Strategy]


def make_details(found: Found, axes: AxisGraph) -> Details:
    """The details of what the search found for this graph."""
    step = found.problem.engine.timeline(found.best.program, found.best.splits)
    firsts = sorted(set(step.kinds))
    lines = [
        Line(_stream(step, first, "computation"), tuple((round(start, DIGITS), round(held)) for start, held in memory))
        for first, memory in zip(firsts, step.memory_timeline, strict=True)
    ]
    places: dict[Place, int] = {}
    operators = {
        each.name: places.setdefault(Place(each.source, each.module, each.phase), len(places))
        for each in axes.graph.operators
    }
    count = len(found.problem.job.devices)
    return Details(
        places=tuple(places),
        operators=operators,
        line_of=tuple(firsts.index(first) for first in step.kinds),
        lines=tuple(lines),
        communication=_stream(step, firsts[0], "communication"),
        strategies={
            baseline.name: _strategy(baseline.candidate.simulation, found.problem.devices, count)
            for baseline in found.baselines
            if baseline.candidate is not None
        },
    )


def _stream(step: Timeline, device: int, stream: str) -> tuple[Busy, ...]:
    own = (each for each in step.timeline if (each.device, each.stream) == (device, stream))
    return tuple(Busy(each.instruction, round(each.start, DIGITS), round(each.end, DIGITS)) for each in own)


def _strategy(step: Simulation, active: Sequence[int], count: int) -> Strategy:
    """On all devices of the job, or on those that the user has said are active; the others have nothing to do."""
    ranks = range(count) if len(step.compute) == count else active
    compute, memory = dict(zip(ranks, step.compute, strict=True)), dict(zip(ranks, step.memory, strict=True))
    return Strategy(
        step.seconds,
        tuple(compute.get(rank, 0.0) for rank in range(count)),
        step.communication,
        tuple(round(memory.get(rank, 0.0)) for rank in range(count)),
    )


def check_details(details: Details, program: Program, active: int, devices: int) -> None:
    """What types alone do not say, of a plan with so many active devices among so many. Raises ``PlanError``."""
    for name, place in details.operators.items():
        if not 0 <= place < len(details.places):
            raise PlanError(f"details.operators.{name}: expected an index of places, got {place}")
    if len(details.line_of) != active or not set(details.line_of) <= set(range(len(details.lines))):
        raise PlanError(
            f"details.line_of: expected {active} indices of lines, one per active device, got {list(details.line_of)}"
        )
    streams = {f"lines[{number}].computation": line.computation for number, line in enumerate(details.lines)}
    for path, stream in {**streams, "communication": details.communication}.items():
        last = 0.0
        for number, busy in enumerate(stream):
            if not (0 <= busy.instruction < len(program.instructions) and last <= busy.start <= busy.end):
                raise PlanError(
                    f"details.{path}[{number}]: expected an instruction of the program, and times that rise, "
                    f"got {busy.instruction}, {busy.start}, {busy.end}"
                )
            last = busy.end
    for number, line in enumerate(details.lines):
        for place, (start, held) in enumerate(line.memory):
            if start < 0.0 or held < 0:
                raise PlanError(f"details.lines[{number}].memory[{place}]: expected numbers of at least 0")
    for name, strategy in details.strategies.items():
        if len(strategy.compute) != devices or len(strategy.memory) != devices:
            raise PlanError(f"details.strategies.{name}: expected one entry per device ({devices})")

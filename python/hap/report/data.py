"""What a report says, as plain data, of a plan alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from hap.explain import DeviceUse, explain
from hap.explain.use import details_of
from hap.planning.details import Busy, Details
from hap.planning.plan import Plan
from hap.planning.text import notes, program_text, split_alike
from hap.program import Compute, Convert
from hap.units import bytes_text, seconds_text


class Split(msgspec.Struct, frozen=True):
    """Axes, and split classes of some, whose units are shared out alike; ``units`` by device."""

    names: tuple[str, ...]
    units: tuple[int, ...]


class Strategy(msgspec.Struct, frozen=True):
    """A strategy beside others: seconds of a step, the most bytes on a device, and why it cannot be, if so."""

    name: str
    seconds: float | None
    memory: int | None
    obstacle: str


class Row(msgspec.Struct, frozen=True, array_like=True):
    """An instruction: its line of the program, where it comes from."""

    text: str
    source: str
    module: str
    phase: str


class Line(msgspec.Struct, frozen=True):
    """The step of devices that do the same.

    Attributes:
        devices: their ranks.
        name: for people.
        busy: instruction, start, end; one after another.
        memory: from when on, and how many bytes.
        usable: bytes that they may use, at least.
    """

    devices: tuple[int, ...]
    name: str
    busy: tuple[float, ...]
    memory: tuple[tuple[float, int], ...]
    usable: float


class Contents(msgspec.Struct, frozen=True):
    """All that is in a report."""

    title: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    seconds: float
    devices: tuple[DeviceUse, ...]
    splits: tuple[Split, ...]
    strategies: tuple[Strategy, ...]
    lines: tuple[Line, ...]
    communication: tuple[float, ...]
    program: tuple[Row, ...]


def contents(plan: Plan) -> Contents:
    """The contents of a plan's report. Raises ``PlanError`` where the plan has no details."""
    details, explained = details_of(plan), explain(plan)
    devices = tuple(explained.devices)
    return Contents(
        title=_title(devices),
        facts=_facts(plan),
        notes=tuple(notes(plan)),
        seconds=plan.predicted_time,
        devices=devices,
        splits=_splits(plan),
        strategies=_strategies(plan),
        lines=tuple(_line(plan, details, number) for number in range(len(details.lines))),
        communication=_flat(details.communication) if len(plan.stage.devices) > 1 else (),
        program=_program(plan),
    )


def _title(devices: Sequence[DeviceUse]) -> str:
    names = Counter(device.name for device in devices)
    return "hap plan for " + ", ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items())


def _facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    best = min((seconds for seconds in plan.baselines.values() if seconds is not None), default=None)
    gap = "not known" if plan.optimality_gap is None else f"at most {plan.optimality_gap:.1%} above the best possible"
    faster = "none fits" if best is None else f"{best / plan.predicted_time:.2f} times as fast as the best of them"
    # A device alone has nobody to send to.
    collectives = sum(
        isinstance(each, Convert) and each.implementation is not None and len(plan.stage.devices) > 1
        for each in plan.program.instructions
    )
    return (
        ("Step, predicted", seconds_text(plan.predicted_time)),
        ("Beside the baselines", faster),
        ("Under these splits", gap),
        ("Most memory on a device", bytes_text(max(plan.predicted_memory))),
        ("Devices at work", f"{len(plan.stage.devices)} of {len(plan.predicted_memory)}"),
        ("Instructions", f"{len(plan.program.instructions)}, {collectives or 'none'} of them collectives"),
    )


def _splits(plan: Plan) -> tuple[Split, ...]:
    return tuple(Split(tuple(names), units) for units, names in split_alike(plan).items())


def _strategies(plan: Plan) -> tuple[Strategy, ...]:
    known = details_of(plan).strategies
    words = {"memory": "does not fit the memory", "impossible": "not possible here"}
    found = [Strategy("this plan", plan.predicted_time, max(plan.predicted_memory), "")]
    for name, seconds in plan.baselines.items():
        step = known.get(name)
        obstacle = words[plan.obstacles[name]] if seconds is None else ""
        found.append(
            Strategy(name, seconds if step is None else step.seconds, max(step.memory) if step else None, obstacle)
        )
    return tuple(found)


def _line(plan: Plan, details: Details, number: int) -> Line:
    line = details.lines[number]
    ranks = tuple(rank for rank, own in zip(plan.stage.devices, details.line_of, strict=True) if own == number)
    devices = [plan.cluster.devices[rank] for rank in ranks]
    name = " ".join(dict.fromkeys(device.name for device in devices))
    return Line(ranks, name, _flat(line.computation), line.memory, min(device.usable_memory for device in devices))


def _flat(stream: Iterable[Busy]) -> tuple[float, ...]:
    return tuple(value for busy in stream for value in (busy.instruction, busy.start, busy.end))


def _program(plan: Plan) -> tuple[Row, ...]:
    details = details_of(plan)
    found = []
    for instruction, text in zip(plan.program.instructions, program_text(plan.program).splitlines(), strict=True):
        place = None
        if isinstance(instruction, Compute):
            place = details.places[details.operators[instruction.operator]]
        found.append(Row(text, place.source, place.module, place.phase) if place else Row(text, "", "", ""))
    return tuple(found)

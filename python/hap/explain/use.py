"""What a plan does with its axes, devices and operators: read from its program and its details."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from hap.balance import largest_remainder
from hap.errors import PlanError
from hap.explain.data import AxisUse, DeviceUse, Explanation, OperatorUse, Shares
from hap.planning.details import Details, Line
from hap.planning.plan import Plan
from hap.planning.text import notes
from hap.program import Compute, Convert, Program

# Of the memory that a device may use, the part from which memory is called its limit.
FULL = 0.95


def explain(plan: Plan, *, module: str | None = None, op: str | None = None, axis: str | None = None) -> Explanation:
    """What the plan splits over which devices, how each device spends the step, and the operators that are asked for.

    Args:
        plan: a plan.
        module: operators of the module of this path, and of what it holds.
        op: operators of this name, or whose name or target fits this pattern of :mod:`fnmatch`.
        axis: this axis alone, and the operators that share their work along it.

    Raises:
        PlanError: the plan has no details (it comes of an older version), or nothing that is called so.
    """
    details = details_of(plan)
    axes = [_axis(plan, details, name) for name in plan.split_units]
    if axis is not None:
        if axis not in plan.axes and axis not in plan.classes:
            raise PlanError(f'there is no axis "{axis}"; split are {", ".join(each.name for each in axes) or "none"}')
        axes = [each for each in axes if each.name == axis]
    asked = module is not None or op is not None or axis is not None
    return Explanation(
        step=plan.predicted_time,
        lower_bound=plan.lower_bound,
        notes=list(notes(plan)),
        axes=sorted(axes, key=lambda use: -use.work),
        devices=[_device(plan, details, rank) for rank in range(len(plan.predicted_memory))],
        operators=_operators(plan, details, module, op, axis) if asked else [],
    )


def details_of(plan: Plan) -> Details:
    """The plan's details. Raises ``PlanError`` where it has none."""
    if plan.details is None:
        raise PlanError("the plan tells no details, as it comes of an older version of hap: plan again with hap plan")
    return plan.details


def _axis(plan: Plan, details: Details, name: str) -> AxisUse:
    instructions = plan.program.instructions
    along = {number for number, each in enumerate(instructions) if isinstance(each, Compute) and each.axis == name}
    moves = [busy for busy in details.communication if getattr(instructions[busy.instruction], "axis", None) == name]
    computed = [(busy, line) for line in _by_device(details) for busy in line.computation]
    total = sum(busy.end - busy.start for busy, _ in computed)
    own = sum(busy.end - busy.start for busy, _ in computed if busy.instruction in along)
    units = plan.units(name)
    return AxisUse(
        name=name,
        size=sum(units),
        units=units,
        shares=_shares(plan, plan.splits[name]),
        operators=len(along),
        work=own / total if total else 0.0,
        collectives=len(moves),
        communication=math.fsum(busy.end - busy.start for busy in moves),
    )


def _by_device(details: Details) -> list[Line]:
    """The line of each active device."""
    return [details.lines[number] for number in details.line_of]


def _shares(plan: Plan, units: Sequence[int]) -> Shares:
    """What units are in proportion to, to one unit."""
    devices = [plan.cluster.devices[rank] for rank in plan.stage.devices]
    weights: list[tuple[Shares, list[float]]] = [
        ("even", [1.0 for _ in devices]),
        ("speed", [device.speed for device in devices]),
        ("memory", [device.usable_memory for device in devices]),
    ]
    for name, each in weights:
        expected = largest_remainder([weight / sum(each) for weight in each], sum(units))
        if all(abs(one - other) <= 1 for one, other in zip(expected, units, strict=True)):
            return name
    return "other"


def _device(plan: Plan, details: Details, rank: int) -> DeviceUse:
    device, memory, step = plan.cluster.devices[rank], plan.predicted_memory[rank], plan.predicted_time
    active = rank in plan.stage.devices
    line = details.lines[details.line_of[plan.stage.devices.index(rank)]] if active else None
    computing = merged((busy.start, busy.end) for busy in line.computation) if line else []
    sending = merged((busy.start, busy.end) for busy in details.communication) if line else []
    both = overlap(computing, sending)
    alone, sent = (sum(end - start for start, end in spans) - both for spans in (computing, sending))
    waiting = max(0.0, step - alone - sent - both)
    limit: Literal["compute", "link", "others", "memory", "idle"] = "others"
    if not active:
        limit = "idle"
    elif memory >= FULL * device.usable_memory:
        limit = "memory"
    elif max(alone + both, sent) >= waiting:
        limit = "compute" if alone + both >= sent else "link"
    return DeviceUse(
        rank=rank,
        name=device.name,
        computing=alone,
        communicating=sent,
        both=both,
        waiting=waiting,
        memory=memory,
        usable=device.usable_memory,
        limit=limit,
    )


def merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans of time without overlaps, ascending."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def overlap(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> float:
    """Seconds in which both are, of spans without overlaps, ascending."""
    total, a, b = 0.0, 0, 0
    while a < len(one) and b < len(other):
        total += max(0.0, min(one[a][1], other[b][1]) - max(one[a][0], other[b][0]))
        if one[a][1] <= other[b][1]:
            a += 1
        else:
            b += 1
    return total


def _operators(plan: Plan, details: Details, module: str | None, op: str | None, axis: str | None) -> list[OperatorUse]:
    """The operators that all of the arguments ask for, in the program's order."""
    runs: dict[str, list[int]] = {}
    for number, each in enumerate(plan.program.instructions):
        if isinstance(each, Compute):
            runs.setdefault(each.operator, []).append(number)
    seconds: list[dict[int, float]] = [{} for _ in details.lines]
    for line, found in zip(details.lines, seconds, strict=True):
        for busy in line.computation:
            found[busy.instruction] = found.get(busy.instruction, 0.0) + busy.end - busy.start
    by_rank = dict(zip(plan.stage.devices, details.line_of, strict=True))
    uses = []
    for name, numbers in runs.items():
        first = plan.program.instructions[numbers[0]]
        assert isinstance(first, Compute), "runs are of operators"
        place = details.places[details.operators[name]]
        if op is not None and not (op == name or fnmatchcase(name, op) or fnmatchcase(first.target, op)):
            continue
        if module is not None and not (place.module == module or f"{place.module}.".startswith(f"{module}.")):
            continue
        if axis is not None and first.axis != axis:
            continue
        uses.append(
            OperatorUse(
                name=name,
                target=first.target,
                source=place.source,
                module=place.module,
                phase=place.phase,
                axis=first.axis,
                composite=first.composite,
                inputs=[(tensor, ",".join(placement)) for tensor, placement in first.inputs],
                outputs=[(tensor, ",".join(placement)) for tensor, placement in first.outputs],
                times=len(numbers),
                seconds=[
                    sum(seconds[by_rank[rank]].get(number, 0.0) for number in numbers) if rank in by_rank else 0.0
                    for rank in range(len(plan.predicted_memory))
                ],
            )
        )
    if not uses and axis is None:
        raise PlanError(f"the program has no operator {_asked(module, op)}; {_known(runs, details)}")
    return uses


def _asked(module: str | None, op: str | None) -> str:
    parts = [] if op is None else [f'that is or fits "{op}"']
    return " ".join([*parts, *([] if module is None else [f'in a module "{module}"'])])


def _known(runs: dict[str, list[int]], details: Details) -> str:
    modules = sorted({place.module for place in details.places if place.module})
    names = [*list(runs)[:5], "..."] if len(runs) > 5 else list(runs)
    return f"operators are {', '.join(names)}; modules are {', '.join(modules[:8])}{', ...' * (len(modules) > 8)}"


def conversions(plan: Plan) -> dict[str, int]:
    """How many conversions of each kind a plan's program has."""
    found: dict[str, int] = {}
    for each in plan.program.instructions:
        if isinstance(each, Convert):
            found[each.conversion] = found.get(each.conversion, 0) + 1
    return found


def first_runs(program: Program) -> dict[str, Compute]:
    """The first run of each operator, by its name, in the program's order."""
    found: dict[str, Compute] = {}
    for each in program.instructions:
        if isinstance(each, Compute):
            found.setdefault(each.operator, each)
    return found

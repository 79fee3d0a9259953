"""Plans and programs as people read them.

A value is written ``%tensor`` in the placement that it was first made in, ``%tensor.R`` in another one; its placement
stands where it is made. What is freed and made again bears its name again::

    %x: R = input
    %x.S0 = slice(%x, axis=batch)
    %mm: S0 = aten.mm(%x.S0, %w, axis=batch)
    %mm.R = all_gather(%mm, axis=batch, padded)
    return loss = %mm.R
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from hap.program import Compute, Convert, Free, InputInstruction, Placements, Program, SplitClass
from hap.units import bytes_text, counted, runs_text, seconds_text

if TYPE_CHECKING:
    from hap.cluster import Link
    from hap.planning.plan import Obstacle, Plan


_OBSTACLES: dict[Obstacle, str] = {"memory": "does not fit", "impossible": "not possible here"}


def program_text(program: Program) -> str:
    """The program, one instruction a line."""
    return "\n".join(_lines(program))


def plan_text(plan: Plan) -> str:
    """What the plan is for and predicts, then its program."""
    return "\n".join([*_header(plan), *_lines(plan.program)])


def _lines(program: Program) -> Iterator[str]:
    names: dict[tuple[str, Placements], str] = {}
    made: set[str] = set()

    def define(tensor: str, placement: Placements) -> str:
        """The name of a new value; with its placement, unless the name ends in it."""
        text = ",".join(placement)
        first = tensor not in made
        made.add(tensor)
        names.setdefault((tensor, placement), f"%{tensor}" if first else f"%{tensor}.{text}")
        name = names[tensor, placement]
        return f"{name}: {text}" if name == f"%{tensor}" else name

    def use(tensor: str, placement: Placements) -> str:
        return names.get((tensor, placement), f"%{tensor}.{','.join(placement)}")

    for instruction in program.instructions:
        if isinstance(instruction, InputInstruction):
            yield f"{define(instruction.tensor, instruction.placement)} = input"
        elif isinstance(instruction, Compute):
            operands = [use(tensor, placement) for tensor, placement in instruction.inputs]
            operands += [] if instruction.axis is None else [f"axis={instruction.axis}"]
            operands += [] if instruction.composite is None else [f"composite={instruction.composite}"]
            results = ", ".join(define(tensor, placement) for tensor, placement in instruction.outputs)
            yield f"{results} = {instruction.target.removesuffix('.default')}({', '.join(operands)})"
        elif isinstance(instruction, Convert):
            details = [use(instruction.tensor, instruction.source)]
            details += [] if instruction.axis is None else [f"axis={instruction.axis}"]
            details += [] if instruction.implementation in (None, "builtin") else [str(instruction.implementation)]
            result = define(instruction.tensor, instruction.target)
            yield f"{result} = {instruction.conversion}({', '.join(details)})"
        elif isinstance(instruction, Free):
            yield f"free({use(instruction.tensor, instruction.placement)})"
        else:
            value = use(instruction.tensor, instruction.placement)
            yield f"return {instruction.name} = {value}" if instruction.name else f"return {value}"


def _header(plan: Plan) -> Iterator[str]:
    devices = plan.cluster.devices
    yield f"# {len(devices)} device{'s' * (len(devices) != 1)}: {', '.join(counted(each.name for each in devices))}"
    yield from _commented(_links(plan))
    gap = "unknown" if plan.optimality_gap is None else f"{plan.optimality_gap:.2%}"
    yield (
        f"# predicted step {seconds_text(plan.predicted_time)}, at least {seconds_text(plan.lower_bound)} "
        f"(optimality gap {gap}, search gap {plan.search_gap:.2%}, "
        f"lost to rounding {plan.rounding_loss:.2%})"
    )
    baselines = (
        f"{name} {_OBSTACLES[plan.obstacles[name]] if seconds is None else seconds_text(seconds)}"
        for name, seconds in plan.baselines.items()
    )
    yield f"# baselines: {', '.join(baselines) or 'none'}"
    yield from _commented(_subsets(plan))
    yield from _commented(_constraints(plan))
    limits = (
        f"{bytes_text(used)} of {bytes_text(device.usable_memory)}"
        for used, device in zip(plan.predicted_memory, devices, strict=True)
    )
    yield f"# predicted memory: {', '.join(counted(limits, '{} x ({})'))}"
    for units, axes in split_alike(plan).items():
        yield f"# split {' '.join(str(count) for count in units)}: {', '.join(axes)}"
    yield from _commented(_remarks(plan))


def split_alike(plan: Plan) -> dict[tuple[int, ...], list[str]]:
    """By units of each device, the axes and classes that are split so."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, units in plan.split_units.items():
        groups.setdefault(tuple(units), []).append(name)
    return groups


def notes(plan: Plan) -> Iterator[str]:
    """What is to be known beside figures: links, devices left out, constraints, split classes, missing rules."""
    yield from _links(plan)
    yield from _subsets(plan)
    yield from _constraints(plan)
    yield from _remarks(plan)


def _commented(lines: Iterable[str]) -> Iterator[str]:
    return (f"# {line}" for line in lines)


def _links(plan: Plan) -> Iterator[str]:
    for link in dict.fromkeys(plan.cluster.links):
        yield f"{'no link given, assumed' if link.assumed else 'link'}: {_described(link)}"


def _constraints(plan: Plan) -> Iterator[str]:
    """What the plan was bound to."""
    if plan.forbidden_axes:
        yield f"forbidden axes: {', '.join(plan.forbidden_axes)}"
    if plan.required_axis is not None:
        yield f"required axis: {plan.required_axis}"
    for title, pins in (("pinned", plan.pin), ("forbidden", plan.forbid)):
        for name, placements in pins.items():
            yield f"{title} {name or 'the whole model'}: {' or '.join(placements)}"


def _remarks(plan: Plan) -> Iterator[str]:
    """Split classes, and operators without a rule."""
    for name, split_class in plan.classes.items():
        yield f"{name}: {_explained(plan.program, name, split_class)}"
    places: dict[tuple[str, str], list[str]] = {}
    for entry in plan.replicated:
        places.setdefault((entry.target, entry.source), []).append(entry.operator)
    for (target, source), names in places.items():
        where = f" at {source}" if source else ""
        yield f"no rule, whole on every device: {target.removesuffix('.default')} ({', '.join(names)}){where}"


def _subsets(plan: Plan) -> Iterator[str]:
    """Which devices are left out, and why; and where none has less to do than all."""
    if plan.left_out:
        yield f"left out: {left_out_text(plan)}"
    if len(plan.stage.devices) > 1 and not plan.split_units:
        yield "nothing is split: every device computes the whole, as collectives would take longer than they save"


def left_out_text(plan: Plan) -> str:
    """Which devices are left out, and why."""
    reason = "not all have the memory to take part"
    if plan.active is not None:
        reason = "others were to work"
    elif plan.with_all is not None:
        reason = f"with all devices {seconds_text(plan.with_all)}"
    return f"{_ranks(plan, plan.left_out)}; {reason}"


def _ranks(plan: Plan, ranks: Sequence[int]) -> str:
    """Such as ``devices 2-3 (2 x P100)``."""
    names = [plan.cluster.devices[rank].name for rank in ranks]
    return f"device{'s' * (len(ranks) != 1)} {runs_text(ranks)} ({', '.join(counted(names))})"


def _explained(program: Program, name: str, split_class: SplitClass) -> str:
    """Where a split class is used."""
    axis = split_class.axis
    if split_class.role == "storage":
        return f"{axis} as it is split at rest, where operators split it otherwise"
    operators = [each.operator for each in program.instructions if isinstance(each, Compute) and each.axis == name]
    stretch = f"{len(operators)} operators from {operators[0]} to {operators[-1]}" if operators else "collectives alone"
    moves = [each for each in program.instructions if isinstance(each, Convert) and each.conversion == "re_split"]
    count = sum(each.axis in (axis, name) for each in moves)
    return f"{axis} as it is split in a segment: {stretch}; {count} re-splits"


def _described(link: Link) -> str:
    figures = f"{link.bandwidth / 1e9:.3g} GB/s, latency {seconds_text(link.latency)}"
    return figures if link.name is None else f"{link.name}, {figures}"

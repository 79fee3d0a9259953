"""What explanations say: ``hap-explain-1`` and ``hap-compare-1``. Seconds, bytes; lists by device are in rank order."""

from __future__ import annotations

from typing import Literal

import msgspec

Shares = Literal["even", "speed", "memory", "other"]


class AxisUse(msgspec.Struct, frozen=True, kw_only=True):
    """An axis, or a further split class of one, that the program splits something along.

    Attributes:
        name: its name.
        size: its units in all.
        units: by device.
        shares: what they are in proportion to, to a unit: equal numbers, the devices' float32 speed, their memory.
        operators: how many instructions share their work along it.
        work: of the seconds that all devices compute in a step, the part in these.
        collectives: how many collectives gather, scatter or move along it, composite instructions' own included. Those
            that sum up whole tensors (all-reduces) are along none.
        communication: seconds of these.
    """

    name: str
    size: int
    units: list[int]
    shares: Shares
    operators: int
    work: float
    collectives: int
    communication: float


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """How a device spends a step; the four times add up to it.

    Attributes:
        rank: its rank.
        name: its name.
        computing: seconds of computation while no collective is under way.
        communicating: seconds of collectives while it does not compute.
        both: seconds of both.
        waiting: seconds of neither: it waits for other devices.
        memory: peak bytes.
        usable: bytes that it may use.
        limit: what the most of its step goes to; ``memory`` where its peak takes 95% of what it may use, so that more
            memory might allow another plan; ``idle`` where it is left out.
    """

    rank: int
    name: str
    computing: float
    communicating: float
    both: float
    waiting: float
    memory: int
    usable: float
    limit: Literal["compute", "link", "others", "memory", "idle"]


class OperatorUse(msgspec.Struct, frozen=True, kw_only=True):
    """An operator in the program.

    Attributes:
        name, target, source, module, phase: the operator, and where it comes from.
        axis: what its work is shared along; ``None`` where every device computes the whole.
        composite: the composite instruction that it is.
        inputs, outputs: its tensors with their placements.
        times: how often it runs in a step.
        seconds: of computation, by device; longer than alone where a collective slows it.
    """

    name: str
    target: str
    source: str
    module: str
    phase: str
    axis: str | None
    composite: str | None
    inputs: list[tuple[str, str]]
    outputs: list[tuple[str, str]]
    times: int
    seconds: list[float]


class Move(msgspec.Struct, frozen=True):
    """A conversion of a tensor from one placement to another, and its seconds, 0 where nothing is sent."""

    conversion: str
    tensor: str
    source: str
    target: str
    seconds: float


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run an operator, with all other operators and all that is stored as in the plan.

    Attributes:
        chosen: whether it is the plan's.
        axis, composite, inputs, outputs: as of :class:`OperatorUse`; placements alone.
        compute: seconds of the operator alone, by device.
        conversions: of its operands and results, in the program that is cheapest in communication.
        step: seconds of that program's step, simulated under the plan's splits; ``None`` where there is none. Of the
            plan's own choice it is the plan's where that is less.
        free_step: the best that was found where all other operators may be chosen anew, under the plan's splits and
            constraints: by syntheses at the prices of the plan's bottlenecks and of the slowest devices, and ``step``.
            A plan would balance splits again.
        obstacle: why there is no ``step``.
    """

    chosen: bool
    axis: str | None
    composite: str | None
    inputs: list[str]
    outputs: list[str]
    compute: list[float]
    conversions: list[Move]
    step: float | None
    free_step: float | None
    obstacle: str | None = None


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The plan made anew under one constraint more.

    Attributes:
        constraint: in words.
        before: predicted seconds of the plan.
        after: of the new one; ``None`` where there is none.
        obstacle: why not.
    """

    constraint: str
    before: float
    after: float | None
    obstacle: str | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``hap explain PLAN``.

    Attributes:
        step: predicted seconds.
        lower_bound: seconds that no program takes less than under these splits.
        notes: what else is to be known: links, devices left out and why, that nothing is split, constraints.
        axes: what the program splits, that which most is computed along first.
        devices: how each spends the step.
        operators: those that were asked for.
        alternatives: of the operator that was asked for, where the model is given.
        what_if: what was asked for.
    """

    format: Literal["hap-explain-1"] = "hap-explain-1"
    step: float
    lower_bound: float
    notes: list[str] = []
    axes: list[AxisUse]
    devices: list[DeviceUse]
    operators: list[OperatorUse] = []
    alternatives: list[Alternative] = []
    what_if: list[WhatIf] = []


class Changed(msgspec.Struct, frozen=True):
    """An operator that two plans run otherwise: the axis of each, and its tensors' placements."""

    name: str
    axes: tuple[str | None, str | None]
    placements: tuple[str, str]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``hap explain A B``; pairs are of the first plan and of the second.

    Attributes:
        same_graph: whether both are for one graph: else operators are compared by their names.
        devices: the names of their devices.
        step: predicted seconds.
        memory: peak bytes, by device.
        units: by axis or split class, units by device, where they differ; ``None`` where a plan splits nothing there.
        stored: by tensor that the step starts with, its placements, where they differ.
        operators: that run otherwise.
        only: operators that one plan alone has.
        conversions: by kind, how many there are, where they differ.
    """

    format: Literal["hap-compare-1"] = "hap-compare-1"
    same_graph: bool
    devices: tuple[list[str], list[str]]
    step: tuple[float, float]
    memory: tuple[list[int], list[int]]
    units: dict[str, tuple[list[int] | None, list[int] | None]]
    stored: dict[str, tuple[str | None, str | None]]
    operators: list[Changed]
    only: tuple[list[str], list[str]]
    conversions: dict[str, tuple[int, int]]

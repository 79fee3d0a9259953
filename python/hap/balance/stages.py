"""What balance knows of a program: its stages as affine terms in the shares, and an exact simulation of given splits.

Both come from the Rust core (:mod:`hap.planning.engine`); the tests also write them by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import msgspec

from hap.program import Splits

Shares: TypeAlias = dict[str, list[float]]
"""The fraction of an axis that each device gets, by the name of the axis; each list sums to one."""


class Affine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``constant + sum over axes of slopes[axis] * share of that axis``, for one device."""

    constant: float
    slopes: dict[str, float] = {}

    def at(self, shares: Shares, device: int) -> float:
        """Its value at these shares of a device."""
        return self.constant + sum(slope * shares[axis][device] for axis, slope in self.slopes.items())


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Work between two points where the devices wait for each other; it takes as long as its slowest device.

    ``devices`` holds the seconds of each device.
    """

    kind: Literal["compute", "collective"]
    name: str
    devices: tuple[Affine, ...]

    def seconds(self, shares: Shares) -> float:
        """How long the slowest device takes at these shares."""
        return max(term.at(shares, device) for device, term in enumerate(self.devices))


class Stages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program's step as a sum of stages, and the peak bytes of each device; both linearised at given shares."""

    stages: tuple[Stage, ...]
    memory: tuple[Affine, ...]

    def seconds(self, shares: Shares) -> float:
        """The step time at these shares: exact where they are the ones that the stages were linearised at."""
        return sum(stage.seconds(shares) for stage in self.stages)

    def excess(self, shares: Shares, capacity: Sequence[float]) -> float:
        """By how much the worst device exceeds its memory, as a fraction of that memory; 0 where all fit."""
        return worst_excess([term.at(shares, device) for device, term in enumerate(self.memory)], capacity)

    def axes(self) -> tuple[str, ...]:
        """The axes whose shares matter to time or memory, in alphabetical order."""
        terms = [term for stage in self.stages for term in stage.devices] + list(self.memory)
        return tuple(sorted({axis for term in terms for axis, slope in term.slopes.items() if slope != 0.0}))


class MemoryParts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a device's peak memory consists of, in bytes; ``buffers`` are those of communication."""

    parameters: float
    gradients: float
    optimiser: float
    activations: float
    buffers: float


class Simulation(msgspec.Struct, frozen=True):
    """One simulated step: seconds, seconds of computation by device, seconds of communication, peak bytes by device."""

    seconds: float
    compute: tuple[float, ...]
    communication: float
    memory: tuple[float, ...]
    memory_parts: tuple[MemoryParts, ...] = ()

    def excess(self, capacity: Sequence[float]) -> float:
        """By how much the worst device exceeds its memory, as a fraction of that memory; 0 where all fit."""
        return worst_excess(self.memory, capacity)


class Evaluator(Protocol):
    """One program on one cluster, evaluated under different shares and splits."""

    def stages(self, shares: Shares) -> Stages:
        """The program's stages, linearised at these shares."""

    def simulate(self, splits: Splits) -> Simulation:
        """The program's step under these splits."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What balance knows of the devices.

    Attributes:
        capacity: bytes of memory of each device.
        speeds: relative speed of each device, such as its FLOP/s.
        kinds: for each device the first one that is equal to it in every figure.
    """

    capacity: tuple[float, ...]
    speeds: tuple[float, ...]
    kinds: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.capacity)


def worst_excess(memory: Sequence[float], capacity: Sequence[float]) -> float:
    """Largest of ``memory / capacity - 1`` over the devices, but at least 0."""
    return max(0.0, *(used / limit - 1.0 for used, limit in zip(memory, capacity, strict=True)))

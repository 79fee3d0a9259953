"""What balance knows of a program: its stages as affine terms in the shares, and an exact simulation of given splits.

Both come from the Rust core (:mod:`hap.planning.engine`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from hap.program import Splits

Array: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = npt.NDArray[np.int64]
Marks: TypeAlias = npt.NDArray[np.bool_]

Shares: TypeAlias = dict[str, list[float]]
"""The fraction of an axis that each device gets, by the name of the axis; each list sums to one."""

LeftOut: TypeAlias = Mapping[str, Marks]
"""The devices whose share must be zero, by the name of the axis; nobody where an axis is absent."""


@dataclass(frozen=True, slots=True)
class Stages:
    """A program's step as a sum of stages, and the peak bytes of each device; both linearised at given shares.

    A stage is work between two points where the devices wait for each other: it takes as long as its slowest device.
    Everything is affine in the shares that matter, and the same for all devices of a kind; no two kinds agree in all.

    Attributes:
        axes: the axes that matter, in alphabetical order.
        kinds: kind by [device].
        counts: how many such stages there are, by [stage].
        computation: whether it is one of computation, by [stage]; else it is a collective.
        constants: seconds by [stage, kind].
        slopes: seconds per unit share by [stage, kind, axis].
        memory: bytes by [kind].
        memory_slopes: bytes per unit share by [kind, axis].
    """

    axes: tuple[str, ...]
    kinds: Numbers
    counts: Array
    computation: Marks
    constants: Array
    slopes: Array
    memory: Array
    memory_slopes: Array

    @classmethod
    def of(cls, axes: Sequence[str], kinds: Numbers, counts: Array, computation: Marks, terms: Array) -> Stages:
        """Stages of which several kinds may agree in all.

        ``terms`` has by [kind, stage] a constant and then a slope for each axis, behind the last stage those of memory.
        """
        first, of = alike(terms.reshape(len(terms), terms[0].size).T)
        terms = terms[first].swapaxes(0, 1)
        constants, slopes = np.array(terms[..., 0], order="C"), np.array(terms[..., 1:], order="C")
        return cls(tuple(axes), of[kinds], counts, computation, constants[:-1], slopes[:-1], constants[-1], slopes[-1])

    def fixing(self, shares: Shares) -> Stages:
        """The same with these shares of some axes: what they add is part of the constants."""
        fixed = np.array([axis in shares for axis in self.axes], dtype=np.bool_)
        if not fixed.any():
            return self
        columns = np.array([shares[axis] for axis in self.axes if axis in shares])
        # Devices of a kind differ where their shares do.
        first, of = alike(np.vstack([self.kinds, columns]))
        kinds = self.kinds[first]
        constants = np.vstack([self.constants, self.memory])[:, kinds]
        slopes = np.concatenate([self.slopes, self.memory_slopes[None]])[:, kinds]
        constants = constants + np.einsum("ska,ak->sk", slopes[..., fixed], columns[:, first])
        terms = np.concatenate([constants[..., None], slopes[..., ~fixed]], axis=2).swapaxes(0, 1)
        free = [axis for axis in self.axes if axis not in shares]
        return Stages.of(free, of, self.counts, self.computation, terms)

    def columns(self, shares: Shares) -> Array:
        """Shares by [axis, device]."""
        return np.array([shares[axis] for axis in self.axes], dtype=np.float64).reshape(len(self.axes), len(self.kinds))

    def times(self, columns: Array) -> Array:
        """Seconds of a stage by [stage, device], at these shares by [axis, device]."""
        # Devices of a kind with the same shares take the same time.
        first, of = alike(np.vstack([self.kinds, columns]))
        kinds = self.kinds[first]
        times: Array = self.constants[:, kinds] + np.einsum("ska,ak->sk", self.slopes[:, kinds], columns[:, first])
        return times[:, of]

    def bytes(self, columns: Array) -> Array:
        """Bytes by [device]."""
        found: Array = self.memory[self.kinds] + np.einsum("da,ad->d", self.memory_slopes[self.kinds], columns)
        return found

    def seconds(self, shares: Shares) -> float:
        """The step time at these shares: exact where they are the ones that the stages were linearised at."""
        return float(self.counts @ self.times(self.columns(shares)).max(axis=1, initial=0.0))

    def excess(self, shares: Shares, capacity: Sequence[float]) -> float:
        """By how much the worst device exceeds its memory, as a fraction of that memory; 0 where all fit."""
        return worst_excess(self.bytes(self.columns(shares)), capacity)


def alike(table: Array) -> tuple[Numbers, Numbers]:
    """Which columns are equal: the first one of each sort, in order; and by column the number of its sort."""
    numbers: dict[bytes, int] = {}
    # Adding 0.0 turns -0.0 into 0.0, which has other bytes.
    rows = np.array(table.T, order="C") + 0.0
    of = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows], dtype=np.int64)
    return np.unique(of, return_index=True)[1], of


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


def worst_excess(memory: Sequence[float] | Array, capacity: Sequence[float]) -> float:
    """Largest of ``memory / capacity - 1`` over the devices, but at least 0."""
    return float(np.max(np.asarray(memory) / np.asarray(capacity) - 1.0, initial=0.0))

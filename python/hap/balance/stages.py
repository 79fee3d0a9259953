"""What balance knows of a program: its stages as affine terms in the shares, and an exact simulation of given splits.

Both come from the Rust core (:mod:`hap.planning.engine`); the tests also write them by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

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


class Affine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``constant + sum over axes of slopes[axis] * share of that axis``, for one device."""

    constant: float
    slopes: dict[str, float] = {}

    def at(self, shares: Shares, device: int) -> float:
        """Its value at these shares of a device."""
        return self.constant + sum(slope * shares[axis][device] for axis, slope in self.slopes.items())


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Work between two points where the devices wait for each other; it takes as long as its slowest device.

    ``terms`` holds the seconds by kind of device, ``count`` how many such stages there are.
    """

    kind: Literal["compute", "collective"]
    name: str
    terms: tuple[Affine, ...]
    count: int = 1


class Stages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A program's step as a sum of stages, and the peak bytes of each device; both linearised at given shares.

    ``kinds`` says for each device which of the terms are its; ``memory`` is by kind of device, too.
    """

    kinds: tuple[int, ...]
    stages: tuple[Stage, ...]
    memory: tuple[Affine, ...]

    @cached_property
    def linear(self) -> Linear:
        """The same as arrays."""
        return _linear(self)

    def seconds(self, shares: Shares) -> float:
        """The step time at these shares: exact where they are the ones that the stages were linearised at."""
        linear = self.linear
        return float(linear.counts @ linear.times(linear.columns(shares)).max(axis=1, initial=0.0))

    def excess(self, shares: Shares, capacity: Sequence[float]) -> float:
        """By how much the worst device exceeds its memory, as a fraction of that memory; 0 where all fit."""
        return worst_excess(self.linear.bytes(self.linear.columns(shares)), capacity)

    def axes(self) -> tuple[str, ...]:
        """The axes whose shares matter to time or memory, in alphabetical order."""
        return self.linear.axes


@dataclass(frozen=True, slots=True)
class Linear:
    """Stages as arrays, over the axes that matter and over kinds of devices no two of which have equal terms.

    Attributes:
        axes: the axes that matter, in alphabetical order.
        kinds: kind by [device].
        constants: seconds by [stage, kind].
        slopes: seconds per unit share by [stage, kind, axis].
        counts: how many such stages there are, by [stage].
        computation: whether it is one of computation, by [stage].
        memory: bytes by [kind].
        memory_slopes: bytes per unit share by [kind, axis].
    """

    axes: tuple[str, ...]
    kinds: Numbers
    constants: Array
    slopes: Array
    counts: Array
    computation: Marks
    memory: Array
    memory_slopes: Array

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


def alike(table: Array) -> tuple[Numbers, Numbers]:
    """Which columns are equal: the first one of each sort, in order; and by column the number of its sort."""
    numbers: dict[bytes, int] = {}
    # Adding 0.0 turns -0.0 into 0.0, which has other bytes.
    rows = np.array(table.T, order="C") + 0.0
    of = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows], dtype=np.int64)
    return np.unique(of, return_index=True)[1], of


def _linear(stages: Stages) -> Linear:
    # Kinds that differ in shares of axes that do not matter have the same terms.
    by_kind = zip(*(stage.terms for stage in stages.stages), stages.memory, strict=True)
    numbers: dict[tuple[object, ...], int] = {}
    merged = []
    for of_kind in by_kind:
        key = tuple((term.constant, *term.slopes.items()) for term in of_kind)
        merged.append(numbers.setdefault(key, len(numbers)))
    first = [merged.index(number) for number in range(len(numbers))]
    terms = [stage.terms[kind] for stage in stages.stages for kind in first] + [stages.memory[kind] for kind in first]
    axes = tuple(sorted({axis for term in terms for axis, slope in term.slopes.items() if slope != 0.0}))
    columns = {axis: column for column, axis in enumerate(axes)}
    slopes = np.zeros((len(terms), len(axes)))
    entries = [
        (row, columns[axis], slope)
        for row, term in enumerate(terms)
        for axis, slope in term.slopes.items()
        if slope != 0.0
    ]
    if entries:
        rows, places, values = zip(*entries, strict=True)
        slopes[list(rows), list(places)] = values
    constants = np.array([term.constant for term in terms], dtype=np.float64)
    shape, timed = (len(stages.stages), len(first)), len(stages.stages) * len(first)
    return Linear(
        axes=axes,
        kinds=np.array([merged[kind] for kind in stages.kinds], dtype=np.int64),
        constants=constants[:timed].reshape(shape),
        slopes=slopes[:timed].reshape(*shape, len(axes)),
        counts=np.array([stage.count for stage in stages.stages], dtype=np.float64),
        computation=np.array([stage.kind == "compute" for stage in stages.stages], dtype=np.bool_),
        memory=constants[timed:],
        memory_slopes=slopes[timed:],
    )


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

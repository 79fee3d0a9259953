"""One device: an accelerator, or one CPU process."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hap.cluster.accelerators import ACCELERATORS, LAUNCH_OVERHEAD, canonical_name, nearest_names
from hap.cluster.figures import not_negative, positive
from hap.errors import ClusterError

FAMILIES = (
    "attention",
    "attention_backward",
    "convolution",
    "convolution_backward",
    "convolution_backward_operands",
    "convolution_operands",
    "copy",
    "indexing",
    "matmul",
    "matmul_operands",
    "normalisation",
    "pooling",
    "pooling_backward",
    "transcendental",
    "transcendental_backward",
)
"""Families of operators whose speed differs enough to be measured apart; of others it is that of the memory.

``matmul_operands`` and the like are what ``matmul`` takes beside its arithmetic, which counts where matrices are thin,
and convolutions where channels are few.
"""

MEMORY = "memory"
"""Where measured times of operators that only touch their elements stand."""

MUCH_SLOWER = 0.5
"""What is measured to reach less than this part of another element type's FLOP/s has no fast instructions."""

RESERVE = 1e9
"""Bytes that a known accelerator keeps, where nothing else is said."""


def reserve_of(memory: float, most: float = RESERVE) -> float:
    """Bytes that are left alone of memory that was found free: a tenth of it, at most ``most``."""
    return min(most, 0.1 * memory)


Points = tuple[tuple[float, float], ...]
"""Measured amounts of work and the seconds that they take; both rise, and there are two at least."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Device:
    """An accelerator, or one CPU process.

    Either a known accelerator by its name, ``Device("V100")``, whose figures may be overridden, or figures alone::

        Device(flops=3e12, memory_bandwidth=2e11, memory=8e9)
        Device("my board", flops={"float32": 3e12, "bfloat16": 1.2e13}, memory_bandwidth=2e11, memory=8e9)

    Attributes:
        name: for people; a known accelerator's name in its usual spelling.
        flops: FLOP/s by element type in PyTorch's names; ``"default"`` stands for every type without an entry.
        memory_bandwidth: bytes per second between the device and its memory.
        memory: bytes of its memory.
        reserve: bytes of it that are left to the library's context and to fragmentation.
        launch_overhead: seconds that starting one operator costs.
        measured: measured times of families of operators (:data:`FAMILIES`) by FLOP, such as ``matmul/float32`` (where
            nothing is multiplied, one for each element), and by bytes those of what ``memory`` bounds and those of
            ``matmul_operands/float32`` and the like, which are added. Between the points they are straight. What is not
            there follows from the figures above.
    """

    name: str
    flops: dict[str, float]
    memory_bandwidth: float
    memory: float
    reserve: float
    launch_overhead: float
    measured: dict[str, Points]

    def __init__(
        self,
        name: str | None = None,
        *,
        flops: float | Mapping[str, float] | Mapping[torch.dtype, float] | None = None,
        memory_bandwidth: float | None = None,
        memory: float | None = None,
        reserve: float | None = None,
        launch_overhead: float = LAUNCH_OVERHEAD,
        measured: Mapping[str, Sequence[tuple[float, float]]] | None = None,
        tf32: bool = False,
    ) -> None:
        """Looks a name up, or takes the figures given.

        Args:
            name: a known accelerator, or, with all figures given, any name.
            flops: FLOP/s, one number or by element type; ``"default"``, if not given, is that of float32 or the lowest.
            memory_bandwidth: bytes per second.
            memory: bytes.
            reserve: bytes that the training job may not use; by default 1e9 of a known accelerator's memory, none of
                a ``memory`` that is given.
            launch_overhead: seconds.
            measured: points of amount and seconds, as :func:`hap.profile` measures them.
            tf32: whether float32 work runs in TensorFloat-32, as after ``torch.set_float32_matmul_precision("high")``;
                read only for a known accelerator whose ``flops`` are not given.

        Raises:
            ClusterError: the name is not known and a figure is missing, or a figure is not a finite positive number.
        """
        if name is not None and not isinstance(name, str):
            raise ClusterError(f"Device: expected a name, got {name!r}")
        if not isinstance(tf32, bool):
            raise ClusterError(f"Device: tf32: expected True or False, got {tf32!r}")
        known = None if name is None else canonical_name(name)
        if known is not None:
            figures = ACCELERATORS[known]
            flops = figures.flops(tf32=tf32) if flops is None else flops
            memory_bandwidth = figures.memory_bandwidth * 1e9 if memory_bandwidth is None else memory_bandwidth
            reserve = RESERVE if memory is None and reserve is None else reserve
            memory = figures.memory * 1e9 if memory is None else memory
        given = {"flops": flops, "memory_bandwidth": memory_bandwidth, "memory": memory}
        missing = [field for field, value in given.items() if value is None]
        if missing and name is not None:
            raise ClusterError(_unknown(name, missing))
        if missing:
            raise ClusterError(
                f"Device: {', '.join(missing)} missing; give a known accelerator's name, or all of {', '.join(given)}"
            )
        label = known or name or "device"
        object.__setattr__(self, "name", label)
        object.__setattr__(self, "flops", _rates(flops, f'Device "{label}": flops'))
        object.__setattr__(self, "memory_bandwidth", positive(memory_bandwidth, f'Device "{label}": memory_bandwidth'))
        object.__setattr__(self, "memory", positive(memory, f'Device "{label}": memory'))
        object.__setattr__(self, "reserve", not_negative(reserve or 0.0, f'Device "{label}": reserve'))
        object.__setattr__(self, "measured", _measured(measured or {}, f'Device "{label}": measured'))
        if self.reserve >= self.memory:
            raise ClusterError(
                f'Device "{label}": reserve: expected less than its memory, {self.memory:g} bytes, got {self.reserve:g}'
            )
        object.__setattr__(self, "launch_overhead", not_negative(launch_overhead, f'Device "{label}": launch_overhead'))

    @property
    def usable_memory(self) -> float:
        """Bytes that the training job may use."""
        return self.memory - self.reserve

    def rate(self, dtype: str) -> float:
        """FLOP/s of an element type: its own, or the default."""
        return self.flops.get(dtype, self.flops["default"])

    def lacks(self, dtype: str) -> bool:
        """Whether it is known to have no fast instructions for an element type, such as ``"bfloat16"``.

        A known accelerator whose ``flops`` are not those of the data sheet, such as measured ones, is as fast as these
        say: it lacks what is :data:`MUCH_SLOWER` than its fastest type.
        """
        known = canonical_name(self.name)
        if known is None or not ACCELERATORS[known].lacks(dtype):
            return False
        sheet = any(self.flops == ACCELERATORS[known].flops(tf32=tf32) for tf32 in (False, True))
        return sheet or self.rate(dtype) < MUCH_SLOWER * max(self.flops.values())

    @property
    def speed(self) -> float:
        """FLOP/s of float32, or the default: what devices are compared by where the element type is open."""
        return self.rate("float32")

    def __repr__(self) -> str:
        if canonical_name(self.name) is not None and self == Device(self.name):
            return f'Device("{self.name}")'
        flops = self.flops["default"] if set(self.flops) == {"default"} else self.flops
        measured = f", measured={self.measured!r}" if self.measured else ""
        return (
            f'Device("{self.name}", flops={flops!r}, memory_bandwidth={self.memory_bandwidth!r}, '
            f"memory={self.memory!r}, reserve={self.reserve!r}, launch_overhead={self.launch_overhead!r}{measured})"
        )


def is_element_type(name: str) -> bool:
    """Whether ``flops`` may have this key: ``default``, or the name of a ``torch.dtype``."""
    return name == "default" or isinstance(getattr(torch, name, None), torch.dtype)


def _unknown(name: str, missing: list[str]) -> str:
    near = nearest_names(name)
    hint = f"did you mean {' or '.join(near)}?" if near else "hap devices lists the known ones."
    return (
        f'"{name}" is not a known accelerator: {hint} '
        f"For any other device give its figures too (missing: {', '.join(missing)})."
    )


def _measured(measured: Mapping[str, Sequence[tuple[float, float]]], field: str) -> dict[str, Points]:
    return {name: points_of(name, points, f'{field}["{name}"]') for name, points in sorted(measured.items())}


def points_of(name: str, points: object, field: str) -> Points:
    """Checked points of ``measured``.

    Raises:
        ClusterError: the name is not known, or the points are too few or do not rise.
    """
    family, _, dtype = name.partition("/")
    if name != MEMORY and not (family in FAMILIES and isinstance(getattr(torch, dtype, None), torch.dtype)):
        known = ", ".join(f"{family}/float32" for family in FAMILIES)
        raise ClusterError(f"{field}: unknown; expected memory, or a family and an element type, such as {known}")
    if not isinstance(points, (list, tuple)) or len(points) < 2:
        raise ClusterError(f"{field}: expected at least two points (amount, seconds), got {points!r}")
    for point in points:
        if not isinstance(point, (list, tuple)) or len(point) != 2:
            raise ClusterError(f"{field}: expected points (amount, seconds), got {point!r}")
    found = tuple((positive(amount, field), positive(seconds, field)) for amount, seconds in points)
    if any(one[0] >= other[0] or one[1] >= other[1] for one, other in itertools.pairwise(found)):
        raise ClusterError(f"{field}: expected points with rising amounts and rising seconds, got {points!r}")
    return found


def _rates(flops: object, field: str) -> dict[str, float]:
    """FLOP/s by element type, with ``default`` and in a fixed order."""
    if not isinstance(flops, Mapping):
        return {"default": positive(flops, field)}
    rates: dict[str, float] = {}
    for key, rate in flops.items():
        name = str(key).removeprefix("torch.")
        if not is_element_type(name):
            raise ClusterError(
                f'{field}: "{key}" is not an element type; expected "default" or a PyTorch name such as "float32"'
            )
        rates[name] = positive(rate, f"{field}.{name}")
    if not rates:
        raise ClusterError(f"{field}: expected at least one element type")
    rates.setdefault("default", rates.get("float32", min(rates.values())))
    return dict(sorted(rates.items()))

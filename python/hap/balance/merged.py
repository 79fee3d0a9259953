"""The ratio problem with everything merged that is alike: devices into classes, stages into blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hap.balance.stages import Array, LeftOut, Numbers, Shares, Stages, alike

# Row blocks that agree to so many decimals, after scaling to a largest entry of 1, are multiples of each other.
DECIMALS = 12


@dataclass(frozen=True, slots=True)
class Merged:
    """The ratio problem over classes of devices and blocks of stages.

    The stages of a block are multiples of ``constants + slopes @ shares``: together ``weight`` times as long, those of
    computation among them ``computation`` times. Memory is in units of the device's capacity, so that all rows are of
    like size.

    Attributes:
        axes: the axes that matter.
        first: the first device of each [class].
        of: number of its class by [device].
        members: number of devices by [class].
        constants: by [block, class].
        slopes: by [block, class, axis].
        weight: seconds by [block].
        computation: seconds by [block].
        memory: fraction of the capacity by [class].
        memory_slopes: the same per unit share by [class, axis].
        lower: least share by [class, axis].
        upper: greatest share by [class, axis].
    """

    axes: tuple[str, ...]
    first: Numbers
    of: Numbers
    members: Array
    constants: Array
    slopes: Array
    weight: Array
    computation: Array
    memory: Array
    memory_slopes: Array
    lower: Array
    upper: Array


def merged(stages: Stages, shares: Shares, capacity: Sequence[float], radius: float, left_out: LeftOut) -> Merged:
    """Merges devices whose terms, memory, current shares and limits agree, and stages that are multiples of each other.

    An optimum of the merged problem is one of the whole: the mean of an optimum over equal devices is an optimum.
    """
    limits = np.array(capacity, dtype=np.float64)
    current = stages.columns(shares)
    nobody = np.zeros(len(limits), dtype=np.bool_)
    excluded = np.array([left_out.get(axis, nobody) for axis in stages.axes], dtype=np.bool_).reshape(current.shape)
    assert not np.any(current[excluded]), "a share that is left out must be 0 already"
    first, of = alike(np.vstack([stages.kinds, limits, current, excluded]))
    kinds, current, excluded = stages.kinds[first], current[:, first].T, excluded[:, first].T
    constants, slopes, weight, computation = _blocks(stages, kinds)
    return Merged(
        axes=stages.axes,
        first=first,
        of=of,
        members=np.bincount(of).astype(np.float64),
        constants=constants,
        slopes=slopes,
        weight=weight,
        computation=computation,
        memory=stages.memory[kinds] / limits[first],
        memory_slopes=stages.memory_slopes[kinds] / limits[first, None],
        lower=np.maximum(0.0, current - radius),
        upper=np.where(excluded, 0.0, np.minimum(1.0, current + radius)),
    )


def _blocks(stages: Stages, kinds: Numbers) -> tuple[Array, Array, Array, Array]:
    """Constants, slopes, weight and computation of the blocks: of the stages whose time any share changes."""
    moving = stages.slopes.any(axis=(1, 2))
    constants, slopes = stages.constants[moving][:, kinds], stages.slopes[moving][:, kinds]
    # What all devices spend in any case changes no choice.
    constants = constants - constants.min(axis=1, keepdims=True)
    scale = np.maximum(constants.max(axis=1, initial=0.0), np.abs(slopes).max(axis=(1, 2), initial=0.0))
    constants, slopes = constants / scale[:, None], slopes / scale[:, None, None]
    rows = np.concatenate([constants[:, None], slopes.swapaxes(1, 2)], axis=1)
    first, of = alike(np.round(rows, DECIMALS).reshape(len(rows), (1 + len(stages.axes)) * len(kinds)).T)
    seconds = stages.counts[moving] * scale
    weight = np.bincount(of, seconds, minlength=len(first)).astype(np.float64)
    computation = np.bincount(of, seconds * stages.computation[moving], minlength=len(first)).astype(np.float64)
    return constants[first], slopes[first], weight, computation

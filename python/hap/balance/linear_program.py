"""The ratio problem as a linear program: the shares that minimise the sum over stages of the slowest device's time.

    minimise    sum over stages s of time_s
    subject to  time_s >= constant_sd + sum over axes a of slope_sda * share_ad     for each stage s and device d
                sum over devices d of share_ad = 1                                  for each axis a
                bytes_d + sum over a of slope_da * share_ad <= capacity_d           for each device d
                max(0, current_ad - radius) <= share_ad <= min(1, current_ad + radius)

Devices whose terms, memory and current shares are the same become one *class* with one share each. Stages whose terms
are multiples of each other (repeated blocks, collectives along one axis) become one row block with a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hap.balance.highs import INFINITY, Array, Rows, minimise
from hap.balance.stages import Shares, Stages
from hap.errors import PlanError
from hap.units import bytes_text

# Row blocks that agree to so many decimals, after scaling to a largest entry of 1, are multiples of each other.
DECIMALS = 12


class DoesNotFitError(PlanError):
    """No shares of the allowed ones make the program fit the devices' memory.

    Attributes:
        device: rank of the device that is over by the largest fraction of its memory.
        excess: by how many bytes.
        shares: the shares at which the largest excess is smallest.
    """

    def __init__(self, device: int, excess: float, capacity: float, shares: Shares) -> None:
        self.device = device
        self.excess = excess
        self.shares = shares
        super().__init__(
            f"the program does not fit memory, however it is split: device {device} needs {bytes_text(excess)} "
            f"more than the {bytes_text(capacity)} that it has; use more or larger devices, or a smaller batch"
        )


@dataclass(frozen=True, slots=True)
class Solution:
    """The best shares of the linear program.

    Attributes:
        shares: by axis; axes that matter to nothing keep their current shares.
        seconds: the linearised step time there.
        weights: prices of the devices, summing to 1: the duals of the rows of the stages of computation, weighted by
            the stages' times; equal weights where nothing is computed.
    """

    shares: Shares
    seconds: float
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Block:
    """Stages whose terms are multiples of ``constants + slopes @ shares``: constants [class], slopes [class, axis]."""

    constants: Array
    slopes: Array
    weight: float
    computation: float


@dataclass(frozen=True, slots=True)
class _Model:
    """The problem over classes of devices.

    ``classes`` lists their members, ``offset`` holds the seconds that no share changes.
    """

    axes: tuple[str, ...]
    classes: tuple[tuple[int, ...], ...]
    blocks: tuple[_Block, ...]
    offset: float
    memory: Array
    memory_slopes: Array
    lower: Array
    upper: Array

    @property
    def members(self) -> Array:
        return np.array([len(members) for members in self.classes], dtype=np.float64)


def solve(
    stages: Stages,
    shares: Shares,
    capacity: Sequence[float],
    radius: float = 1.0,
    left_out: AbstractSet[tuple[str, int]] = frozenset(),
) -> Solution:
    """The shares that minimise the linearised step time within the trust region.

    Args:
        stages: the program, linearised at ``shares``.
        shares: the current shares, centre of the trust region.
        capacity: bytes of memory of each device.
        radius: how far each share may move.
        left_out: pairs (axis, device) whose share is 0; their current share must be 0.

    Raises:
        DoesNotFitError: no shares in the trust region fit memory.
        PlanError: the solver gave up.
    """
    model = _model(stages, shares, capacity, radius, left_out)
    if not model.axes:
        return Solution(dict(shares), stages.seconds(shares), _equal(len(capacity)))
    times, point, duals = _minimise_time(model) or (None, None, None)
    if times is None or point is None or duals is None:
        return _report_excess(model, shares, capacity)
    found = _expand(model, point, shares)
    return Solution(found, stages.seconds(found), _weights(model, times, duals))


def _equal(devices: int) -> tuple[float, ...]:
    return (1.0 / devices,) * devices


def _model(
    stages: Stages,
    shares: Shares,
    capacity: Sequence[float],
    radius: float,
    left_out: AbstractSet[tuple[str, int]],
) -> _Model:
    axes = stages.axes()
    devices = len(capacity)
    count = len(stages.stages)
    constants = np.array([[term.constant for term in stage.devices] for stage in stages.stages]).reshape(count, devices)
    slopes = np.array(
        [[[term.slopes.get(axis, 0.0) for axis in axes] for term in stage.devices] for stage in stages.stages]
    ).reshape(count, devices, len(axes))
    # Memory is measured in units of the device's capacity, so that all rows are of like size.
    limits = np.array(capacity, dtype=np.float64)
    memory = np.array([term.constant for term in stages.memory]) / limits
    memory_slopes = np.array([[term.slopes.get(axis, 0.0) for axis in axes] for term in stages.memory])
    memory_slopes = memory_slopes.reshape(devices, len(axes)) / limits[:, None]
    current = np.array([shares[axis] for axis in axes]).reshape(len(axes), devices).T
    excluded = np.array([[(axis, device) in left_out for axis in axes] for device in range(devices)], dtype=bool)
    excluded = excluded.reshape(devices, len(axes))
    assert not np.any(current[excluded]), "a share that is left out must be 0 already"
    lower = np.maximum(0.0, current - radius)
    upper = np.where(excluded, 0.0, np.minimum(1.0, current + radius))

    classes: dict[bytes, list[int]] = {}
    for device in range(devices):
        # Adding 0.0 turns -0.0 into 0.0, which has other bytes.
        parts = (
            constants[:, device],
            slopes[:, device],
            memory[device],
            memory_slopes[device],
            lower[device],
            upper[device],
        )
        key = b"|".join((np.asarray(part) + 0.0).tobytes() for part in parts)
        classes.setdefault(key, []).append(device)
    first = [members[0] for members in classes.values()]
    computation = np.array([stage.kind == "compute" for stage in stages.stages], dtype=bool)
    blocks, offset = _blocks(constants[:, first], slopes[:, first], computation)
    return _Model(
        axes=axes,
        classes=tuple(tuple(members) for members in classes.values()),
        blocks=blocks,
        offset=offset,
        memory=memory[first],
        memory_slopes=memory_slopes[first],
        lower=lower[first],
        upper=upper[first],
    )


def _blocks(constants: Array, slopes: Array, computation: npt.NDArray[np.bool_]) -> tuple[tuple[_Block, ...], float]:
    """Merges stages that are multiples of each other; also the seconds that no share changes."""
    offset = 0.0
    merged: dict[bytes, list[int]] = {}
    scales = np.zeros(len(constants))
    scaled: list[tuple[Array, Array]] = []
    for stage in range(len(constants)):
        base = float(constants[stage].min())
        above = constants[stage] - base
        scaled.append((above, slopes[stage]))
        if not np.any(slopes[stage]):
            offset += base + float(above.max())
            continue
        offset += base
        scales[stage] = max(float(above.max()), float(np.abs(slopes[stage]).max()))
        rows = np.concatenate([above, slopes[stage].ravel()]) / scales[stage]
        merged.setdefault((np.round(rows, DECIMALS) + 0.0).tobytes(), []).append(stage)
    blocks = []
    for members in merged.values():
        above, block_slopes = scaled[members[0]]
        scale = scales[members[0]]
        weight = float(scales[members].sum())
        blocks.append(
            _Block(
                above / scale, block_slopes / scale, weight, float(scales[[m for m in members if computation[m]]].sum())
            )
        )
    return tuple(blocks), offset


def _minimise_time(model: _Model) -> tuple[Array, Array, Array] | None:
    """Times [block], shares [class, axis] and duals [block, class]; ``None`` where memory does not fit."""
    kinds, axes = model.lower.shape
    blocks = len(model.blocks)
    total = sum(block.weight for block in model.blocks) or 1.0
    cost = np.concatenate([[block.weight / total for block in model.blocks], np.zeros(kinds * axes)])
    rows = Rows(blocks + kinds * axes)
    for index, block in enumerate(model.blocks):
        for kind in range(kinds):
            columns = blocks + kind * axes + np.flatnonzero(block.slopes[kind])
            values = -block.slopes[kind][np.flatnonzero(block.slopes[kind])]
            rows.add([index, *columns], [1.0, *values], lower=block.constants[kind])
    _add_share_rows(rows, model, blocks)
    for kind in range(kinds):
        columns = np.flatnonzero(model.memory_slopes[kind])
        rows.add(blocks + kind * axes + columns, model.memory_slopes[kind][columns], upper=1.0 - model.memory[kind])
    lower = np.concatenate([np.full(blocks, -INFINITY), model.lower.ravel()])
    upper = np.concatenate([np.full(blocks, INFINITY), model.upper.ravel()])
    found = minimise(rows, cost, lower, upper)
    if found is None:
        return None
    values, row_duals = found
    return (
        values[:blocks],
        values[blocks:].reshape(kinds, axes),
        row_duals[: blocks * kinds].reshape(blocks, kinds) * total,
    )


def _report_excess(model: _Model, shares: Shares, capacity: Sequence[float]) -> Solution:
    """Raises :class:`DoesNotFitError` for the shares whose largest excess, as a fraction of the memory, is smallest."""
    kinds, axes = model.lower.shape
    rows = Rows(1 + kinds * axes)
    _add_share_rows(rows, model, 1)
    for kind in range(kinds):
        columns = np.flatnonzero(model.memory_slopes[kind])
        values = model.memory_slopes[kind][columns]
        rows.add([0, *(1 + kind * axes + columns)], [-1.0, *values], upper=1.0 - model.memory[kind])
    cost = np.concatenate([[1.0], np.zeros(kinds * axes)])
    lower = np.concatenate([[0.0], model.lower.ravel()])
    upper = np.concatenate([[INFINITY], model.upper.ravel()])
    found = minimise(rows, cost, lower, upper)
    if found is None:
        raise PlanError("the shares cannot sum to one: too many devices are left out of an axis")
    point = found[0][1:].reshape(kinds, axes)
    over = model.memory + (model.memory_slopes * point).sum(axis=1) - 1.0
    kind = int(np.argmax(over))
    device = model.classes[kind][0]
    raise DoesNotFitError(device, float(over[kind]) * capacity[device], capacity[device], _expand(model, point, shares))


def _add_share_rows(rows: Rows, model: _Model, first: int) -> None:
    """The shares of each axis, over all members of all classes, sum to one."""
    kinds, axes = model.lower.shape
    for axis in range(axes):
        rows.add(first + np.arange(kinds) * axes + axis, model.members, lower=1.0, upper=1.0)


def _expand(model: _Model, point: Array, shares: Shares) -> Shares:
    """The shares of all devices from those of the classes; sums are made exact against the solver's tolerance."""
    found = dict(shares)
    point = np.clip(point, model.lower, model.upper)
    totals = point.T @ model.members
    for index, axis in enumerate(model.axes):
        values = [0.0] * sum(len(members) for members in model.classes)
        for kind, members in enumerate(model.classes):
            for device in members:
                values[device] = float(point[kind, index] / totals[index])
        found[axis] = values
    return found


def _weights(model: _Model, times: Array, duals: Array) -> tuple[float, ...]:
    """Prices of the devices.

    A stage's duals sum to the stage's weight: they say how the stage's slowest devices share the blame for its time.
    One price per device stands for all stages, so each counts by the time that its computation takes.
    """
    devices = sum(len(members) for members in model.classes)
    weights = np.zeros(len(model.classes))
    for block, time, dual in zip(model.blocks, times, np.maximum(duals, 0.0), strict=True):
        if block.computation > 0.0 and dual.sum() > 0.0:
            weights += max(float(time), 0.0) * block.computation * dual / dual.sum()
    if weights.sum() <= 0.0:
        return _equal(devices)
    weights /= weights.sum()
    found = [0.0] * devices
    for kind, members in enumerate(model.classes):
        for device in members:
            # The dual of a class stands for all its members.
            found[device] = float(weights[kind]) / len(members)
    return tuple(found)

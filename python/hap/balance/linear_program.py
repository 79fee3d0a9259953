"""The ratio problem as a linear program: the shares that minimise the sum over stages of the slowest device's time.

    minimise    sum over stages s of time_s
    subject to  time_s >= constant_sd + sum over axes a of slope_sda * share_ad     for each stage s and device d
                sum over devices d of share_ad = 1                                  for each axis a
                bytes_d + sum over a of slope_da * share_ad <= capacity_d           for each device d
                max(0, current_ad - radius) <= share_ad <= min(1, current_ad + radius)

Devices whose terms, memory and current shares are the same become one *class* with one share each. Stages whose terms
are multiples of each other (repeated blocks, collectives along one axis) become one row block with a weight
(:mod:`hap.balance.merged`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from hap.balance.highs import INFINITY, LinearProgram, Solver, write
from hap.balance.merged import Merged, merged
from hap.balance.stages import Array, LeftOut, Numbers, Shares, Stages
from hap.errors import PlanError
from hap.units import bytes_text, runs_text


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


def solve(
    stages: Stages,
    shares: Shares,
    capacity: Sequence[float],
    radius: float = 1.0,
    left_out: LeftOut | None = None,
    solver: Solver | None = None,
) -> Solution:
    """The shares that minimise the linearised step time within the trust region.

    Args:
        stages: the program, linearised at ``shares``.
        shares: the current shares, centre of the trust region.
        capacity: bytes of memory of each device.
        radius: how far each share may move.
        left_out: whose share is 0; their current share must be 0.
        solver: one that has solved a like problem before, which saves time.

    Raises:
        DoesNotFitError: no shares in the trust region fit memory.
        PlanError: the solver gave up.
    """
    model = merged(stages, shares, capacity, radius, left_out or {})
    if not model.axes:
        return Solution(dict(shares), stages.seconds(shares), _equal(len(capacity)))
    solver = solver or Solver()
    optimum = solver.minimise(fastest(model))
    if optimum is None:
        _report_excess(model, shares, capacity, solver)
    blocks, kinds = model.constants.shape
    values, duals = optimum
    found = _expand(model, values[blocks:], shares)
    return Solution(found, stages.seconds(found), _weights(model, values[:blocks], duals[: blocks * kinds]))


def write_linear_program(
    stages: Stages,
    shares: Shares,
    capacity: Sequence[float],
    path: str | os.PathLike[str],
    radius: float = 1.0,
    ranks: Sequence[int] | None = None,
) -> None:
    """Writes the linear program of :func:`solve` to a file in LP format, for a look or for another solver.

    Columns are ``seconds.N`` of the block of stages N and ``share.AXIS.D`` of the first device D of a class; rows are
    ``busy.N.D`` (block N lasts as long as class D is busy), ``whole.AXIS`` (shares sum to one) and ``memory.D``. In an
    axis's name ``_`` stands for all but English letters and digits; more of them tell apart what is then the same.
    The objective is a fraction of the step time at most 1 and leaves out what no share changes. Comments say how many
    seconds it stands for, and which devices and axes the names are.

    Args:
        stages: the program, linearised at ``shares``.
        shares: the current shares, centre of the trust region.
        capacity: bytes of memory of each device.
        path: the file.
        radius: how far each share may move.
        ranks: what names call the devices; by default by their numbers.

    Raises:
        PlanError: the file cannot be written, or its name does not end in ``.lp``.
    """
    model = merged(stages, shares, capacity, radius, {})
    called = np.arange(len(model.of)) if ranks is None else np.array(ranks)
    axes, classes = _plain_names(model.axes), called[model.first].tolist()
    blocks = range(len(model.weight))
    columns = [f"seconds.{n}" for n in blocks] + [f"share.{axis}.{d}" for d in classes for axis in axes]
    rows = [f"busy.{n}.{d}" for n in blocks for d in classes]
    rows += [f"whole.{axis}" for axis in axes] + [f"memory.{d}" for d in classes]
    current = stages.columns(shares)[:, model.first].T
    moving = model.weight @ (model.constants + np.einsum("bka,ka->bk", model.slopes, current)).max(axis=1)
    members = [called[model.of == number].tolist() for number in range(len(classes))]
    notes = [
        f"the step takes {stages.seconds(shares) - float(moving)!r} + {float(model.weight.sum())!r} * obj seconds",
        *(f"device {each[0]} is each of {runs_text(each)}" for each in members if len(each) > 1),
        *(f"axis {name} is {axis}" for name, axis in zip(axes, model.axes, strict=True) if name != axis),
    ]
    write(fastest(model), columns, rows, Path(path), notes)


def _plain_names(axes: Sequence[str]) -> list[str]:
    """Different names of the characters that the LP format allows."""
    names: list[str] = []
    for axis in axes:
        name = re.sub(r"\W", "_", axis, flags=re.ASCII)
        while name in names:
            name += "_"
        names.append(name)
    return names


def _equal(devices: int) -> tuple[float, ...]:
    return (1.0 / devices,) * devices


def fastest(model: Merged) -> LinearProgram:
    """Columns: times [block], shares [class, axis]. Rows: [block, class], then those of :func:`_limits`."""
    blocks, kinds = model.constants.shape
    busy = blocks * kinds
    block, kind, axis = np.nonzero(model.slopes)
    longest = (np.arange(busy), np.repeat(np.arange(blocks), kinds), np.ones(busy))
    work = (block * kinds + kind, blocks + kind * len(model.axes) + axis, -model.slopes[block, kind, axis])
    rows, columns, values = map(np.concatenate, zip(longest, work, *_limits(model, busy, blocks), strict=True))
    return LinearProgram(
        cost=np.concatenate([model.weight / (model.weight.sum() or 1.0), np.zeros(model.lower.size)]),
        lower=np.concatenate([np.full(blocks, -INFINITY), model.lower.ravel()]),
        upper=np.concatenate([np.full(blocks, INFINITY), model.upper.ravel()]),
        row_lower=np.concatenate([model.constants.ravel(), np.ones(len(model.axes)), np.full(kinds, -INFINITY)]),
        row_upper=np.concatenate([np.full(busy, INFINITY), np.ones(len(model.axes)), 1.0 - model.memory]),
        rows=rows,
        columns=columns,
        values=values,
    )


def _least_excess(model: Merged) -> LinearProgram:
    """Columns: the largest excess, shares [class, axis]. Rows: those of :func:`_limits`, memory with the excess."""
    axes, kinds = len(model.axes), len(model.members)
    worst = (axes + np.arange(kinds), np.zeros(kinds, dtype=np.int64), -np.ones(kinds))
    rows, columns, values = map(np.concatenate, zip(worst, *_limits(model, 0, 1), strict=True))
    return LinearProgram(
        cost=np.concatenate([[1.0], np.zeros(model.lower.size)]),
        lower=np.concatenate([[0.0], model.lower.ravel()]),
        upper=np.concatenate([[INFINITY], model.upper.ravel()]),
        row_lower=np.concatenate([np.ones(axes), np.full(kinds, -INFINITY)]),
        row_upper=np.concatenate([np.ones(axes), 1.0 - model.memory]),
        rows=rows,
        columns=columns,
        values=values,
    )


def _limits(model: Merged, row: int, column: int) -> list[tuple[Numbers, Numbers, Array]]:
    """Entries of rows from ``row`` on, with the shares from ``column`` on: sums of shares [axis], memory [class]."""
    kinds, axes = model.lower.shape
    shares = column + np.arange(kinds * axes)
    kind, axis = np.nonzero(model.memory_slopes)
    return [
        (row + np.tile(np.arange(axes), kinds), shares, np.repeat(model.members, axes)),
        (row + axes + kind, column + kind * axes + axis, model.memory_slopes[kind, axis]),
    ]


def _report_excess(model: Merged, shares: Shares, capacity: Sequence[float], solver: Solver) -> NoReturn:
    """Raises :class:`DoesNotFitError` for the shares whose largest excess, as a fraction of the memory, is smallest."""
    optimum = solver.minimise(_least_excess(model))
    if optimum is None:
        raise PlanError("the shares cannot sum to one: too many devices are left out of an axis")
    point = optimum[0][1:]
    over = model.memory + (model.memory_slopes * point.reshape(model.lower.shape)).sum(axis=1) - 1.0
    kind = int(np.argmax(over))
    device = int(model.first[kind])
    raise DoesNotFitError(device, float(over[kind]) * capacity[device], capacity[device], _expand(model, point, shares))


def _expand(model: Merged, point: Array, shares: Shares) -> Shares:
    """The shares of all devices from those of the classes; sums are made exact against the solver's tolerance."""
    point = np.clip(point.reshape(model.lower.shape), model.lower, model.upper)
    point = point / (model.members @ point)
    return {**shares, **dict(zip(model.axes, point.T[:, model.of].tolist(), strict=True))}


def _weights(model: Merged, times: Array, duals: Array) -> tuple[float, ...]:
    """Prices of the devices.

    A stage's duals sum to the stage's weight: they say how the stage's slowest devices share the blame for its time.
    One price per device stands for all stages, so each counts by the time that its computation takes.
    """
    duals = np.maximum(duals.reshape(model.constants.shape), 0.0)
    blamed = duals.sum(axis=1)
    counted = (model.computation > 0.0) & (blamed > 0.0)
    seconds = np.maximum(times, 0.0) * model.computation
    weights = (seconds[counted] / blamed[counted]) @ duals[counted]
    if weights.sum() <= 0.0:
        return _equal(len(model.of))
    # The dual of a class stands for all its members.
    weights = weights / weights.sum() / model.members
    return tuple(weights[model.of].tolist())

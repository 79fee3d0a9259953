"""The ratio problem where some axes are split in whole units: a mixed integer program, for what rounding loses.

An axis of few units (heads, experts, tables) has few splits, none of which may be near the real shares; which is best
depends on how the shares of the other axes make up for it, which matters most where memory is scarce. So here every
device has its own whole number of units of such axes and its own real shares of the others. Equal devices are no class
with one column, as they may differ by a unit; that they can be exchanged is said by ordering them.

Like the linear program's, a solution is a *proposal*, which counts if the exact evaluation says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hap.balance.highs import INFINITY, LinearProgram, minimise_whole
from hap.balance.linear_program import fastest
from hap.balance.merged import Merged, merged
from hap.balance.rounding import Rounded, better, fractions, improved, round_shares
from hap.balance.stages import Array, Evaluator, Machine, Numbers, Shares, Stages

# Axes of at most so many units for each device are split in whole units.
UNITS = 4
# Axes by devices, at most: a search took 10 to 60 ms with so many, and up to 250 ms with 40.
COLUMNS = 8
# Proposals, each linearised at the one before.
STEPS = 3


def in_whole_units(
    evaluator: Evaluator,
    stages: Stages,
    shares: Shares,
    sizes: Mapping[str, int],
    machine: Machine,
    known: Rounded,
) -> Rounded:
    """The best that is found from whole units of the axes that have few, or what is known where that is as good.

    Args:
        evaluator: the program.
        stages: the program, linearised at ``shares``.
        shares: real shares by axis, which fit memory.
        sizes: units of each axis.
        machine: the devices.
        known: the splits to beat.
    """
    few = _few(stages.axes, sizes, len(machine))
    if not few:
        return known
    best: Rounded | None = None
    for _ in range(STEPS):
        proposal = whole_units(stages, shares, few, machine.capacity)
        if proposal is None:
            break
        splits = round_shares(proposal, sizes)
        candidate = Rounded(splits, evaluator.simulate(splits))
        if best is not None and not better(candidate, best, machine):
            break
        best, shares = candidate, fractions(splits)
        stages = evaluator.stages(shares)
    if best is None or best.splits == known.splits:
        return known
    found = improved(evaluator, best, machine, [known.splits])
    return found if better(found, known, machine) else known


def _few(axes: Sequence[str], sizes: Mapping[str, int], devices: int) -> dict[str, int]:
    """The axes of few units, with their units: those of the fewest, as many as the columns suffice for."""
    few = sorted((sizes[axis], axis) for axis in axes if sizes[axis] <= UNITS * devices)
    return {axis: size for size, axis in few[: COLUMNS // devices]}


def whole_units(stages: Stages, shares: Shares, sizes: Mapping[str, int], capacity: Sequence[float]) -> Shares | None:
    """The shares that minimise the linearised step time, of which those of some axes are whole units.

    Args:
        stages: the program, linearised at ``shares``.
        shares: the current shares.
        sizes: units of each axis that is split in whole units; the others have real shares.
        capacity: bytes of memory of each device.

    Returns:
        Shares by axis; axes that matter to nothing keep their current shares. ``None`` where no axis that matters is
        split in whole units, or where none that fit memory were found within the solver's limits.
    """
    alike = merged(stages, shares, capacity, 1.0, {})
    model = _apart(alike)
    blocks, devices = model.constants.shape
    whole = np.array([axis in sizes for axis in model.axes], dtype=np.bool_)
    if not whole.any():
        return None
    units = np.array([sizes.get(axis, 1) for axis in model.axes], dtype=np.float64)
    program = _in_units(fastest(model), np.concatenate([np.ones(blocks), np.tile(units, devices)]))
    program = _ordered(program, alike.of, blocks + len(units) * np.arange(devices) + int(np.argmax(whole)))
    found = minimise_whole(program, np.concatenate([np.zeros(blocks, dtype=np.bool_), np.tile(whole, devices)]))
    if found is None:
        return None
    point = np.maximum(found[blocks:].reshape(devices, len(units)), 0.0)
    point[:, whole] = np.round(point[:, whole])
    point /= point.sum(axis=0)
    return {**shares, **dict(zip(model.axes, point.T.tolist(), strict=True))}


def _apart(model: Merged) -> Merged:
    """The same with each device a class of its own."""
    devices = np.arange(len(model.of))
    return replace(
        model,
        first=devices,
        of=devices,
        members=np.ones(len(devices)),
        constants=model.constants[:, model.of],
        slopes=model.slopes[:, model.of],
        memory=model.memory[model.of],
        memory_slopes=model.memory_slopes[model.of],
        lower=model.lower[model.of],
        upper=model.upper[model.of],
    )


def _in_units(program: LinearProgram, units: Array) -> LinearProgram:
    """The same with columns counted in units, of which the old ones had so many in one."""
    return replace(
        program,
        cost=program.cost / units,
        lower=program.lower * units,
        upper=program.upper * units,
        values=program.values / units[program.columns],
    )


def _ordered(program: LinearProgram, of: Numbers, columns: Numbers) -> LinearProgram:
    """With rows that say that of devices of a class an earlier one has no fewer units, in these columns by device."""
    order = np.argsort(of, kind="stable")
    same = of[order[:-1]] == of[order[1:]]
    earlier, later = order[:-1][same], order[1:][same]
    rows = len(program.row_lower) + np.arange(len(earlier))
    ones = np.ones(len(rows))
    return replace(
        program,
        row_lower=np.concatenate([program.row_lower, 0.0 * ones]),
        row_upper=np.concatenate([program.row_upper, INFINITY * ones]),
        rows=np.concatenate([program.rows, rows, rows]),
        columns=np.concatenate([program.columns, columns[earlier], columns[later]]),
        values=np.concatenate([program.values, ones, -ones]),
    )

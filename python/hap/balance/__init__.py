"""How unevenly each axis is split: a successive linear program over real shares, then rounding to whole units.

Where that loses much, a mixed integer program proposes units of the axes that have few.

There is one split class per axis (all tensors and operators of an axis share its split), so shares and splits are
keyed by the name of the axis. Classes of an axis by segment of the model and by role would be further keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hap.balance.linear_program import DoesNotFitError, write_linear_program
from hap.balance.rounding import Rounded, fractions, largest_remainder, least_maximum, round_shares, rounded
from hap.balance.stages import Evaluator, Machine, MemoryParts, Shares, Simulation, Stages
from hap.balance.successive import Balanced, successive, without_small_shares
from hap.balance.whole_units import in_whole_units
from hap.program import Splits

__all__ = [
    "Balanced",
    "DoesNotFitError",
    "Evaluator",
    "Machine",
    "MemoryParts",
    "Ratios",
    "Rounded",
    "Shares",
    "Simulation",
    "Stages",
    "balance",
    "fractions",
    "largest_remainder",
    "least_maximum",
    "round_shares",
    "rounded",
    "successive",
    "without_small_shares",
    "write_linear_program",
]

# Where rounding loses less than this fraction, little is to be gained by a search for whole units.
WORTH_A_SEARCH = 0.01
# Where real shares overrun memory by more than this fraction, whole units hardly fit.
HOPELESS = 0.02


@dataclass(frozen=True, slots=True)
class Ratios:
    """What balance found for one program.

    Attributes:
        splits: units of each axis by device.
        simulation: the program's step under these splits.
        rounding_loss: step time lost to rounding, as a fraction of the time at the real shares.
        weights: prices of the devices for the next synthesis, summing to 1.
    """

    splits: Splits
    simulation: Simulation
    rounding_loss: float
    weights: tuple[float, ...]


def balance(
    evaluator: Evaluator,
    sizes: Mapping[str, int],
    machine: Machine,
    start: Splits,
    fixed: Mapping[str, list[int]],
    enough: float | None = None,
) -> Ratios | None:
    """The best splits of one program: real shares from ``start``, devices left out where that helps, then whole units.

    Never worse than ``start``, nor than splits in proportion to the devices' speeds. Axes in ``fixed`` stay so.
    Where something is known that fits, ``enough`` are the seconds to beat, as stages count them: then ``None`` where
    already the real shares overrun memory by much, or take as long.
    """
    evaluator = _Fixed(evaluator, fixed)
    free = {axis: size for axis, size in sizes.items() if axis not in fixed}
    shares = {axis: values for axis, values in fractions(start).items() if axis in free}
    real = successive(evaluator, shares, machine)
    if enough is not None and real.excess > HOPELESS:
        return None
    real = without_small_shares(evaluator, real, machine)
    if enough is not None and real.seconds >= enough:
        return None
    starts = [{axis: start[axis] for axis in free}]
    over = evaluator.simulate(round_shares(real.shares, free)).excess(machine.capacity) if real.excess == 0.0 else 0.0
    if over > 0.0:
        # Whole units need a little more memory than the real shares, which are often at its limit.
        tight = replace(machine, capacity=tuple(it / (1.0 + over) for it in machine.capacity))
        starts.append(round_shares(successive(evaluator, real.shares, tight, real.left_out).shares, free))
    found = rounded(evaluator, real.shares, free, machine, starts)
    loss = _loss(evaluator, found.splits, real.seconds)
    if real.excess == 0.0 and (loss > WORTH_A_SEARCH or found.simulation.excess(machine.capacity) > 0.0):
        whole = in_whole_units(evaluator, real.stages, real.shares, free, machine, found)
        if whole is not found:
            found, loss = whole, _loss(evaluator, whole.splits, real.seconds)
    splits = {axis: list(fixed[axis]) if axis in fixed else found.splits[axis] for axis in sizes}
    return Ratios(splits, found.simulation, loss, real.weights)


def _loss(evaluator: Evaluator, splits: Splits, seconds: float) -> float:
    """Step time lost to whole units, as a fraction of these seconds at the real shares."""
    shares = fractions(splits)
    # Whole units may beat the real shares, which are optimal only for the terms linearised near them.
    return max(0.0, evaluator.stages(shares).seconds(shares) / seconds - 1.0) if seconds > 0.0 else 0.0


class _Fixed:
    """An evaluator that sees only the axes whose splits are free."""

    def __init__(self, evaluator: Evaluator, fixed: Mapping[str, Sequence[int]]) -> None:
        self.evaluator = evaluator
        self.splits = {axis: list(units) for axis, units in fixed.items()}
        self.shares = fractions(self.splits)

    def stages(self, shares: Shares) -> Stages:
        """The stages with the terms of fixed axes moved into the constants."""
        return self.evaluator.stages({**shares, **self.shares}).fixing(self.shares)

    def simulate(self, splits: Splits) -> Simulation:
        """The step under these splits and the fixed ones."""
        return self.evaluator.simulate({**splits, **self.splits})

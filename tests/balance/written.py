"""Stages written by hand: terms by name of the axis."""

from dataclasses import dataclass, field

import numpy as np

from hap.balance import Stages


@dataclass(frozen=True)
class Affine:
    """``constant + sum over axes of slopes[axis] * share of that axis``, for one device."""

    constant: float
    slopes: dict = field(default_factory=dict)

    def at(self, shares, device):
        """Its value at these shares of a device."""
        return self.constant + sum(slope * shares[axis][device] for axis, slope in self.slopes.items())


@dataclass(frozen=True)
class Stage:
    """``count`` stages of ``compute`` or ``collective`` with these terms by kind."""

    kind: str
    terms: tuple
    count: int = 1


@dataclass(frozen=True)
class Written:
    """A program: kinds by device, stages, and terms of memory by kind."""

    kinds: tuple
    stages: tuple
    memory: tuple

    def arrays(self):
        """The same as balance takes it."""
        rows = [*(stage.terms for stage in self.stages), self.memory]
        axes = sorted({axis for row in rows for term in row for axis, slope in term.slopes.items() if slope != 0.0})
        terms = [
            [[row[kind].constant, *(row[kind].slopes.get(axis, 0.0) for axis in axes)] for row in rows]
            for kind in range(len(self.memory))
        ]
        return Stages.of(
            axes,
            np.array(self.kinds),
            np.array([float(stage.count) for stage in self.stages]),
            np.array([stage.kind == "compute" for stage in self.stages], dtype=bool),
            np.array(terms),
        )

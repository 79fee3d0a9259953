"""How a tensor lies on the devices, written as the Rust core writes it: ``"R"``, ``"P"``, ``"S3"``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every device holds the whole tensor."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True, slots=True)
class Shard:
    """Every device holds its share of one occurrence of an axis.

    ``occurrence`` is an index into the tensor's flattened list of axes (:class:`hap.rules.AxisGraph`), not a dimension:
    one axis may stand in two dimensions, and a dimension may be a product of axes.
    """

    occurrence: int

    def __str__(self) -> str:
        return f"S{self.occurrence}"


@dataclass(frozen=True, slots=True)
class Partial:
    """Every device holds a summand of the tensor's whole shape; the tensor is their sum."""

    def __str__(self) -> str:
        return "P"


Placement: TypeAlias = Replicate | Shard | Partial
"""Placement on one level of the device mesh."""

Placements: TypeAlias = tuple[Placement, ...]
"""Placement on every level of the device mesh, outermost first; there is one level today."""

REPLICATE: Placements = (Replicate(),)
PARTIAL: Placements = (Partial(),)


def shard(occurrence: int) -> Placements:
    """Sharded along one occurrence, on the one level that there is."""
    return (Shard(occurrence),)


def parse(text: str) -> Placement:
    """The placement that ``str`` wrote. Raises ``ValueError`` for anything else."""
    if text == "R":
        return Replicate()
    if text == "P":
        return Partial()
    if text.startswith("S") and text[1:].isdecimal():
        return Shard(int(text[1:]))
    raise ValueError(f'"{text}" is not a placement: expected "R", "P" or "S" with an occurrence, such as "S3"')

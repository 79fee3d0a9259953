"""Runs: adjacent axes of a dimension that are sharded as one, with a split of their own.

Two key heads, each with four repetitions, are eight heads for eight devices; two samples of three tokens are six rows.
A run is an ordered product of leaves. It is an axis of its own, beside the ones that it is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from hap.rules.axes import Factor, leaves
from hap.rules.binding import Bound, Dims

SMALL = 32
"""Runs are made of axes with fewer units than this: a larger one alone can be cut finely enough for the devices."""

Run = tuple[Factor, ...]
"""Leaves, outermost first."""

Runs = Mapping[Run, int]
"""The number of each run's axis."""


class Stand(NamedTuple):
    """Where a run stands in a product: its first leaf, and the products of what stands outside and inside of it."""

    first: int
    run: Run
    outer: int
    inner: int


def find_runs(bound: Iterable[Bound]) -> list[Run]:
    """What stands for a whole letter, where that is several small leaves, in the order of the operators.

    Args:
        bound: the operators whose work is worth sharing.
    """
    found: dict[Run, None] = {}
    for operator in bound:
        for letter, factors in operator.letters.items():
            own = tuple(leaves(factors))
            if letter not in operator.blocked and len(own) > 1 and all(map(_small, own)):
                found[own] = None
    return list(found)


def _small(leaf: Factor) -> bool:
    return leaf.blocks is None and leaf.size < SMALL


def stands(factors: Iterable[Factor], runs: Iterable[Run]) -> list[Stand]:
    """The runs that stand in an ordered product, from the outermost."""
    own = tuple(leaves(factors))
    sizes = [leaf.size for leaf in own]
    found = []
    for first, leaf in enumerate(own):
        for run in runs:
            end = first + len(run)
            if run[0] is leaf and own[first:end] == run:
                found.append(Stand(first, run, prod(sizes[:first]), prod(sizes[end:])))
    return found


def tensor_stands(dims: Dims, runs: Iterable[Run]) -> list[tuple[int, Stand]]:
    """The runs that stand in the dimensions of a tensor, in the order of its entries for them."""
    return [(dim, stand) for dim, factors in enumerate(dims) for stand in stands(factors, runs)]


def sizes_with_run(sizes: Sequence[int], first: int, count: int) -> list[int]:
    """Sizes of a letter's leaves, where ``count`` of them from the ``first`` are one."""
    return [*sizes[:first], prod(sizes[first : first + count]), *sizes[first + count :]]

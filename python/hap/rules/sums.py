"""Finds the dimensions that are ordered sums: fused projections whose parts are of unequal sizes.

Slices, splits, concatenations and paddings say where a dimension falls into stretches, and what each stretch is. Where
the stretches are equal, the dimension is a product, and where they have no axis in common, nothing could be sharded in
all of them; both are left to the links of these operators (:mod:`hap.rules.families.joining`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from hap.graph import Operator
from hap.rules.axes import Factor, axes, leaves, product, total
from hap.rules.binding import Bound, Dims
from hap.rules.notation import blocks

Stretches = dict[tuple[int, int], Sequence[Factor]]
"""By start and length, the factors of a tensor's dimension that is this stretch of another."""


def find_sums(soft: Iterable[tuple[Operator, Bound | None]], dims: Sequence[Dims]) -> None:
    """Makes leaves that fall into unequal stretches with an axis in common the sums of these.

    Args:
        soft: operators that join or part dimensions, bound before any of their dimensions is refined.
        dims: the factors of each tensor.
    """
    found: dict[Factor, Stretches] = {}
    for operator, bound in soft:
        if bound is not None:
            _collect(operator, bound, dims, found)
    for leaf, stretches in found.items():
        if leaf.parent is not None or leaf.parts is not None:
            continue  # refined by a sum before
        ends = sorted({0, leaf.size, *(end for start, length in stretches for end in (start, start + length))})
        pieces = [(start, end - start) for start, end in pairwise(ends)]
        if len({length for _, length in pieces}) == 1 or any(piece not in stretches for piece in pieces):
            continue
        whole = total([product(stretches[piece]) for piece in pieces])
        if axes([whole]):
            leaf.blocks = whole.blocks


def _collect(operator: Operator, bound: Bound, dims: Sequence[Dims], found: dict[Factor, Stretches]) -> None:
    """Adds the stretches of one operator, by the leaf that each dimension is."""
    tensors = [(letters, dims[t]) for letters, t in zip(bound.operands, operator.operands, strict=True)]
    for letters, result in zip(bound.results, operator.results, strict=True):
        if letters is not None and result is not None:
            tensors.append((letters, dims[result]))
    bound_to = {
        group[0]: dim for letters, own in tensors for group, dim in zip(letters.groups, own, strict=False) if group
    }
    for letters, own in tensors:
        for group, dim in zip(letters.groups, own, strict=False):
            parts, whole = blocks(group[0]) if group else [], leaves(dim)
            if len(whole) != 1 or whole[0].blocks is not None:
                continue
            start = 0
            for part in parts:
                if part in bound_to:
                    found.setdefault(whole[0], {}).setdefault((start, bound.sizes[part]), bound_to[part])
                start += bound.sizes[part]

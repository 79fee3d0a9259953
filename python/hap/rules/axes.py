"""Axes by union-find.

Every dimension of every tensor starts as one unknown :class:`Factor`. :func:`unify` says that two lists of factors are
the same index: equal factors merge, and a larger one is refined into an ordered product. What is left, the *leaves*,
are the model's axes.

A leaf may also be an ordered *sum* of factors, its blocks: fused queries, keys and values of unequal sizes. What can be
sharded there is an axis that stands in every block, in all of them at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from hap.rules.pieces import Blocks


class Factor:
    """A node of the union-find: an index of ``size`` units.

    It is a leaf, or stands for another factor (``parent``), or for an ordered product of others (``parts``, outermost
    first). A leaf may be the ordered sum of other factors (``blocks``).
    """

    __slots__ = ("blocks", "parent", "parts", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.parent: Factor | None = None
        self.parts: tuple[Factor, ...] | None = None
        self.blocks: tuple[Factor, ...] | None = None

    def find(self) -> Factor:
        """The factor that this one has been merged into."""
        node = self
        while node.parent is not None:
            node = node.parent
        if node is not self:
            self.parent = node
        return node


def product(factors: Sequence[Factor]) -> Factor:
    """An ordered product as one factor."""
    if len(factors) == 1:
        return factors[0].find()
    whole = Factor(prod(factor.size for factor in factors))
    whole.parts = tuple(factors)
    return whole


def total(blocks: Sequence[Factor]) -> Factor:
    """An ordered sum as one factor; a block that is a sum itself gives its blocks."""
    whole = Factor(sum(block.size for block in blocks))
    whole.blocks = tuple(part for block in blocks for part in _summands(block))
    return whole


def _summands(block: Factor) -> tuple[Factor, ...]:
    block = block.find()
    own = leaves([block])
    return own[0].blocks or (block,) if len(own) == 1 else (block,)


def leaves(factors: Iterable[Factor]) -> list[Factor]:
    """The leaves of an ordered product, outermost first. Sizes 0 and 1 are no axis and are left out."""
    found: list[Factor] = []
    pending = list(factors)
    pending.reverse()
    while pending:
        node = pending.pop().find()
        if node.parts is not None:
            pending.extend(reversed(node.parts))
        elif node.size > 1:
            found.append(node)
    return found


class Entry(NamedTuple):
    """An axis that a dimension can be cut along, and how it lies there."""

    axis: Factor
    blocks: Blocks


def entries(factors: Iterable[Factor]) -> list[Entry]:
    """The axes of a dimension, outermost first; for a sum, those that stand in each of its blocks, once."""
    own = leaves(factors)
    found = []
    for i, leaf in enumerate(own):
        outer, inner = prod(f.size for f in own[:i]), prod(f.size for f in own[i + 1 :])
        if leaf.blocks is None:
            found.append(Entry(leaf, ((outer, inner),)))
        else:
            found += [
                Entry(axis, tuple((o, i * inner) for o, i in blocks) * outer) for axis, blocks in _in_each(leaf.blocks)
            ]
    return found


def axes(factors: Iterable[Factor]) -> list[Factor]:
    """The axes of :func:`entries`, without how they lie."""
    return [axis for leaf in leaves(factors) for axis in _axes(leaf)]


def _axes(leaf: Factor) -> list[Factor]:
    return [leaf] if leaf.blocks is None else [entry.axis for entry in _in_each(leaf.blocks)]


def width(leaf: Factor) -> int:
    """How many axes a leaf stands for."""
    return 1 if leaf.blocks is None else len(_in_each(leaf.blocks))


def _in_each(blocks: Sequence[Factor]) -> list[Entry]:
    """The axes that stand in each block, once; in the order of the first."""
    every = [entries([block]) for block in blocks]
    found = []
    for first in every[0]:
        same = [[entry for entry in own if entry.axis is first.axis] for own in every]
        if all(len(one) == 1 for one in same):
            found.append(Entry(first.axis, tuple(lies for one in same for lies in one[0].blocks)))
    return found


def unify(left: Sequence[Factor], right: Sequence[Factor]) -> bool:
    """Makes two ordered products of equal size one index, matching leaves from both ends.

    Where neither of two sizes divides the other, the leaves between the outer and the inner matches stay apart: the
    *cut*. Empty dimensions have no axes and are left alone.

    Returns:
        Whether everything matched; ``False`` tells of a cut.
    """
    if any(factor.find().size == 0 for factor in (*left, *right)):
        return True
    first, second = deque(leaves(left)), deque(leaves(right))
    assert prod(f.size for f in first) == prod(f.size for f in second), (
        f"products of unequal size: {[f.size for f in first]} and {[f.size for f in second]}"
    )
    _match(first, second, outer=True)
    if first or second:
        first, second = deque(leaves(first)), deque(leaves(second))
        _match(first, second, outer=False)
    return not (first or second)


def _match(left: deque[Factor], right: deque[Factor], outer: bool) -> None:
    """Consumes equal leaves from the outer (first) or the inner (last) end, refining the larger where it divides."""
    while left and right:
        a, b = (side.popleft().find() if outer else side.pop().find() for side in (left, right))
        if a.parts is not None or b.parts is not None:  # refined meanwhile, because it stands here twice
            _put_back(left, leaves([a]), outer)
            _put_back(right, leaves([b]), outer)
        elif a is b:
            continue
        elif a.size == b.size:
            if not _merge(a, b):
                _put_back(left, [a], outer)
                _put_back(right, [b], outer)
                return
        else:
            (large, rest_side), small = ((a, left), b) if a.size > b.size else ((b, right), a)
            if large.size % small.size or large.blocks is not None:
                _put_back(left, [a], outer)
                _put_back(right, [b], outer)
                return
            rest = Factor(large.size // small.size)
            large.parts = (small, rest) if outer else (rest, small)
            _put_back(rest_side, [rest], outer)


def _merge(a: Factor, b: Factor) -> bool:
    """Makes two leaves of equal size one; whether that could be. Blocks fall into those of the other sum."""
    if a.blocks is not None and b.blocks is not None:
        fine, coarse = (a, b) if len(a.blocks) >= len(b.blocks) else (b, a)
        assert fine.blocks is not None
        assert coarse.blocks is not None
        pending, pairs = deque(fine.blocks), []
        for block in coarse.blocks:
            parts: list[Factor] = []
            while sum(part.size for part in parts) < block.size:
                parts.append(pending.popleft())
            if sum(part.size for part in parts) > block.size:
                return False
            pairs.append((block, parts[0] if len(parts) == 1 else total(parts)))
        for block, part in pairs:
            unify([block], [part])
        coarse.parent = fine
    elif a.blocks is not None:
        b.parent = a
    else:
        a.parent = b
    return True


def _put_back(side: deque[Factor], factors: Sequence[Factor], outer: bool) -> None:
    if outer:
        side.extendleft(reversed(factors))
    else:
        side.extend(factors)


def inner_products(small: Sequence[Factor], large: Sequence[Factor], pieces: int = 8) -> list[int]:
    """Sizes of inner parts that a part of a dimension may share with the whole of it.

    For links by slice, split and cat: ``small`` is a dimension that is a stretch of the dimension ``large``. A common
    inner part is a product of innermost leaves of ``small`` that matches ``large`` from its inner end, without refining
    ``small``. A leaf of ``large`` may be refined only where at most ``pieces`` pieces of the inner part make up the
    whole.

    Returns:
        The sizes, ascending; the first is always 1.
    """
    found = [1]
    small_leaves, large_leaves = leaves(small), leaves(large)
    whole = prod(f.size for f in large_leaves)
    size, remaining = 1, 1  # remaining: what is left of the leaf of `large` that is being consumed
    for leaf in reversed(small_leaves):
        if leaf.blocks is not None:
            break
        if remaining == 1:
            if not large_leaves or large_leaves[-1].blocks is not None:
                break
            other = large_leaves.pop()
            remaining = 1 if other is leaf else other.size
            consumed = other is leaf
        else:
            consumed = False
        if not consumed:
            if remaining % leaf.size:
                break
            remaining //= leaf.size
        size *= leaf.size
        if remaining == 1 or whole // size <= pieces:
            found.append(size)
    return found

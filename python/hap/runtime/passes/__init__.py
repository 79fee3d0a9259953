"""Passes over the graphs that one rank runs: the same values, to rounding, from less work and memory.

Operators stand in a lowered graph as they were traced, each with a result of its own. Eager PyTorch does better in
places, where it has fused kernels or writes to memory that is not needed any more. Each pass makes up for one of these
where it surely may: it matches operators that it names, and asks :mod:`.aliases` for what shares memory. Collectives
stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torch import fx

from hap.runtime.passes import cross_entropy, in_place, rows, views
from hap.runtime.passes.aliases import Aliases, owned

__all__ = ["PASSES", "improve", "improve_part", "owned"]

Pass = Callable[[fx.Graph, Callable[[], Aliases]], int]

PASSES: tuple[Pass, ...] = (views.drop, cross_entropy.fuse, rows.add, in_place.reuse)
"""In order; each takes a graph and what tells its aliases as it is now, and says how often it changed it."""


def improve(forward: fx.Graph, backward: fx.Graph | None, saved: int, passes: Sequence[Pass]) -> None:
    """Run the passes over a step's graphs.

    Args:
        forward: the forward.
        backward: the backward. Its first placeholders are what the forward saves, in order.
        saved: how many of the forward's results, the last ones, are saved.
        passes: in order.
    """
    for change in passes:
        change(forward, lambda: Aliases(forward))
    if backward is not None:
        improve_part(backward, owned(forward, saved), passes)


def improve_part(graph: fx.Graph, groups: Sequence[Collection[int]], passes: Sequence[Pass]) -> None:
    """Run the passes over a graph that may write to these of its placeholders, as for :class:`Aliases`."""
    for change in passes:
        change(graph, lambda: Aliases(graph, groups))

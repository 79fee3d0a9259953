"""What is known of the values of a lowered graph: shape and element type of those that the reference program names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

_KEY = "hap_value"


class Known(NamedTuple):
    """A tensor's shape on this rank, and its element type."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def note(node: fx.Node, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Note what a node's value is."""
    node.meta[_KEY] = Known(tuple(shape), dtype)


def known(node: object) -> Known | None:
    """What a node's value is; ``None`` where that was not noted, and for what is no node."""
    return node.meta.get(_KEY) if isinstance(node, fx.Node) else None


def arguments(node: object, *targets: object) -> tuple[Any, ...]:
    """The positional arguments of a call of one of the targets; none of whatever else it is."""
    return node.args if isinstance(node, fx.Node) and node.target in targets else ()


def hand_over(before: fx.Node, after: fx.Node) -> None:
    """Put ``after`` in the place of ``before``, of which it has the same value."""
    after.meta.update(before.meta)
    before.replace_all_uses_with(after)
    before.graph.erase_node(before)


def erase_unused(node: fx.Node) -> None:
    """Erase a node that nothing reads any more, and what it alone has read; all of them without side effects."""
    if node.op == "call_function" and not node.users:
        read = node.all_input_nodes
        node.graph.erase_node(node)
        for one in read:
            erase_unused(one)

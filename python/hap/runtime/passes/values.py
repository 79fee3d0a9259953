"""What is known of the values of a lowered graph: shape on this rank, and element type, as far as noted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from hap.operators.matching import Call, Known

_KEY = "hap_value"


def note(node: fx.Node, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Note what a node's value is."""
    node.meta[_KEY] = Known(tuple(shape), dtype)


def known(node: object) -> Known | None:
    """What a node's value is; ``None`` where that was not noted, and for what is no node."""
    return node.meta.get(_KEY) if isinstance(node, fx.Node) else None


def arguments(node: object, *targets: object) -> tuple[Any, ...]:
    """The positional arguments of a call of one of the targets; none of whatever else it is."""
    return node.args if isinstance(node, fx.Node) and node.target in targets else ()


class Nodes:
    """The nodes of a graph, for :mod:`hap.operators.matching`."""

    def call(self, value: object, target: torch._ops.OpOverload) -> Call | None:
        """The call of ``target`` that makes a value."""
        return Call(value.args, value.kwargs) if isinstance(value, fx.Node) and value.target == target else None

    def known(self, value: object) -> Known | None:
        """As :func:`known`."""
        return known(value)

    def readers(self, value: fx.Node) -> int:
        """How many nodes read a value."""
        return len(value.users)


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

"""Shortening the joint graph without changing what it computes: fewer passes over memory, fewer operators to plan."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten


def simplify(graph: Graph) -> None:
    """Applies all simplifications in place. Random operators must carry their state and index by now."""
    _drop_clones_and_permutations(graph)
    _merge_equal_calls(graph)
    graph.eliminate_dead_code()


def _drop_clones_and_permutations(graph: Graph) -> None:
    """Drops clones that leave the strides as they are, and permutations that undo each other."""
    for node in list(graph.nodes):
        if node.target is aten.clone.default:
            source = node.args[0]
            if node.meta["val"].stride() == source.meta["val"].stride():
                node.replace_all_uses_with(source)
                graph.erase_node(node)
        elif node.target is aten.permute.default:
            source, order = node.args
            if source.target is aten.permute.default:
                rank = len(order)
                order = [source.args[1][dim % rank] % rank for dim in order]
                source = source.args[0]
                node.args = (source, order)
            if list(order) == list(range(len(order))):
                node.replace_all_uses_with(source)
                graph.erase_node(node)


def _merge_equal_calls(graph: Graph) -> None:
    """Computes once what is called twice in one phase.

    Not across phases: what the backward computes again would otherwise be kept from the forward.
    """
    seen: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        phase = node.meta.get("partitioner_tag")
        first = seen.setdefault((node.target, phase, _key(node.args), _key(node.kwargs)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _key(value: Any) -> Any:
    """Hashable; equal only for arguments of equal type and value."""
    if isinstance(value, (list, tuple)):
        return tuple(_key(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in value.items())
    if isinstance(value, float):
        return float, value.hex()
    return type(value), value

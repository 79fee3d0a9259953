"""Which values of a graph may share memory, when that memory is last read, and whether a step may write to it.

What :mod:`hap.operators.memory` says of operators is believed. Whatever else is called (collectives, operators of
hap's own or of users) may return or keep what it is given: memory that went through it, or came from outside, is never
written to.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import getitem
from typing import Any

import torch
from torch import fx

from hap.operators.memory import is_opaque, shows_all


class Aliases:
    """The values of a graph in groups that may share memory.

    Args:
        graph: the graph.
        owned: groups of positions of placeholders whose memory the graph may write to, as nobody else has it; those
            of one group may share it.
    """

    def __init__(self, graph: fx.Graph, owned: Sequence[Collection[int]] = ()) -> None:
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self._parent: dict[fx.Node, fx.Node] = {}
        self._last: dict[fx.Node, int] = {}
        self._foreign: dict[fx.Node, bool] = {}
        self._partial: set[fx.Node] = set()
        self._items: dict[tuple[Any, ...], fx.Node] = {}
        mine = {position for group in owned for position in group}
        for node, index in self.position.items():
            self._parent[node] = node
            self._last[node] = max((self.position[user] for user in node.users), default=index)
            self._foreign[node] = node.op == "placeholder" and index not in mine
            if node.op == "call_function":
                self._join(node)
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        for group in owned:
            first, *others = (placeholders[position] for position in sorted(group))
            for other in others:
                self.unite(first, other)

    def _join(self, node: fx.Node) -> None:
        views = viewed(node)
        if views is None:
            self._foreign[node] = True
            views = node.all_input_nodes
        elif views and not (
            isinstance(node.target, torch._ops.OpOverload)
            and shows_all(node.target)
            and self._partial.isdisjoint(views)
        ):
            self._partial.add(node)
        for one in views:
            self.unite(node, one)
        if node.target is getitem:
            self.unite(self._items.setdefault(node.args, node), node)

    def group(self, node: fx.Node) -> fx.Node:
        """The node that stands for all that may share memory with this one."""
        while (parent := self._parent[node]) is not node:
            self._parent[node] = self._parent[parent]
            node = parent
        return node

    def unite(self, one: fx.Node, other: fx.Node) -> None:
        """Let two values share memory."""
        one, other = self.group(one), self.group(other)
        if one is not other:
            self._parent[other] = one
            self._last[one] = max(self._last[one], self._last[other])
            self._foreign[one] |= self._foreign[other]

    def outside(self, node: fx.Node) -> bool:
        """Whether someone outside of the graph may have the memory."""
        return self._foreign[self.group(node)]

    def partial(self, node: fx.Node) -> bool:
        """Whether the value may leave out elements of its memory, or show one at several places."""
        return node in self._partial

    def free_after(self, value: Any, user: fx.Node) -> bool:
        """Whether ``user``, which reads ``value``, may write its result there: nothing reads it later or otherwise."""
        if not isinstance(value, fx.Node) or self.outside(value) or self.partial(value):
            return False
        group = self.group(value)
        readers = [one for one in user.all_input_nodes if self.group(one) is group]
        return readers == [value] and self._last[group] == self.position[user]


def viewed(node: fx.Node) -> list[fx.Node] | None:
    """What a call's result may be a view of; ``None`` if that is not known."""
    if node.target is getitem:
        (source,) = node.all_input_nodes
        inner = viewed(source)
        # Several results of an operator that makes no views are several pieces of memory.
        return inner if inner is None or not inner else [source]
    if not isinstance(node.target, torch._ops.OpOverload) or is_opaque(node.target):
        return None
    schema = node.target._schema
    given = [*zip(schema.arguments, node.args, strict=False)]
    given += [(argument, node.kwargs[argument.name]) for argument in schema.arguments if argument.name in node.kwargs]
    found: list[fx.Node] = []
    for argument, value in given:
        if argument.alias_info is not None:
            fx.node.map_arg(value, found.append)
    return found


def owned(forward: fx.Graph, saved: int) -> list[set[int]]:
    """Of the last ``saved`` results of a forward those whose memory nobody else has: positions among them, in groups.

    Left out is what may share memory with an input, with a result that is not saved, or with what is unknown, and what
    is seen through a part of it.
    """
    aliases = Aliases(forward)
    (results,) = forward.output_node().args
    assert isinstance(results, (list, tuple))
    count = len(results) - saved
    nodes = [one for one in results if isinstance(one, fx.Node)]
    assert len(nodes) == len(results)
    others = {aliases.group(one) for index, one in enumerate(nodes) if index < count or aliases.partial(one)}
    found: dict[fx.Node, set[int]] = {}
    for position, one in enumerate(nodes[count:]):
        group = aliases.group(one)
        if not aliases.outside(one) and group not in others:
            found.setdefault(group, set()).add(position)
    return list(found.values())

"""Reshapes to the shape that a value has already are dropped, and chains of them are one where they cannot copy."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from hap.runtime.passes.aliases import Aliases
from hap.runtime.passes.values import arguments, erase_unused, known

aten = torch.ops.aten

_CONTIGUOUS = (aten.mm.default, aten.addmm.default, aten.bmm.default)
_RESHAPES = (aten.reshape.default, aten.view.default)


def drop(graph: fx.Graph, find: Callable[[], Aliases]) -> int:
    """See the module."""
    count = 0
    for node in list(graph.nodes):
        called = arguments(node, *_RESHAPES)
        if not called:
            continue
        source, shape = called
        while (inner := arguments(source, *_RESHAPES)) and _lies_as_shaped(source):
            node.args = (inner[0], shape)
            erase_unused(source)
            source = inner[0]
            count += 1
        before = known(source)
        returned = any(user.op == "output" for user in node.users)
        if before is not None and before.shape == tuple(shape) and not returned:
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            count += 1
    return count


def _lies_as_shaped(node: fx.Node) -> bool:
    """Whether a value surely lies in memory as its shape says, so that no reshape copies it."""
    while inner := arguments(node, *_RESHAPES):
        node = inner[0]
    return node.target in _CONTIGUOUS

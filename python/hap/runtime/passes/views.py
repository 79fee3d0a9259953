"""Reshapes to the shape that a value has already are dropped, as are those of reshapes that nothing else reads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from hap.runtime.passes.aliases import Aliases
from hap.runtime.passes.values import arguments, known

aten = torch.ops.aten

_RESHAPES = (aten.reshape.default, aten.view.default)


def drop(graph: fx.Graph, find: Callable[[], Aliases]) -> int:
    """See the module."""
    count = 0
    for node in list(graph.nodes):
        called = arguments(node, *_RESHAPES)
        if not called:
            continue
        source, shape = called
        # Of a reshape that may copy, a second reader would make a second copy.
        while (inner := arguments(source, *_RESHAPES)) and len(source.users) == 1:
            node.target, node.args = aten.reshape.default, (inner[0], shape)
            graph.erase_node(source)
            source = inner[0]
            count += 1
        before = known(source)
        returned = any(user.op == "output" for user in node.users)
        if before is not None and before.shape == tuple(shape) and not returned:
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            count += 1
    return count

"""Elementwise operators write their result to the memory of an operand that is not needed any more.

So do those that change some elements of a new tensor of one number (scatter, index_put, ...). Saves the allocation,
which on CPUs costs about as much as the operation where the tensor is large, and the memory itself. The operand is the
first one, whose order in memory the result would have taken anyway (but for the gradient of a threshold, as of relu,
which would take that of the other).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from hap.operators.memory import CHANGING, writing
from hap.runtime.passes.aliases import Aliases
from hap.runtime.passes.values import arguments, known

aten = torch.ops.aten


def reuse(graph: fx.Graph, find: Callable[[], Aliases]) -> int:
    """See the module."""
    aliases, count = find(), 0
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        operand = _operand(node, aliases)
        if operand is None:
            continue
        if node.target in CHANGING:
            node.target = CHANGING[node.target]
        else:
            found = writing(node.target)
            assert found is not None
            node.target, name = found
            node.kwargs = {**node.kwargs, name: operand}
        aliases.unite(node, operand)
        count += 1
    return count


def _operand(node: fx.Node, aliases: Aliases) -> fx.Node | None:
    """The operand whose memory the result may take."""
    first = node.args[0] if node.args else None
    if not isinstance(first, fx.Node) or not aliases.free_after(first, node):
        return None
    if node.target in CHANGING:
        # The order in memory of some results is not that of the operand; that of new numbers is plain.
        return first if arguments(first, aten.full.default) else None
    assert isinstance(node.target, torch._ops.OpOverload)
    result = known(node)
    return first if result is not None and known(first) == result and writing(node.target) is not None else None

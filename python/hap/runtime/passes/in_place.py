"""Elementwise operators write their result to the memory of an operand that is not needed any more.

So do those that change some elements of a new tensor of one number (scatter, index_put, ...). Saves the allocation,
which on CPUs costs about as much as the operation where the tensor is large, and the memory itself. The operand is the
first one, whose order in memory the result would have taken anyway (but for the gradient of a threshold, as of relu,
which would take that of the other).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import fx

from hap.runtime.passes.aliases import Aliases
from hap.runtime.passes.values import arguments, known

aten = torch.ops.aten

_CHANGING = {
    aten.scatter.value: aten.scatter_.value,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_put.default: aten.index_put_.default,
}
"""Operators that change some elements of their first operand, and the same in place."""


@cache
def _writing(operator: torch._ops.OpOverload) -> tuple[torch._ops.OpOverload, str] | None:
    """The overload of an elementwise operator that takes where to write the result, and the name of that argument."""
    if torch.Tag.pointwise not in operator.tags or len(operator._schema.returns) != 1:
        return None
    if any(one.name == "memory_format" for one in operator._schema.arguments):
        return None  # asks for an order of its own
    own = [(one.name, str(one.type)) for one in operator._schema.arguments]
    packet = operator.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        given = [one for one in other._schema.arguments if not one.is_out]
        out = [one.name for one in other._schema.arguments if one.is_out]
        if len(out) == 1 and [(one.name, str(one.type)) for one in given] == own:
            return other, out[0]
    return None


def reuse(graph: fx.Graph, find: Callable[[], Aliases]) -> int:
    """See the module."""
    aliases, count = find(), 0
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        operand = _operand(node, aliases)
        if operand is None:
            continue
        if node.target in _CHANGING:
            node.target = _CHANGING[node.target]
        else:
            found = _writing(node.target)
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
    if node.target in _CHANGING:
        # The order in memory of some results is not that of the operand; that of new numbers is plain.
        return first if arguments(first, aten.full.default) else None
    assert isinstance(node.target, torch._ops.OpOverload)
    result = known(node)
    return first if result is not None and known(first) == result and _writing(node.target) is not None else None

"""Elementwise operators write their result to the memory of an operand that is not needed any more.

So do those that change some elements of an operand only (scatter, index_put, ...). Saves the allocation, which on CPUs
costs about as much as the operation where the tensor is large, and the memory itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx

from hap.runtime.passes.aliases import Aliases
from hap.runtime.passes.values import known

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


def _reads(value: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether a value is among the arguments, or in a list among them."""
    found: list[fx.Node] = []
    fx.node.map_arg(arguments, found.append)
    return value in found


def _operand(node: fx.Node, aliases: Aliases) -> fx.Node | None:
    """The operand whose memory the result may take."""
    result, candidates = known(node), list[Any]()
    if node.target in _CHANGING:
        # The others are read while it is written to.
        candidates = [one for one in node.args[:1] if not _reads(one, node.args[1:])]
    elif result is not None and _writing(node.target) is not None:
        candidates = [one for one in node.all_input_nodes if known(one) == result]
    return next((one for one in candidates if aliases.free_after(one, node)), None)

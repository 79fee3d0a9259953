"""ATen's random operators in the joint graph are replaced by ``torch.ops.hap``'s.

Those that have no counterpart are refused by name: none may draw from a generator that the graph cannot see.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.fx import Graph, Node

from hap import operators  # noqa: F401  defines torch.ops.hap
from hap.errors import TraceError
from hap.trace.sources import source_of

aten = torch.ops.aten
hap = torch.ops.hap

FILLS: dict[Any, tuple[Any, tuple[str, ...]]] = {
    aten.rand.default: (hap.rand, ()),
    aten.rand.generator: (hap.rand, ()),
    aten.randn.default: (hap.randn, ()),
    aten.randn.generator: (hap.randn, ()),
    aten.bernoulli.p: (hap.bernoulli, ("p",)),
    aten.randint.low: (hap.randint, ("low", "high")),
    aten.randint.low_generator: (hap.randint, ("low", "high")),
}
"""What each becomes, and the arguments that it keeps."""


def is_random(node: Node) -> bool:
    """Whether a node draws random numbers, or, of hap's operators, will do so once it is given their state."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target.namespace == "hap":
        return _has_argument(node, "rng") and bool(argument(node, "p"))
    return torch.Tag.nondeterministic_seeded in node.target.tags


def replace_random(graph: Graph, rng: Node) -> None:
    """Replaces ATen's random operators and gives attention its state.

    Raises:
        TraceError: there is an operator that has no counterpart, or one with a generator of its own.
    """
    # Numbers that attention does not use; all are replaced afterwards.
    numbers = itertools.count(-1, -1)
    for node in list(graph.nodes):
        if not is_random(node):
            continue
        if node.target.namespace == "hap":
            _set_argument(node, "rng", rng)
        elif node.target is aten.native_dropout.default:
            _replace_dropout(graph, node, rng, next(numbers))
        elif node.target in FILLS and not node.kwargs.get("generator"):
            _replace_fill(graph, node, rng, next(numbers))
        else:
            raise TraceError(
                f"{source_of(node) or 'the module'}: {node.target} draws random numbers in a way that hap cannot "
                "repeat on every device; expected dropout, torch.rand, torch.randn, torch.bernoulli and what is made "
                "of them, without a generator= of their own; draw the numbers outside of the module and pass them as "
                "an input"
            )


def _replace_dropout(graph: Graph, node: Node, rng: Node, number: int) -> None:
    """``native_dropout`` and the backward that reads its mask: both draw the mask instead."""
    x, p = node.args[0], 0.0 if argument(node, "train") is False else argument(node, "p")
    for result in list(node.users):
        if result.args[1] == 0:
            dropped = _inserted(graph, node, hap.dropout.default, (x, rng, p, number), result)
            result.replace_all_uses_with(dropped)
        else:
            for backward in list(result.users):
                if backward.target is aten.native_dropout_backward.default:
                    args = (backward.args[0], rng, p, number)
                    backward.replace_all_uses_with(_inserted(graph, backward, hap.dropout.default, args, backward))
                    graph.erase_node(backward)
            if result.users:
                value = result.meta["val"]
                drawn = (rng, list(value.shape), 1 - p, number, value.dtype, value.device)
                result.replace_all_uses_with(_inserted(graph, node, hap.bernoulli.default, drawn, result))
        graph.erase_node(result)
    graph.erase_node(node)


def _replace_fill(graph: Graph, node: Node, rng: Node, number: int) -> None:
    value = node.meta["val"]
    target, names = FILLS[node.target]
    args = (rng, list(value.shape), *(argument(node, name) for name in names), number, value.dtype, value.device)
    node.replace_all_uses_with(_inserted(graph, node, target.default, args, node))
    graph.erase_node(node)


def number_random(graph: Graph) -> None:
    """Numbers the random operators in the order of the graph, so that equal modules give equal graphs.

    A forward and its backward draw the same numbers, so they have one number.
    """
    numbers: dict[int, int] = {}
    for node in graph.nodes:
        if (
            node.op != "call_function"
            or getattr(node.target, "namespace", "") != "hap"
            or not _has_argument(node, "rng")
        ):
            continue
        random = argument(node, "rng") is not None
        _set_argument(node, "index", numbers.setdefault(argument(node, "index"), len(numbers)) if random else 0)


def _inserted(graph: Graph, before: Node, target: Any, args: tuple[Any, ...], meta: Node) -> Node:
    with graph.inserting_before(before):
        node = graph.call_function(target, args)
    node.meta = dict(meta.meta)
    return node


def _names(node: Node) -> list[str]:
    assert isinstance(node.target, torch._ops.OpOverload)
    return [argument.name for argument in node.target._schema.arguments]


def _has_argument(node: Node, name: str) -> bool:
    return name in _names(node)


def argument(node: Node, name: str) -> Any:
    """An argument of a call, by its name in the schema."""
    position = _names(node).index(name)
    if position < len(node.args):
        return node.args[position]
    assert isinstance(node.target, torch._ops.OpOverload)
    return node.kwargs.get(name, node.target._schema.arguments[position].default_value)


def _set_argument(node: Node, name: str, value: Any) -> None:
    node.update_arg(_names(node).index(name), value)

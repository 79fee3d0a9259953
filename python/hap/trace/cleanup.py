"""What is changed in the joint graph before it becomes a :class:`hap.graph.Graph`."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch._functorch._aot_autograd.descriptors import GradAOTOutput
from torch.fx import Graph, Node

from hap.errors import TraceError
from hap.trace.simplify import simplify
from hap.trace.sources import source_of

aten = torch.ops.aten
hap = torch.ops.hap

_PASS_THROUGH = {aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default, aten.lift.default}
_ASSERTIONS = {aten._assert_async.msg, aten._assert_async.default, aten._assert_tensor_metadata.default}

_FILLS: dict[Any, Any] = {
    aten.rand.default: hap.rand,
    aten.rand.generator: hap.rand,
    aten.randn.default: hap.randn,
    aten.randn.generator: hap.randn,
    aten.bernoulli.p: hap.bernoulli,
}


def clean(graph: Graph) -> Node | None:
    """Cleans up in place; returns the placeholder for the state of the random numbers if an operator needs one."""
    rng: Node | None = None
    if any(_is_random(node) for node in graph.nodes):
        last = [node for node in graph.nodes if node.op == "placeholder"][-1]
        with graph.inserting_after(last):
            rng = graph.placeholder("rng")
    _drop(graph)
    if rng is not None:
        _replace_random(graph, rng)
    _drop_output_clones(graph)
    graph.eliminate_dead_code()
    simplify(graph)
    _number_random(graph)
    _separate_outputs(graph)
    graph.lint()
    return rng


def _drop(graph: Graph) -> None:
    for node in list(graph.nodes):
        if node.target in _PASS_THROUGH:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target in _ASSERTIONS:
            graph.erase_node(node)


def _drop_output_clones(graph: Graph) -> None:
    """The root module clones differentiable outputs so that they do not alias; here values do not alias anyway."""
    output = next(node for node in graph.nodes if node.op == "output")
    for node in output.all_input_nodes:
        if node.target is aten.clone.default:
            output.replace_input_with(node, node.args[0])


def _separate_outputs(graph: Graph) -> None:
    """Gives each output a tensor of its own that an operator writes.

    The gradient of an added bias may be the tangent itself, and two parameters may have the same gradient; what is done
    to one in place must not reach the other.
    """
    output = next(node for node in graph.nodes if node.op == "output")
    seen: set[Node] = set()
    results: list[Any] = []
    for described, node in zip(output.meta["desc"], output.args[0], strict=True):
        if isinstance(node, Node) and (node.op != "call_function" or node in seen):
            with graph.inserting_before(output):
                copy = graph.call_function(aten.clone.default, (node,))
            backward = isinstance(described, GradAOTOutput)
            copy.meta = {**node.meta, "partitioner_tag": "is_backward" if backward else "is_forward"}
            copy.meta.pop("desc", None)
            node = copy
        if isinstance(node, Node):
            seen.add(node)
        results.append(node)
    output.args = (results,)


def _is_random(node: Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target in (hap.sdpa.default, hap.sdpa_backward.default):
        return bool(_argument(node, "p"))
    return torch.Tag.nondeterministic_seeded in node.target.tags or node.target is aten.native_dropout.default


def _argument(node: Node, name: str) -> Any:
    """An argument of a call, by its name in the schema."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    for position, argument in enumerate(target._schema.arguments):
        if argument.name == name:
            if position < len(node.args):
                return node.args[position]
            return node.kwargs.get(name, argument.default_value)
    raise AssertionError(f"{target} has no argument {name}")


def _set_argument(node: Node, name: str, value: Any) -> None:
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    position = [argument.name for argument in target._schema.arguments].index(name)
    node.update_arg(position, value)


def _replace_random(graph: Graph, rng: Node) -> None:
    # Numbers that attention does not use; all are replaced afterwards.
    numbers = itertools.count(-1, -1)
    for node in list(graph.nodes):
        if not _is_random(node):
            continue
        if node.target in (hap.sdpa.default, hap.sdpa_backward.default):
            _set_argument(node, "rng", rng)
        elif node.target is aten.native_dropout.default:
            _replace_dropout(graph, node, rng, next(numbers))
        elif node.target in _FILLS and not node.kwargs.get("generator"):
            _replace_fill(graph, node, rng, next(numbers))
        else:
            raise TraceError(
                f"{source_of(node) or 'the module'}: {node.target} draws random numbers in a way that hap cannot "
                "repeat on every device; expected dropout, torch.rand, torch.randn, torch.bernoulli and what is made "
                "of them; draw the numbers outside of the module and pass them as an input"
            )


def _inserted(graph: Graph, before: Node, target: Any, args: tuple[Any, ...], meta: Node) -> Node:
    with graph.inserting_before(before):
        node = graph.call_function(target, args)
    node.meta = dict(meta.meta)
    return node


def _replace_dropout(graph: Graph, node: Node, rng: Node, number: int) -> None:
    """``native_dropout`` and the backward that reads its mask: both draw the mask instead."""
    x, p = node.args[:2]
    for result in list(node.users):
        if result.args[1] == 0:
            dropped = _inserted(graph, node, hap.dropout.default, (x, rng, p, number), result)
            result.replace_all_uses_with(dropped)
        else:
            for backward in list(result.users):
                if backward.target is not aten.native_dropout_backward.default:
                    where = source_of(backward) or source_of(node) or "the module"
                    raise TraceError(
                        f"{where}: uses the mask of torch.native_dropout, which hap does not keep: draw a "
                        "mask with torch.bernoulli and multiply by it"
                    )
                args = (backward.args[0], rng, p, number)
                backward.replace_all_uses_with(_inserted(graph, backward, hap.dropout.default, args, backward))
                graph.erase_node(backward)
        graph.erase_node(result)
    graph.erase_node(node)


def _replace_fill(graph: Graph, node: Node, rng: Node, number: int) -> None:
    value = node.meta["val"]
    target = _FILLS[node.target]
    probability = (_argument(node, "p"),) if node.target is aten.bernoulli.p else ()
    args = (rng, list(value.shape), *probability, number, value.dtype, value.device)
    node.replace_all_uses_with(_inserted(graph, node, target.default, args, node))
    graph.erase_node(node)


def _number_random(graph: Graph) -> None:
    """Numbers the random operators in the order of the graph, so that equal modules give equal graphs."""
    numbers: dict[int, int] = {}
    for node in graph.nodes:
        if node.op != "call_function" or getattr(node.target, "namespace", "") != "hap":
            continue
        random = _argument(node, "rng") is not None
        old = _argument(node, "index")
        _set_argument(node, "index", numbers.setdefault(old, len(numbers)) if random else 0)

"""What is changed in the joint graph before it becomes a :class:`hap.graph.Graph`."""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch._aot_autograd.descriptors import GradAOTOutput
from torch.fx import Graph, Node

from hap.trace.contiguous import make_contiguous
from hap.trace.random import is_random, number_random, replace_random
from hap.trace.simplify import simplify

aten = torch.ops.aten

_PASS_THROUGH = {aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default, aten.lift.default}
_ASSERTIONS = {
    aten._assert_async.msg,
    aten._assert_async.default,
    aten._assert_tensor_metadata.default,
    aten._linalg_check_errors.default,
}


def clean(graph: Graph) -> Node | None:
    """Cleans up in place; returns the placeholder for the state of the random numbers if an operator needs one."""
    rng: Node | None = None
    if any(is_random(node) for node in graph.nodes):
        last = [node for node in graph.nodes if node.op == "placeholder"][-1]
        with graph.inserting_after(last):
            rng = graph.placeholder("rng")
    _drop(graph)
    if rng is not None:
        replace_random(graph, rng)
    _drop_output_clones(graph)
    graph.eliminate_dead_code()
    simplify(graph)
    make_contiguous(graph)
    number_random(graph)
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

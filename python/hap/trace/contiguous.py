"""Activations that lie in memory in a permuted order are made contiguous once, not in each operator that needs it.

``patches(x).flatten(2).transpose(1, 2)`` is a view in whose order the pointwise operators after it write: all along a
residual stream each layer norm, and its backward, would first copy what it reads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils._pytree import tree_map

import hap.operators  # noqa: F401  defines torch.ops.hap

aten = torch.ops.aten

# By operator the places of the operands that it copies where they are not contiguous; what it writes always is.
_COPIED = {
    aten.native_layer_norm.default: (0,),
    aten.native_layer_norm_backward.default: (0, 1),
    aten.clone.default: (0,),
}
# Like those that are tagged as pointwise these read any order, and copy nothing.
_ANY_ORDER = {
    aten._to_copy.default,
    aten.mean.dim,
    aten.mean.default,
    aten.sum.dim_IntList,
    aten.sum.default,
    torch.ops.hap.dropout.default,
}
_VIEWS = {aten.permute.default, aten.view.default, aten.unsqueeze.default, aten.squeeze.dims, aten.squeeze.dim}


def make_contiguous(graph: Graph) -> None:
    """Puts a copy behind each permutation where that spares two or more; strides in ``meta["val"]`` stay true.

    Nothing is done where an operator that may want the permuted order reads it (convolutions, views, products), and
    where the tensor behind the permutation is read otherwise: it would be kept beside its copy.
    """
    for node in list(graph.nodes):
        if node.target is not aten.permute.default or node.meta["val"].is_contiguous() or not _alone(node):
            continue
        changed = _changed(node)
        if changed is None:
            continue
        with graph.inserting_after(node):
            copy = graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
        node.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)
        copy.meta = {**node.meta, "val": changed.pop(node)}
        for other, value in changed.items():
            other.meta["val"] = value
        for other in [copy, *changed]:
            for user in [user for user in other.users if _is_copy(user)]:
                user.replace_all_uses_with(other)
                graph.erase_node(user)


def _alone(node: Node) -> bool:
    """Whether nothing but a chain of views up to this one reads what it is a view of; the copy then takes its place."""
    if not torch._prims_common.is_non_overlapping_and_dense_or_false(node.meta["val"]):
        return False
    while node.target in _VIEWS:
        node = node.all_input_nodes[0]
        if node.op != "call_function" or len(node.users) > 1:
            return False
    return True


def _is_copy(node: Node) -> bool:
    return node.target is aten.clone.default and node.kwargs.get("memory_format") is torch.contiguous_format


def _changed(permuted: Node) -> dict[Node, torch.Tensor] | None:
    """The fakes of all nodes that become contiguous if one does; ``None`` where that does not pay."""
    fake = permuted.meta["val"]
    with fake.fake_mode:
        values: dict[Node, torch.Tensor] = {permuted: fake.clone(memory_format=torch.contiguous_format)}
        spared = 0
        node = permuted
        while (node := node.next).op != "root":
            if not any(operand in values for operand in node.all_input_nodes):
                continue
            if node.target in _COPIED and (node.target is not aten.clone.default or _is_copy(node)):
                spared += sum(node.args[place] in values for place in _COPIED[node.target])
                continue
            value = _any_order(node, values)
            if value is None:
                return None
            if value.stride() != node.meta["val"].stride():
                if not value.is_contiguous():
                    return None
                values[node] = value
    return values if spared > 1 else None


def _permuted(operand: Node, reader: Node) -> bool:
    """Whether an operand as large as the reader's result lies in a permuted order: beside others, reads would jump."""
    value = operand.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.shape != reader.meta["val"].shape:
        return False
    return not value.is_contiguous()


def _any_order(node: Node, values: dict[Node, torch.Tensor]) -> torch.Tensor | None:
    """What a node gives for these values of its operands; ``None`` if its speed or result hangs on their order."""
    if not isinstance(node.target, torch._ops.OpOverload) or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    if torch.Tag.pointwise not in node.target.tags and node.target not in _ANY_ORDER:
        return None
    if any(_permuted(operand, node) for operand in node.all_input_nodes if operand not in values):
        return None
    if node.target is torch.ops.hap.dropout.default:
        return torch.empty_like(values[node.all_input_nodes[0]])

    def given(operand: Any) -> Any:
        return values.get(operand, operand.meta["val"]) if isinstance(operand, Node) else operand

    result = node.target(*tree_map(given, node.args), **tree_map(given, node.kwargs))
    assert isinstance(result, torch.Tensor), node
    return result

"""Operators that read how a tensor lies in memory: ``as_strided``, and views as another element type."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from hap.errors import TraceError
from hap.graph import Graph, Inspection
from hap.trace.sources import source_of

aten = torch.ops.aten

_STRIDED = (aten.as_strided.default, aten.as_strided_scatter.default)


def check_memory(node: Node, given: Mapping[Node, torch.Tensor]) -> None:
    """Refuses what depends on how one device keeps a tensor in memory: ranks may keep it otherwise.

    Args:
        node: a node of the joint graph, with fakes that have the strides of what they stand for.
        given: the parameters, buffers and inputs that placeholders stand for.
    """
    where = source_of(node) or "the module"
    if node.target is aten.view.dtype:
        raise TraceError(
            f"{where}: reads the bytes of a tensor as another element type, which has no gradient and cannot be shared "
            "out: convert the values (`.to(dtype)`), or do it outside of the module and pass the result as an input"
        )
    if node.target not in _STRIDED:
        return
    assert isinstance(node.target, torch._ops.OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    arguments: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    value = arguments["self"].meta["val"]
    from_start = arguments.get("storage_offset") is not None
    if not value.is_contiguous() or (from_start and value.storage_offset() != 0):
        raise TraceError(
            f"{where}: as_strided reads the memory of a tensor that is a view of another, by its place there: use "
            "unfold, slices or transpose, or give it a copy that lies in memory as its shape says (`.clone("
            "memory_format=torch.contiguous_format)`)"
        )
    base = given.get(_base(arguments["self"]))
    if from_start and base is not None and base.storage_offset() != 0:
        raise TraceError(
            f"{where}: as_strided counts storage_offset from the start of memory in which a parameter, buffer or input "
            "begins later: leave storage_offset out, or `.clone()` that tensor before it is handed to hap"
        )


def _base(node: Node) -> Node:
    """What a node is a view of."""
    while node.op == "call_function":
        schema = getattr(node.target, "_schema", None)
        is_view = schema is not None and any(result.alias_info is not None for result in schema.returns)
        if not (is_view or node.target is operator.getitem):
            break
        node = node.all_input_nodes[0]
    return node


def layouts(graph: Graph, examples: Mapping[str, torch.Tensor]) -> list[Inspection]:
    """How the inputs lie in memory, as what a graph inspects, where it holds an operator that reads that.

    The results of operators lie as their operands do: such a graph is that of calls with inputs of the same strides.
    """
    reader = next((one for one in graph.operators if one.target in _STRIDED), None)
    if reader is None or not examples:
        return []

    def compute(tensors: Mapping[str, torch.Tensor]) -> Any:
        return [_layout(tensors[name]) for name in examples]

    return [Inspection(reader.source or "as_strided", compute(examples), compute)]


def _layout(tensor: torch.Tensor) -> list[Any]:
    """Strides of the dimensions that have any, and whether the tensor begins its memory."""
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    return [strides, tensor.storage_offset() == 0]

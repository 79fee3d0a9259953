"""An annotated graph as JSON for the Rust core (``rust/graph.rs``), and its fingerprint."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from hap.graph import Graph
from hap.placement import Placements
from hap.rules import costs, pieces
from hap.rules.choices import Choice, summable
from hap.rules.naming import Axis
from hap.rules.reuse import Reuse, find_reuse

if TYPE_CHECKING:
    from hap.rules.annotate import AxisGraph

FORMAT = "hap-graph-1"


def to_json(axes: AxisGraph) -> bytes:
    """The graph in the format ``hap-graph-1``; shapes and arguments stay in Python."""
    graph = axes.graph
    # Layers have equal choices.
    written = cache(_choice)
    operators = zip(axes.written_operators, axes.choices, strict=True)
    return msgspec.json.encode(
        {
            "format": FORMAT,
            "axes": [_axis(axis) for axis in axes.axes],
            "tensors": [
                {
                    "name": tensor.name,
                    "dtype": costs.dtype_name(tensor.dtype),
                    "bytes": float(tensor.bytes),
                    "occurrences": [o.axis for o in occurrences],
                    **({} if not occurrences or pieces.leads(tensor.shape, occurrences[0]) else {"scattered": True}),
                    "summable": summable(tensor.dtype),
                }
                for tensor, occurrences in zip(graph.tensors, axes.occurrences, strict=True)
            ],
            "inputs": [{"kind": i.kind, "name": i.name, "tensor": i.tensor} for i in graph.inputs],
            "operators": [{**each, "choices": list(map(written, choices))} for each, choices in operators],
            "outputs": [
                {"kind": o.kind, "name": o.name, "tensor": o.tensor, "of": o.of}
                for o in graph.outputs
                if o.tensor is not None
            ],
        }
    )


def _axis(axis: Axis) -> dict[str, Any]:
    written: dict[str, Any] = {"name": axis.name, "size": axis.size}
    if axis.parts:
        written["parts"] = axis.parts
    if axis.of is not None:
        written["of"] = axis.of
    return written


def operators(axes: AxisGraph) -> tuple[dict[str, Any], ...]:
    """What is written of each operator beside its choices: the same whatever the split classes."""
    reuse = find_reuse(axes.graph)
    return tuple(_operator(axes, index, reuse) for index in range(len(axes.graph.operators)))


def _operator(axes: AxisGraph, index: int, reuse: Reuse) -> dict[str, Any]:
    operator, call, bound = axes.graph.operators[index], axes.calls[index], axes.bound[index]
    operand_bytes, result_bytes = costs.touched(call, None if bound is None else bound.rule)
    family = costs.family(operator.target)
    return {
        "name": operator.name,
        "target": str(operator.target),
        "operands": list(operator.operands),
        "results": [t for t in operator.results if t is not None],
        "flops": axes.flops[index],
        "operand_bytes": [operand_bytes[place] for place in call.order],
        "result_bytes": [b for b, t in zip(result_bytes, operator.results, strict=True) if t is not None],
        "dtype": costs.dtype_name(costs.speed_dtype(call)),
        **({} if family is None else {"family": family}),
        "layout": axes.layout[index],
        **({"reuses": reuse.reuses[index]} if index in reuse.reuses else {}),
        **{name: True for name in ("fused", "opaque", "partial") if index in getattr(reuse, name)},
    }


def _choice(choice: Choice) -> msgspec.Raw:
    written: dict[str, Any] = {
        "inputs": [_placements(p) for p in choice.inputs],
        "outputs": [_placements(p) for p in choice.outputs],
        "axis": choice.axis,
    }
    if choice.composite is not None:
        written["composite"] = choice.composite
        written["collectives"] = [
            {"conversion": inner.conversion, "bytes": inner.bytes, "axis": inner.axis} for inner in choice.collectives
        ]
    return msgspec.Raw(msgspec.json.encode(written))


def _placements(placements: Placements) -> list[str]:
    return [str(placement) for placement in placements]


def fingerprint(axes: AxisGraph) -> str:
    """SHA-256 over what Rust reads, all shapes and arguments but devices, and the values of constants."""
    digest = hashlib.sha256(axes.to_json())
    graph = axes.graph
    for tensor in graph.tensors:
        digest.update(repr(tensor.shape).encode())
    for operator in graph.operators:
        arguments = _anywhere((operator.args, tuple(sorted(operator.kwargs.items()))))
        digest.update(repr((arguments, operator.results)).encode())
    for value in graph.inputs:
        if value.kind == "constant":
            digest.update(_constant(graph, value.tensor))
    return digest.hexdigest()


def _anywhere(value: Any) -> Any:
    """Arguments without their devices: each rank has its own, and a plan may be made on none of them."""
    if isinstance(value, torch.device):
        return torch.device
    if isinstance(value, (tuple, list)):
        return tuple(_anywhere(item) for item in value)
    return value


def _constant(graph: Graph, tensor: int) -> bytes:
    value = graph.constants.get(tensor)
    if value is None or value.is_meta or type(value) is not torch.Tensor:
        return b""
    return bytes(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())

"""Runs a graph on one device, operator by operator: the reference that everything else is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

import hap.operators  # noqa: F401  defines torch.ops.hap
from hap.errors import TraceError
from hap.graph import Graph, Operator, OutputKind, Ref, references
from hap.trace.inputs import flatten_inputs

aten = torch.ops.aten


def bind(
    graph: Graph,
    module: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    tangents: Mapping[str, torch.Tensor] | None = None,
    rng: tuple[int, int] = (0, 0),
) -> dict[int, torch.Tensor]:
    """The values of a graph's inputs, by tensor.

    Args:
        graph: made by ``hap.trace(module, ...)``.
        module: where parameters and buffers are taken from, by name.
        args: positional arguments of a call like the one that was traced.
        kwargs: keyword arguments of that call.
        tangents: gradients of the losses, by path; 1 where there is none.
        rng: seed and step.

    Raises:
        TraceError: the call's tensors differ from those that were traced in names, shapes or element types, or in a
            value that the forward inspects.
    """
    flat, names, _ = flatten_inputs(args, kwargs)
    given = {name: value for name, value in zip(names, flat, strict=True) if isinstance(value, torch.Tensor)}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    values: dict[int, torch.Tensor] = {}
    for item in graph.inputs:
        expected = graph.tensors[item.tensor]
        if item.kind == "parameter":
            value = parameters[item.name].detach()
        elif item.kind == "buffer":
            value = buffers[item.name].detach()
        elif item.kind == "input":
            if item.name not in given:
                raise TraceError(f'input "{item.name}" is missing: expected a tensor of shape {list(expected.shape)}')
            value = given[item.name].detach()
        elif item.kind == "tangent":
            value = (tangents or {}).get(item.name, torch.ones(expected.shape, dtype=expected.dtype))
        elif item.kind == "constant":
            value = graph.constants[item.tensor]
        else:
            value = torch.tensor(rng, dtype=torch.int64)
        if tuple(value.shape) != expected.shape or value.dtype != expected.dtype:
            raise TraceError(
                f'{item.kind} "{item.name}": expected {expected.dtype} of shape {list(expected.shape)}, got '
                f"{value.dtype} of shape {list(value.shape)}"
            )
        values[item.tensor] = value
    for inspection in graph.inspections:
        if (value := inspection.compute(given)) != inspection.value:
            raise TraceError(
                f"{inspection.source}: the forward inspects its inputs here: expected {inspection.value} as in the "
                f"traced call, got {value}"
            )
    return values


def run(graph: Graph, values: Mapping[int, torch.Tensor]) -> dict[tuple[OutputKind, str], torch.Tensor | None]:
    """The outputs of a graph by kind and name; ``None`` for the gradient of a parameter that no loss reads.

    Args:
        graph: what to compute.
        values: the values of its inputs, by tensor (:func:`bind`); none of them is changed.
    """
    held = dict(values)
    last = {ref.tensor: at for at, o in enumerate(graph.operators) for ref in references((o.args, o.kwargs))}
    kept = {output.tensor for output in graph.outputs}
    with torch.no_grad():
        for at, operator in enumerate(graph.operators):
            held.update(apply(operator, held))
            for index in operator.operands:
                if last[index] == at and index not in kept:
                    held.pop(index, None)
    return {(o.kind, o.name): None if o.tensor is None else held[o.tensor] for o in graph.outputs}


def apply(operator: Operator, held: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The results of one operator by tensor, from the values of its operands by tensor."""
    args, kwargs = _with_values((operator.args, operator.kwargs), held)
    # A view of the traced strides may not exist for inputs of other strides.
    target = aten.reshape.default if operator.target is aten.view.default else operator.target
    made = target(*args, **kwargs)
    made = made if isinstance(made, (tuple, list)) else (made,)
    return {index: value for index, value in zip(operator.results, made, strict=True) if index is not None}


def _with_values(value: Any, held: Mapping[int, torch.Tensor]) -> Any:
    """Arguments with the tensors that their :class:`Ref` stand for."""
    if isinstance(value, Ref):
        return held[value.tensor]
    if isinstance(value, (tuple, list)):
        return type(value)(_with_values(item, held) for item in value)
    if isinstance(value, dict):
        return {key: _with_values(item, held) for key, item in value.items()}
    return value

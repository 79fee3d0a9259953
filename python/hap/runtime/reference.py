"""One step of a module as PyTorch runs it: what its graph, and every program of it, should give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hap.errors import CheckError
from hap.graph import Graph, InputKind, OutputKind
from hap.runtime.difference import same
from hap.trace.inputs import flatten_inputs

if TYPE_CHECKING:
    from hap.trace.outputs import OutputSpec

Outputs = dict[tuple[OutputKind, str], "torch.Tensor | None"]

_GRADIENTS: dict[InputKind, OutputKind] = {"parameter": "gradient", "input": "input_gradient"}


def eager(
    graph: Graph,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    values: Mapping[int, torch.Tensor],
) -> Outputs:
    """The outputs of the module itself, by kind and name; ``None`` for gradients that it does not give.

    The module's buffers and gradients, and those of the inputs, are afterwards those that the step leaves; random
    numbers go on as if there had been none.

    Args:
        graph: the module's, for these inputs.
        module: without gradients.
        args: positional arguments of the call, with tensors that no other graph has made.
        kwargs: keyword arguments likewise.
        values: of the graph's inputs, by tensor (:func:`hap.interpret.bind`), in memory of their own.

    Raises:
        CheckError: the step leaves something that the graph does not have.
    """
    tangents = {entry.name: values[entry.tensor] for entry in graph.inputs if entry.kind == "tangent"}
    cuda = sorted({value.device.index for value in values.values() if value.is_cuda})
    with torch.enable_grad(), torch.random.fork_rng(cuda):
        tensors = flatten_like(graph.output_spec, module(*args, **kwargs))
    results: Outputs = {}
    outputs = [entry for entry in graph.outputs if entry.kind in ("loss", "output")]
    for entry, tensor in zip(outputs, tensors, strict=True):
        results[entry.kind, entry.name] = tensor.detach()
    roots = [tensor for entry, tensor in zip(outputs, tensors, strict=True) if entry.name in tangents]
    if roots:
        torch.autograd.backward(roots, [tangents[entry.name] for entry in outputs if entry.name in tangents])
    left = _state(module, args, kwargs)
    for entry in graph.outputs:
        if entry.kind == "gradient":
            results[entry.kind, entry.name] = left["parameter", entry.name].grad
        elif entry.kind == "buffer":
            results[entry.kind, entry.name] = left["buffer", entry.name]
        elif entry.kind == "input_gradient":
            results[entry.kind, entry.name] = left["input", entry.name].grad
    _check_complete(graph, values, left)
    return results


def _state(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[tuple[InputKind, str], torch.Tensor]:
    """Parameters, buffers and inputs by kind and name."""
    flat, names, _ = flatten_inputs(args, kwargs)
    state: dict[tuple[InputKind, str], torch.Tensor] = {}
    state.update((("parameter", name), value) for name, value in module.named_parameters(remove_duplicate=False))
    state.update((("buffer", name), value) for name, value in module.named_buffers(remove_duplicate=False))
    state.update((("input", n), x) for n, x in zip(names, flat, strict=True) if isinstance(x, torch.Tensor))
    return state


def _check_complete(
    graph: Graph, values: Mapping[int, torch.Tensor], left: Mapping[tuple[InputKind, str], torch.Tensor]
) -> None:
    """Raises for a gradient, or a change of a parameter, buffer or input, that the graph does not have."""
    present = {(entry.kind, entry.name) for entry in graph.outputs if entry.tensor is not None}
    for entry in graph.inputs:
        after = left.get((entry.kind, entry.name))
        if after is None:
            continue
        kind = _GRADIENTS.get(entry.kind)
        has_gradient = after.grad is not None and bool(after.grad.count_nonzero())
        if has_gradient and (kind is None or (kind, entry.name) not in present):
            raise CheckError(_missing(f'the gradient of {entry.kind} "{entry.name}"'))
        updated = entry.kind == "buffer" and ("buffer", entry.name) in present
        if not updated and not same(values[entry.tensor], after.detach()):
            raise CheckError(_missing(f'the new value of {entry.kind} "{entry.name}"'))


def _missing(what: str) -> str:
    return (
        f"the module on one device gives {what}, which its traced graph does not have: hap would train it wrongly. "
        "Please report this module; what reads or changes it may be hidden from the trace (by `.data`, or by hooks)"
    )


def flatten_like(spec: OutputSpec, output: Any) -> list[torch.Tensor]:
    """The tensors of a module's output in the order of the graph's, by the structure that the trace has found."""
    found: dict[int, torch.Tensor] = {}

    def walk(spec: OutputSpec, value: Any) -> None:
        if spec.kind == "tensor":
            found[spec.index] = value
        for key, child in spec.children:
            walk(child, getattr(value, key) if spec.kind in ("dataclass", "named_tuple") else value[key])

    walk(spec, output)
    return [found[index] for index in sorted(found)]

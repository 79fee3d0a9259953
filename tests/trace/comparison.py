"""A traced graph, run by the interpreter, against eager autograd."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

import hap
from hap.graph import Graph
from hap.interpret import bind, run

Call = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in float64, or complex128."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def eager(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[tuple[str, str], torch.Tensor | None]:
    """Loss, gradients of parameters, and new buffers of one eager step on a copy of the module."""
    module = copy.deepcopy(module)
    output = module(*args, **kwargs)
    loss = output if isinstance(output, torch.Tensor) else output["loss"]
    loss.backward()
    values: dict[tuple[str, str], torch.Tensor | None] = {("loss", "" if output is loss else "loss"): loss.detach()}
    if output is not loss:
        values |= {("output", path): value.detach() for path, value in tensors(output) if path != "loss"}
    values |= {("gradient", name): p.grad for name, p in module.named_parameters() if p.requires_grad}
    return values | {("buffer", name): b for name, b in module.named_buffers()}


def tensors(output: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested mappings with their paths."""
    for name, value in output.items():
        if isinstance(value, torch.Tensor):
            yield prefix + name, value
        elif isinstance(value, Mapping):
            yield from tensors(value, f"{prefix}{name}.")


def assert_equal_to_eager(call: Call, tolerance: float, *, rng: tuple[int, int] = (0, 0)) -> Graph:
    """Traces, runs, compares every output; ``tolerance`` is relative to the largest entry of each tensor."""
    module, args, kwargs = call
    graph = hap.trace(module, args, kwargs)
    got = run(graph, bind(graph, module, args, kwargs, rng=rng))
    expected = eager(module, args, kwargs)
    updated = {key for key in got if key[0] == "buffer"}
    assert {key for key in expected if key[0] != "buffer"} == set(got) - updated
    for key, value in got.items():
        reference = expected[key]
        if reference is None or value is None:
            assert reference is value, key
            continue
        assert value.dtype == reference.dtype, key
        error = (wide(value) - wide(reference)).abs().max().item()
        assert error <= tolerance * max(wide(reference).abs().max().item(), 1e-3), (key, error)
    return graph

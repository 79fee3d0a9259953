"""The proof of a choice: its local code on all ranks, recombined, equals the operator on one device.

Run by the tests on every rule, and by :func:`hap.register_rule` on a user's rule where asked for.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hap.graph import Graph, Input, Operator, Ref, Tensor
from hap.interpret import apply
from hap.operators.memory_order import in_order_of
from hap.placement import Partial, Placements, Replicate, Shard
from hap.rules import pieces
from hap.rules.annotate import AxisGraph
from hap.rules.choices import Choice
from hap.rules.local import run

TOLERANCE = {
    torch.float64: 1e-10,
    torch.complex128: 1e-10,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 5e-3,
}
"""Largest error allowed, relative to the largest value (at least 1) of the whole result; 0 for other types."""


def single(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Graph, list[torch.Tensor]]:
    """A graph of one call, and the values of its operands; tensors may stand in lists."""
    graph = Graph()
    values: list[torch.Tensor] = []

    def hold(argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            values.append(argument)
            return _hold(graph, argument, f"x{len(values)}", inputs=True)
        if isinstance(argument, (list, tuple)):
            return [hold(item) for item in argument]
        return argument

    held = tuple(hold(value) for value in args), {name: hold(value) for name, value in kwargs.items()}
    made = target(*args, **kwargs)
    results = [
        None if value is None else _hold(graph, value, f"y{i}", inputs=False).tensor
        for i, value in enumerate(made if isinstance(made, (list, tuple)) else [made])
    ]
    graph.operators.append(Operator("op", target, *held, tuple(results)))
    return graph, values


def _hold(graph: Graph, value: torch.Tensor, name: str, inputs: bool) -> Ref:
    graph.tensors.append(Tensor(name, tuple(value.shape), value.dtype))
    ref = Ref(len(graph.tensors) - 1)
    if inputs:
        graph.inputs.append(Input("input", name, ref.tensor))
    return ref


def random_split(size: int, devices: int, rng: random.Random) -> list[int]:
    """Units of each device: with a share of zero, with shares of one, or any."""
    shares = [0] * devices
    kind = rng.random()
    if kind < 0.3 and devices > 1:
        left_out = rng.randrange(devices)
        others = [d for d in range(devices) if d != left_out]
        for _ in range(size):
            shares[rng.choice(others)] += 1
    elif kind < 0.5 and size >= devices:
        shares = [1] * devices
        shares[rng.randrange(devices)] += size - devices
    else:
        for _ in range(size):
            shares[rng.randrange(devices)] += 1
    return shares


def random_splits(axes: AxisGraph, devices: int, rng: random.Random) -> dict[str, list[int]]:
    """Units of each device, for every axis."""
    return {axis.name: random_split(axis.size, devices, rng) for axis in axes.axes}


def place(
    axes: AxisGraph,
    tensor: int,
    value: torch.Tensor,
    placements: Placements,
    splits: dict[str, list[int]],
    devices: int,
    rng: random.Random,
    least: float = 0.0,
) -> list[torch.Tensor]:
    """What each rank holds, in the value's order in memory.

    Partial: random summands, where the values are finite, as large as they or ``least``.
    """
    parts = _parts(axes, tensor, value, placements, splits, devices, rng, least)
    return [in_order_of(value, part) for part in parts]


def _parts(
    axes: AxisGraph,
    tensor: int,
    value: torch.Tensor,
    placements: Placements,
    splits: dict[str, list[int]],
    devices: int,
    rng: random.Random,
    least: float,
) -> list[torch.Tensor]:
    placement = placements[0]
    if isinstance(placement, Replicate):
        return [value.clone() for _ in range(devices)]
    if isinstance(placement, Partial):
        keeper = rng.randrange(devices)
        inexact = value.dtype.is_floating_point or value.dtype.is_complex
        if inexact and bool(torch.isfinite(value).all()):
            generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
            scale = min(float(value.abs().max()), 1e6) if value.numel() else 1.0
            scale = max(scale, min(least, torch.finfo(value.dtype).max ** 0.5))
            wide = torch.complex128 if value.dtype.is_complex else torch.float64
            noise = [torch.randn(value.shape, generator=generator, dtype=wide) * scale for _ in range(devices)]
            parts = [part.to(value.dtype) for part in noise]
        elif not inexact:
            parts = [torch.full_like(value, rng.randrange(-3, 4)) for _ in range(devices)]
        else:
            parts = [torch.zeros_like(value) for _ in range(devices)]
        others = [part for rank, part in enumerate(parts) if rank != keeper]
        parts[keeper] = (_exact(value) - sum(map(_exact, others))).to(value.dtype)
        return parts
    assert isinstance(placement, Shard)
    occurrence = axes.occurrences[tensor][placement.occurrence]
    return [piece.clone() for piece in pieces.split(value, occurrence, splits[axes.axes[occurrence.axis].name])]


def recombine(
    axes: AxisGraph, tensor: int, parts: Sequence[torch.Tensor], placements: Placements, splits: dict[str, list[int]]
) -> list[torch.Tensor]:
    """The whole tensor: one for each rank where it is replicated."""
    placement = placements[0]
    if isinstance(placement, Replicate):
        return list(parts)
    if isinstance(placement, Partial):
        total = sum(map(_exact, parts[1:]), _exact(parts[0]))
        return [total.to(parts[0].dtype)]
    assert isinstance(placement, Shard)
    return [pieces.join(parts, axes.occurrences[tensor][placement.occurrence])]


def _exact(value: torch.Tensor) -> torch.Tensor:
    """Wide enough to add summands in; integers wrap as they do."""
    return value.double() if value.dtype in (torch.float16, torch.bfloat16, torch.float32) else value


def whole_results(graph: Graph, operator: int, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The operator on one device: the results that exist."""
    node = graph.operators[operator]
    return list(apply(node, dict(zip(node.operands, operands, strict=True))).values())


def mismatch(
    axes: AxisGraph,
    operator: int,
    choice: Choice,
    operands: Sequence[torch.Tensor],
    devices: int,
    rng: random.Random,
    splits: dict[str, list[int]] | None = None,
    least: float = 0.0,
) -> str | None:
    """Runs one choice of one operator on all ranks; says what differs from one device, if anything does.

    ``least``: the least size of the summands of partial operands. Far above the values, it finds out what is linear
    only near them; the tolerance grows with it.
    """
    node = axes.graph.operators[operator]
    splits = random_splits(axes, devices, rng) if splits is None else splits
    expected = whole_results(axes.graph, operator, [value.clone() for value in operands])
    local = [
        place(axes, t, v, p, splits, devices, rng, least)
        for t, v, p in zip(node.operands, operands, choice.inputs, strict=True)
    ]
    tolerance = max(TOLERANCE.get(value.dtype, 0.0) for value in (*operands, *expected)) * max(1.0, least)
    codes = [axes.local_code(operator, choice, splits, rank) for rank in range(devices)]
    made = run(codes, [[parts[rank] for parts in local] for rank in range(devices)])
    tensors = [t for t in node.results if t is not None]
    for index, (tensor, placements, whole) in enumerate(zip(tensors, choice.outputs, expected, strict=True)):
        for rank in range(devices):
            shape = axes.local_shape(tensor, placements, splits, rank)
            if tuple(made[rank][index].shape) != shape:
                return f"result {index} on rank {rank} has shape {tuple(made[rank][index].shape)}, expected {shape}"
            if made[rank][index].dtype != whole.dtype:
                return f"result {index} on rank {rank} is {made[rank][index].dtype}, expected {whole.dtype}"
            if made[rank][index].is_conj() or made[rank][index].is_neg():
                return f"result {index} on rank {rank} does not lie in memory, from where collectives send it"
            if whole.is_contiguous() and not made[rank][index].is_contiguous():
                # Kernels behind may be wrong in silence on anything else.
                return f"result {index} on rank {rank} is not contiguous, as it is on one device"
        for value in recombine(axes, tensor, [results[index] for results in made], placements, splits):
            if differs(value, whole, tolerance):
                return f"result {index} ({placements[0]}) differs"
    return None


def differs(value: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    """Whether two tensors differ beyond rounding. Infinities must be equal."""
    if expected.dtype.is_complex:
        return differs(torch.view_as_real(value.resolve_conj()), torch.view_as_real(expected.resolve_conj()), tolerance)
    if not expected.dtype.is_floating_point:
        return not torch.equal(value, expected)
    finite = torch.isfinite(expected)
    if not torch.equal(torch.isfinite(value), finite) or not torch.equal(
        value[~finite].nan_to_num(7), expected[~finite].nan_to_num(7)
    ):
        return True
    if not bool(finite.any()):
        return False
    scale = max(1.0, float(expected[finite].abs().max()))
    return float((value - expected)[finite].abs().max()) > tolerance * scale

"""Lays out what collectives send, and puts together what they receive.

Each takes one copy; none where the shares of all ranks lie one after another in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from hap.rules import pieces
from hap.runtime.along import Along


def flattened(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in order, in one dimension; the tensor's own memory where they lie so."""
    return tensor.contiguous().view(-1)


def write_shares(tensor: torch.Tensor, along: Along, parts: Sequence[torch.Tensor]) -> None:
    """Copy the shares of all ranks in a whole tensor to flat parts."""
    start = 0
    for rank, part in enumerate(parts):
        if part.numel():
            pieces.read(tensor, along, start, part.view(along.shape(tensor.shape, rank)))
        start += along.units[rank]


def packed(tensor: torch.Tensor, along: Along) -> torch.Tensor:
    """The shares of all ranks one after another, flat; the tensor's own memory where they lie so."""
    if along.leads(tensor.shape):
        return flattened(tensor)
    flat = tensor.new_empty(tensor.numel())
    write_shares(tensor, along, torch.split(flat, list(along.counts(tensor.shape))))
    return flat


def unpacked(flat: torch.Tensor, along: Along, shape: Sequence[int]) -> torch.Tensor:
    """The inverse of :func:`packed`, likewise."""
    if along.leads(shape):
        return flat.view(tuple(shape))
    return assemble(torch.split(flat, list(along.counts(shape))), along, shape)


def counts_at(shape: Sequence[int], dim: int, order: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """By rank, how many elements of a tensor of this shape are at its places of a dimension."""
    row = math.prod(shape[:dim]) * math.prod(shape[dim + 1 :])
    return tuple(row * len(places) for places in order)


def selected(tensor: torch.Tensor, dim: int, order: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements at the places of a dimension that each rank gets, flat, one rank after another."""
    tensor = tensor.detach()
    flat = tensor.new_empty(tensor.numel())
    for part, places in zip(_of_each(flat, tensor.shape, dim, order), order, strict=True):
        torch.index_select(tensor, dim, places, out=part)
    return flat


def placed(flat: torch.Tensor, shape: Sequence[int], dim: int, order: Sequence[torch.Tensor]) -> torch.Tensor:
    """The inverse of :func:`selected`: the tensor of this shape that has these elements in their places."""
    whole = flat.new_empty(tuple(shape))
    for part, places in zip(_of_each(flat, shape, dim, order), order, strict=True):
        whole.index_copy_(dim, places, part)
    return whole


def _of_each(flat: torch.Tensor, shape: Sequence[int], dim: int, order: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """By rank, the elements at its places, as a view with the other dimensions."""
    parts = torch.split(flat, list(counts_at(shape, dim, order)))
    return [part.view(*shape[:dim], len(places), *shape[dim + 1 :]) for part, places in zip(parts, order, strict=True)]


def assemble(flat: Sequence[torch.Tensor], along: Along, shape: Sequence[int]) -> torch.Tensor:
    """The whole tensor from the flat shares of all ranks."""
    return pieces.join([part.view(along.shape(shape, rank)) for rank, part in enumerate(flat)], along)


def together(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements of all, flat, one tensor after another."""
    if all(tensor.is_contiguous() for tensor in tensors):
        return torch.cat([tensor.view(-1) for tensor in tensors])
    sizes = [tensor.numel() for tensor in tensors]
    total = tensors[0].new_empty(sum(sizes))
    for part, tensor in zip(torch.split(total, sizes), tensors, strict=True):
        part.view(tensor.shape).copy_(tensor)
    return total

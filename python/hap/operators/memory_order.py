"""The order of a tensor's dimensions in memory, on which views and kernels behind an operator may rely."""

from __future__ import annotations

from torch import Tensor


def in_order_of(model: Tensor, x: Tensor) -> Tensor:
    """``x`` (same rank), dense, with its dimensions in memory in the order of ``model``'s strides."""
    if x.dim() != model.dim():
        return x.contiguous()
    strides = model.stride()
    order = sorted(range(model.dim()), key=lambda dim: (-strides[dim], dim))
    inverse = [order.index(dim) for dim in range(model.dim())]
    return x.permute(order).contiguous().permute(inverse)

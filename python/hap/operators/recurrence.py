"""What the recurrent operators share: the order of their steps, and sequences shorter than the batch's longest.

A layer is taken apart so that most of it is an ordinary matrix product: the products of the *inputs* with the layer's
weights are made for all steps at once, outside, and arrive as ``gates`` (steps, batch, gates * hidden), biases
included. The operator is the recurrence alone. It never mixes samples. Steps beyond a sample's length leave its state
as it was, so that the last step holds every sample's last state.
"""

from __future__ import annotations

import torch
from torch import Tensor

_HALF = (torch.bfloat16, torch.float16)


def steps(count: int, reverse: bool) -> range:
    """The steps in the order in which the recurrence takes them."""
    return range(count - 1, -1, -1) if reverse else range(count)


def before(states: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    """The state that each step starts from, where ``states`` (steps, batch, features) are those that they end in."""
    if reverse:
        return torch.cat([states[1:], initial.unsqueeze(0)])
    return torch.cat([initial.unsqueeze(0), states[:-1]])


def beyond(lengths: Tensor | None, count: int) -> Tensor | None:
    """Which steps lie beyond each sample's length: bool (steps, batch, 1); ``None`` where none does."""
    if lengths is None:
        return None
    return (torch.arange(count, device=lengths.device).unsqueeze(1) >= lengths).unsqueeze(-1)


def frozen(mask: Tensor | None, step: int, old: Tensor, new: Tensor) -> Tensor:
    """The new state, or the old one for samples that have ended."""
    return new if mask is None else torch.where(mask[step], old, new)


def without(mask: Tensor | None, x: Tensor) -> Tensor:
    """``x`` (steps, batch, features), or of one step where the mask is that step's, with zeros beyond the lengths."""
    return x if mask is None else x.masked_fill(mask, 0)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The element type that states and sums are kept in."""
    return torch.float32 if dtype in _HALF else dtype


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """The sum over steps and samples of the outer products of ``grad`` and ``x`` (both steps, batch, features)."""
    return grad.flatten(0, 1).mT @ x.flatten(0, 1)

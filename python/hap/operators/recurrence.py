"""What the recurrent operators share.

A layer is taken apart so that most of it is matrix products for all steps at once, which shard like any others: those
of the inputs with the layer's weights are made before the recurrence and arrive as ``gates`` (steps, batch,
gates * hidden), biases included; those of the states, which are all known by then, are made before its backward, and
the weights' gradients after it. The operators are the recurrences alone. They never mix samples.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def steps(count: int, reverse: bool) -> range:
    """The steps in the order in which the recurrence takes them."""
    return range(count - 1, -1, -1) if reverse else range(count)


def before(states: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    """The state that each step starts from, where ``states`` (steps, batch, features) are those that they end in."""
    if reverse:
        return torch.cat([states[1:], initial.unsqueeze(0)])
    return torch.cat([initial.unsqueeze(0), states[:-1]])


def product(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``states`` (steps, batch, features) times the transposed weight."""
    return F.linear(states.flatten(0, 1), weight, bias).view(*states.shape[:2], weight.shape[0])


def weight_gradient(grad: Tensor, states: Tensor) -> Tensor:
    """The sum over steps and samples of the outer products of ``grad`` and ``states`` (both steps, batch, features)."""
    return grad.flatten(0, 1).mT @ states.flatten(0, 1)

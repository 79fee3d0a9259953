"""Connectionist temporal classification (Graves et al. 2006): the loss of each sample, and its backward.

PyTorch's own kernels, in a form whose shapes do not depend on the lengths: its forward also returns the forward
variables, whose size is that of the longest target. Here the backward computes them again. As there, the gradient is
that of normalised ``log_probs``.
"""

# torch.ops is untyped.
# mypy: disable-error-code="no-any-return, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hap.operators.library import define, library

aten = torch.ops.aten


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    loss = aten._ctc_loss.Tensor(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)[0]
    return loss.masked_fill(loss == torch.inf, 0) if zero_infinity else loss


def _ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    attributes = (log_probs, targets, input_lengths, target_lengths)
    loss, log_alpha = aten._ctc_loss.Tensor(*attributes, blank, zero_infinity)
    return aten._ctc_loss_backward.Tensor(grad, *attributes, loss, log_alpha, blank, zero_infinity).contiguous()


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, blank, zero_infinity = inputs
    ctx.attributes = (blank, zero_infinity)
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return torch.ops.hap.ctc_loss_backward(grad, *ctx.saved_tensors, *ctx.attributes), *(None,) * 5


define(
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, "
    "bool zero_infinity) -> Tensor",
    _ctc_loss,
    lambda log_probs, *_: log_probs.new_empty(log_probs.shape[1]),
)
define(
    "ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
    "int blank, bool zero_infinity) -> Tensor",
    _ctc_loss_backward,
    lambda grad, log_probs, *_: log_probs.new_empty(log_probs.shape),
)
torch.library.register_autograd("hap::ctc_loss", _gradients, setup_context=_setup, lib=library)

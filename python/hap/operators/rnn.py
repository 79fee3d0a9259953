"""One direction of one layer of Elman's recurrence, and its backward.

Formula of ``torch.nn.RNN``: ``h = tanh(gates[t] + h @ w_hh.T)``, or with ``relu`` in the place of ``tanh``. The
backward needs the states alone: both derivatives follow from the values.
"""

# torch.ops is untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from hap.operators.library import define, library
from hap.operators.precision import wide
from hap.operators.recurrence import before, steps, weight_gradient


def _rnn(gates: Tensor, h: Tensor, w_hh: Tensor, relu: bool, reverse: bool) -> Tensor:
    dtype, count = wide(gates.dtype), gates.shape[0]
    out = torch.empty_like(gates, memory_format=torch.contiguous_format)
    h, recurrent = h.to(dtype), w_hh.to(dtype).mT
    for step in steps(count, reverse):
        new = torch.addmm(gates[step].to(dtype), h, recurrent)
        h = new.relu() if relu else new.tanh()
        out[step] = h
    return out


def _rnn_backward(grad: Tensor, w_hh: Tensor, out: Tensor, relu: bool, reverse: bool) -> tuple[Tensor, Tensor]:
    dtype, count = wide(out.dtype), out.shape[0]
    weight, states = w_hh.to(dtype), out.to(dtype)
    derivative = (states > 0).to(dtype) if relu else 1 - states * states
    grad_gates = torch.empty(out.shape, dtype=dtype, device=out.device)
    grad_h = torch.zeros_like(states[0])
    for step in steps(count, not reverse):
        grad_gates[step] = (grad_h + grad[step]) * derivative[step]
        grad_h = grad_gates[step] @ weight
    return grad_gates.to(out.dtype), grad_h.to(out.dtype)


def _rnn_fake(gates: Tensor, *_: Any) -> Tensor:
    return gates.new_empty(gates.shape)


def _rnn_backward_fake(grad: Tensor, w_hh: Tensor, out: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return out.new_empty(out.shape), out.new_empty(out.shape[1:])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, h, w_hh, *ctx.attributes = inputs
    ctx.save_for_backward(h, w_hh, output)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    h, w_hh, out = ctx.saved_tensors
    grad_gates, grad_h = torch.ops.hap.rnn_backward(grad, w_hh, out, *ctx.attributes)
    return grad_gates, grad_h, weight_gradient(grad_gates, before(out, h, ctx.attributes[1])), None, None


define("rnn(Tensor gates, Tensor h, Tensor w_hh, bool relu, bool reverse) -> Tensor", _rnn, _rnn_fake)
define(
    "rnn_backward(Tensor grad, Tensor w_hh, Tensor out, bool relu, bool reverse) -> (Tensor, Tensor)",
    _rnn_backward,
    _rnn_backward_fake,
)
torch.library.register_autograd("hap::rnn", _gradients, setup_context=_setup, lib=library)


@register_flop_formula(torch.ops.hap.rnn)
def _rnn_flops(gates: Sequence[int], h: Any, w_hh: Sequence[int], *_: Any, out_shape: Any = None, **__: Any) -> int:
    return 2 * math.prod(gates[:2]) * math.prod(w_hh)


@register_flop_formula(torch.ops.hap.rnn_backward)
def _rnn_backward_flops(grad: Sequence[int], w_hh: Sequence[int], *_: Any, out_shape: Any = None, **__: Any) -> int:
    return 2 * math.prod(grad[:2]) * math.prod(w_hh)

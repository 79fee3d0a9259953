"""One direction of one layer of gated recurrent units, and its backward.

Formulas of ``torch.nn.GRU``: with r, z, n the three parts of ``gates[t]`` and r', z', n' those of
``h @ w_hh.T + b_hh``,

    r = sigmoid(r + r');    z = sigmoid(z + z');    n = tanh(n + r * n');    h = (1 - z) * n + z * h.

The bias of the recurrent weights stands inside, because r multiplies it. The backward is given both halves of the
parts, before their activations.
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
from hap.operators.recurrence import before, product, steps, weight_gradient


def _parts(gates: Tensor, recurrent: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """r, z, n and the recurrent part of n, from the products of inputs and of states."""
    (r, z, n), (r_h, z_h, n_h) = gates.chunk(3, -1), recurrent.chunk(3, -1)
    r = (r + r_h).sigmoid()
    return r, (z + z_h).sigmoid(), (n + r * n_h).tanh(), n_h


def _gru(gates: Tensor, h: Tensor, w_hh: Tensor, b_hh: Tensor | None, reverse: bool) -> Tensor:
    dtype, count = wide(gates.dtype), gates.shape[0]
    out = _gru_fake(gates, h)
    h, w_hh, b_hh = h.to(dtype), w_hh.to(dtype), None if b_hh is None else b_hh.to(dtype)
    for step in steps(count, reverse):
        _, z, n, _ = _parts(gates[step].to(dtype), torch.nn.functional.linear(h, w_hh, b_hh))
        h = (h - n) * z + n
        out[step] = h
    return out


def _gru_backward(
    grad: Tensor, gates: Tensor, recurrent: Tensor, old: Tensor, w_hh: Tensor, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dtype, count = wide(gates.dtype), gates.shape[0]
    weight = w_hh.to(dtype)
    r, z, n, n_h = _parts(gates.to(dtype), recurrent.to(dtype))
    # What the gradient of a step's state is multiplied by for n, for r and for z.
    by_n = (1 - z) * (1 - n * n)
    by_r, by_z = by_n * n_h * r * (1 - r), (old.to(dtype) - n) * z * (1 - z)
    grad_gates = torch.empty(gates.shape, dtype=dtype, device=gates.device)
    grad_recurrent = torch.empty_like(grad_gates)
    grad_h = torch.zeros_like(old[0], dtype=dtype)
    for step in steps(count, not reverse):
        grad_h = grad_h + grad[step]
        of_n = grad_h * by_n[step]
        shared = torch.cat([grad_h * by_r[step], grad_h * by_z[step]], -1)
        grad_gates[step] = torch.cat([shared, of_n], -1)
        grad_recurrent[step] = torch.cat([shared, of_n * r[step]], -1)
        grad_h = grad_h * z[step] + grad_recurrent[step] @ weight
    return grad_gates.to(gates.dtype), grad_recurrent.to(gates.dtype), grad_h.to(old.dtype)


def _gru_fake(gates: Tensor, h: Tensor, *_: Any) -> Tensor:
    return gates.new_empty((*gates.shape[:2], h.shape[-1]))


def _gru_backward_fake(
    grad: Tensor, gates: Tensor, recurrent: Tensor, old: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return gates.new_empty(gates.shape), gates.new_empty(gates.shape), old.new_empty(old.shape[1:])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.reverse = inputs
    ctx.save_for_backward(*tensors, output)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    gates, h, w_hh, b_hh, out = ctx.saved_tensors
    old = before(out, h, ctx.reverse)
    recurrent = product(old, w_hh, b_hh)
    grad_gates, grad_recurrent, grad_h = torch.ops.hap.gru_backward(grad, gates, recurrent, old, w_hh, ctx.reverse)
    grad_b_hh = None if b_hh is None else grad_recurrent.sum((0, 1))
    return grad_gates, grad_h, weight_gradient(grad_recurrent, old), grad_b_hh, None


define("gru(Tensor gates, Tensor h, Tensor w_hh, Tensor? b_hh, bool reverse) -> Tensor", _gru, _gru_fake)
define(
    "gru_backward(Tensor grad, Tensor gates, Tensor recurrent, Tensor old, Tensor w_hh, bool reverse) "
    "-> (Tensor, Tensor, Tensor)",
    _gru_backward,
    _gru_backward_fake,
)
torch.library.register_autograd("hap::gru", _gradients, setup_context=_setup, lib=library)


@register_flop_formula(torch.ops.hap.gru)
def _gru_flops(gates: Sequence[int], h: Any, w_hh: Sequence[int], *_: Any, out_shape: Any = None, **__: Any) -> int:
    return 2 * math.prod(gates[:2]) * math.prod(w_hh)


@register_flop_formula(torch.ops.hap.gru_backward)
def _gru_backward_flops(
    grad: Any,
    gates: Sequence[int],
    recurrent: Any,
    old: Any,
    w_hh: Sequence[int],
    *_: Any,
    out_shape: Any = None,
    **__: Any,
) -> int:
    return 2 * math.prod(gates[:2]) * math.prod(w_hh)

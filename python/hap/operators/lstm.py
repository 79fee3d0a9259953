"""One direction of one layer of long short-term memory, and its backward.

Formulas of ``torch.nn.LSTM``: with i, f, g, o the four parts of ``gates[t] + h @ w_hh.T``,

    c = sigmoid(f) * c + sigmoid(i) * tanh(g);    h = sigmoid(o) * tanh(c), times w_hr.T where there is a projection.

The backward computes the parts again, for all steps in one product: the states before them are known.
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
from hap.operators.recurrence import before, beyond, frozen, steps, weight_gradient, wide, without


def _lstm(
    gates: Tensor, h: Tensor, c: Tensor, w_hh: Tensor, w_hr: Tensor | None, lengths: Tensor | None, reverse: bool
) -> tuple[Tensor, Tensor]:
    dtype, count = wide(gates.dtype), gates.shape[0]
    out, cells = _lstm_fake(gates, h, c)
    mask = beyond(lengths, count)
    h, c, recurrent = h.to(dtype), c.to(dtype), w_hh.to(dtype).mT
    projection = None if w_hr is None else w_hr.to(dtype).mT
    for step in steps(count, reverse):
        i, f, g, o = torch.addmm(gates[step].to(dtype), h, recurrent).chunk(4, -1)
        new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        new_h = o.sigmoid() * new_c.tanh()
        h = frozen(mask, step, h, new_h if projection is None else new_h @ projection)
        c = frozen(mask, step, c, new_c)
        out[step], cells[step] = h, c
    return out, cells


def _lstm_backward(
    grad: Tensor | None,
    grad_cells: Tensor | None,
    gates: Tensor,
    h: Tensor,
    c: Tensor,
    w_hh: Tensor,
    w_hr: Tensor | None,
    lengths: Tensor | None,
    out: Tensor,
    cells: Tensor,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    dtype, count = wide(gates.dtype), gates.shape[0]
    mask = beyond(lengths, count)
    recurrent = w_hh.to(dtype)
    projection = None if w_hr is None else w_hr.to(dtype)
    cells = cells.to(dtype)
    old_h, old_c = before(out.to(dtype), h.to(dtype), reverse), before(cells, c.to(dtype), reverse)
    i, f, g, o = (gates.to(dtype) + old_h @ recurrent.mT).chunk(4, -1)
    i, f, g, o, tanh_c = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid(), cells.tanh()
    # What each part is multiplied by in the derivative: by the cell's for i, f, g; by the output's for o.
    by_i, by_f, by_g, by_o = g * i * (1 - i), old_c * f * (1 - f), i * (1 - g * g), tanh_c * o * (1 - o)
    by_c = o * (1 - tanh_c * tanh_c)
    grad_gates = torch.empty(gates.shape, dtype=dtype, device=gates.device)
    grads_h = torch.empty(out.shape, dtype=dtype, device=gates.device)
    grad_h, grad_c = torch.zeros_like(h, dtype=dtype), torch.zeros_like(c, dtype=dtype)
    for step in steps(count, not reverse):
        if grad is not None:
            grad_h = grad_h + grad[step]
        if grad_cells is not None:
            grad_c = grad_c + grad_cells[step]
        grads_h[step] = grad_h
        hidden = grad_h if projection is None else grad_h @ projection
        cell = grad_c + hidden * by_c[step]
        parts = torch.cat([cell * by_i[step], cell * by_f[step], cell * by_g[step], hidden * by_o[step]], -1)
        parts = without(None if mask is None else mask[step], parts)
        grad_gates[step] = parts
        grad_h = frozen(mask, step, grad_h, parts @ recurrent)
        grad_c = frozen(mask, step, grad_c, cell * f[step])
    grad_w_hh = weight_gradient(grad_gates, old_h).to(w_hh.dtype)
    grad_w_hr = None if w_hr is None else weight_gradient(without(mask, grads_h), o * tanh_c).to(w_hr.dtype)
    return grad_gates.to(gates.dtype), grad_h.to(h.dtype), grad_c.to(c.dtype), grad_w_hh, grad_w_hr


def _lstm_fake(gates: Tensor, h: Tensor, c: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    shape = gates.shape[:2]
    return gates.new_empty((*shape, h.shape[-1])), gates.new_empty((*shape, c.shape[-1]))


def _lstm_backward_fake(
    grad: Tensor | None,
    grad_cells: Tensor | None,
    gates: Tensor,
    h: Tensor,
    c: Tensor,
    w_hh: Tensor,
    w_hr: Tensor | None,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    new = [x.new_empty(x.shape) for x in (gates, h, c, w_hh)]
    return new[0], new[1], new[2], new[3], None if w_hr is None else w_hr.new_empty(w_hr.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.reverse = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, grad_cells: Tensor | None) -> tuple[Any, ...]:
    if grad is None and grad_cells is None:
        return (None,) * 7
    grads = torch.ops.hap.lstm_backward(grad, grad_cells, *ctx.saved_tensors, ctx.reverse)
    return *grads, None, None


define(
    "lstm(Tensor gates, Tensor h, Tensor c, Tensor w_hh, Tensor? w_hr, Tensor? lengths, bool reverse) "
    "-> (Tensor, Tensor)",
    _lstm,
    _lstm_fake,
)
define(
    "lstm_backward(Tensor? grad, Tensor? grad_cells, Tensor gates, Tensor h, Tensor c, Tensor w_hh, Tensor? w_hr, "
    "Tensor? lengths, Tensor out, Tensor cells, bool reverse) -> (Tensor, Tensor, Tensor, Tensor, Tensor?)",
    _lstm_backward,
    _lstm_backward_fake,
)
torch.library.register_autograd("hap::lstm", _gradients, setup_context=_setup, lib=library)


def _flops(gates: Sequence[int], w_hh: Sequence[int], w_hr: Sequence[int] | None) -> int:
    """The products of each step: with the recurrent weights, and with the projection."""
    return 2 * math.prod(gates[:2]) * (math.prod(w_hh) + (0 if w_hr is None else math.prod(w_hr)))


@register_flop_formula(torch.ops.hap.lstm)
def _lstm_flops(
    gates: Sequence[int], h: Any, c: Any, w_hh: Sequence[int], w_hr: Any, *_: Any, out_shape: Any = None, **__: Any
) -> int:
    return _flops(gates, w_hh, w_hr)


# The parts once more, the gradients of states and of weights; the projection is not done again.
@register_flop_formula(torch.ops.hap.lstm_backward)
def _lstm_backward_flops(
    grad: Any, grad_cells: Any, gates: Sequence[int], h: Any, c: Any, w_hh: Sequence[int], w_hr: Any, *_: Any,
    out_shape: Any = None, **__: Any
) -> int:  # fmt: skip
    return 3 * _flops(gates, w_hh, None) + 2 * (_flops(gates, w_hh, w_hr) - _flops(gates, w_hh, None))

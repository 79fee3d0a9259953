"""One direction of one layer of long short-term memory, and its backward.

Formulas of ``torch.nn.LSTM``: with i, f, g, o the four parts of ``gates[t] + h @ w_hh.T``,

    c = sigmoid(f) * c + sigmoid(i) * tanh(g);    h = sigmoid(o) * tanh(c), times w_hr.T where there is a projection.

The backward is given the parts, before their activations.
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


def _lstm(
    gates: Tensor, h: Tensor, c: Tensor, w_hh: Tensor, w_hr: Tensor | None, reverse: bool
) -> tuple[Tensor, Tensor]:
    dtype, count = wide(gates.dtype), gates.shape[0]
    out, cells = _lstm_fake(gates, h, c)
    h, c, recurrent = h.to(dtype), c.to(dtype), w_hh.to(dtype).mT
    projection = None if w_hr is None else w_hr.to(dtype).mT
    for step in steps(count, reverse):
        i, f, g, o = torch.addmm(gates[step].to(dtype), h, recurrent).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        h = h if projection is None else h @ projection
        out[step], cells[step] = h, c
    return out, cells


def _lstm_backward(
    grad: Tensor | None,
    grad_cells: Tensor | None,
    parts: Tensor,
    c: Tensor,
    w_hh: Tensor,
    w_hr: Tensor | None,
    cells: Tensor,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    dtype, count = wide(parts.dtype), parts.shape[0]
    recurrent, projection = w_hh.to(dtype), None if w_hr is None else w_hr.to(dtype)
    cells = cells.to(dtype)
    old_c = before(cells, c.to(dtype), reverse)
    i, f, g, o = parts.to(dtype).chunk(4, -1)
    i, f, g, o, tanh_c = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid(), cells.tanh()
    # What each part is multiplied by in the derivative: by the cell's for i, f, g; by the output's for o.
    by_i, by_f, by_g, by_o = g * i * (1 - i), old_c * f * (1 - f), i * (1 - g * g), tanh_c * o * (1 - o)
    by_c = o * (1 - tanh_c * tanh_c)
    grad_parts = torch.empty(parts.shape, dtype=dtype, device=parts.device)
    grads_h = torch.empty((*parts.shape[:2], w_hh.shape[1]), dtype=dtype, device=parts.device)
    grad_h, grad_c = torch.zeros_like(grads_h[0]), torch.zeros_like(c, dtype=dtype)
    for step in steps(count, not reverse):
        if grad is not None:
            grad_h = grad_h + grad[step]
        if grad_cells is not None:
            grad_c = grad_c + grad_cells[step]
        grads_h[step] = grad_h
        hidden = grad_h if projection is None else grad_h @ projection
        cell = grad_c + hidden * by_c[step]
        own = torch.cat([cell * by_i[step], cell * by_f[step], cell * by_g[step], hidden * by_o[step]], -1)
        grad_parts[step] = own
        grad_h, grad_c = own @ recurrent, cell * f[step]
    grad_w_hr = None if w_hr is None else weight_gradient(grads_h, o * tanh_c).to(w_hr.dtype)
    return grad_parts.to(parts.dtype), grad_h.to(parts.dtype), grad_c.to(c.dtype), grad_w_hr


def _lstm_fake(gates: Tensor, h: Tensor, c: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    shape = gates.shape[:2]
    return gates.new_empty((*shape, h.shape[-1])), gates.new_empty((*shape, c.shape[-1]))


def _lstm_backward_fake(
    grad: Tensor | None,
    grad_cells: Tensor | None,
    parts: Tensor,
    c: Tensor,
    w_hh: Tensor,
    w_hr: Tensor | None,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    grad_h = parts.new_empty((parts.shape[1], w_hh.shape[1]))
    return (
        parts.new_empty(parts.shape),
        grad_h,
        c.new_empty(c.shape),
        None if w_hr is None else w_hr.new_empty(w_hr.shape),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.reverse = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, grad_cells: Tensor | None) -> tuple[Any, ...]:
    if grad is None and grad_cells is None:
        return (None,) * 6
    gates, h, c, w_hh, w_hr, out, cells = ctx.saved_tensors
    old = before(out, h, ctx.reverse)
    parts = gates + product(old, w_hh)
    grad_gates, grad_h, grad_c, grad_w_hr = torch.ops.hap.lstm_backward(
        grad, grad_cells, parts, c, w_hh, w_hr, cells, ctx.reverse
    )
    return grad_gates, grad_h, grad_c, weight_gradient(grad_gates, old), grad_w_hr, None


define(
    "lstm(Tensor gates, Tensor h, Tensor c, Tensor w_hh, Tensor? w_hr, bool reverse) -> (Tensor, Tensor)",
    _lstm,
    _lstm_fake,
)
define(
    "lstm_backward(Tensor? grad, Tensor? grad_cells, Tensor parts, Tensor c, Tensor w_hh, Tensor? w_hr, Tensor cells, "
    "bool reverse) -> (Tensor, Tensor, Tensor, Tensor?)",
    _lstm_backward,
    _lstm_backward_fake,
)
torch.library.register_autograd("hap::lstm", _gradients, setup_context=_setup, lib=library)


def _flops(gates: Sequence[int], w_hh: Sequence[int], w_hr: Sequence[int] | None, projections: int) -> int:
    """Each step's product with the recurrent weights, and ``projections`` with those of the projection."""
    return 2 * math.prod(gates[:2]) * (math.prod(w_hh) + (0 if w_hr is None else projections * math.prod(w_hr)))


@register_flop_formula(torch.ops.hap.lstm)
def _lstm_flops(
    gates: Sequence[int], h: Any, c: Any, w_hh: Sequence[int], w_hr: Any, *_: Any, out_shape: Any = None, **__: Any
) -> int:
    return _flops(gates, w_hh, w_hr, 1)


@register_flop_formula(torch.ops.hap.lstm_backward)
def _lstm_backward_flops(
    grad: Any, grad_cells: Any, parts: Sequence[int], c: Any, w_hh: Sequence[int], w_hr: Any, *_: Any,
    out_shape: Any = None, **__: Any
) -> int:  # fmt: skip
    return _flops(parts, w_hh, w_hr, 2)

"""Scaled dot-product attention and its backward, as two operators that mean the same on every device.

Formulas: softmax(q k^T * scale + mask) v, with the log-sum-exp of the scores kept for the backward (Dao et al. 2022).
Contract: ``out`` lies in memory in the order of q, ``lse`` is contiguous, and each gradient lies in the order of its
tensor, whatever kernel ran; so views behind them hold. A query without a visible key attends to nothing: its output is
zero, its log-sum-exp minus infinity. ``out`` has the batch dimensions that those of q, k and v broadcast to, ``lse``
those of q and k; its last dimension holds two numbers whose sum is the log-sum-exp (:mod:`hap.operators.merging`).

A causal mask lets a query see the keys up to its own position. Where a rank holds a share of the sequence, ``queries``
and ``keys`` (:data:`hap.operators.stretch.Stretch`; empty: all of it) say where its own stand, and the window
(:mod:`hap.operators.random`) which part of the scores its dropout masks.
"""

# torch.ops is untyped.
# mypy: disable-error-code="no-any-return, no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from hap.operators.library import define, library
from hap.operators.memory_order import in_order_of
from hap.operators.merging import log_sum_exp
from hap.operators.precision import wide
from hap.operators.random import WINDOW, keep_mask
from hap.operators.stretch import Stretch, positions

aten = torch.ops.aten
_WHERE = f"{WINDOW}, int[] queries=[], int[] keys=[]"


def _repeated(x: Tensor, q: Tensor, gqa: bool) -> Tensor:
    """Keys or values with each head repeated for the group of queries that shares it."""
    if not gqa or x.shape[-3] == q.shape[-3]:
        return x
    return x.repeat_interleave(q.shape[-3] // x.shape[-3], -3)


def _summed(grad: Tensor, heads: int) -> Tensor:
    """The gradient of :func:`_repeated`."""
    if grad.shape[-3] == heads:
        return grad
    return grad.unflatten(-3, (heads, grad.shape[-3] // heads)).sum(-3)


def _masks(
    q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, queries: Stretch, keys: Stretch
) -> tuple[Tensor | None, bool]:
    """The mask for the kernels, and whether their own causal mask stands beside it: only alone, on equal parts."""
    if not causal or (mask is None and list(queries) == list(keys)):
        return mask, causal
    rows, columns = (
        positions(at or (1, size, 1, 0, size), q.device) for at, size in ((queries, q.shape[-2]), (keys, k.shape[-2]))
    )
    visible = rows.unsqueeze(-1) >= columns
    if mask is None or mask.dtype == torch.bool:
        return visible if mask is None else mask & visible, False
    return mask.masked_fill(visible.logical_not(), -math.inf), False


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    # The mask adds to numbers of the wider type, in the backward as here: a large one would swallow what differs.
    scores = (q @ k.mT).to(wide(q.dtype)) * scale
    if causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(visible.logical_not(), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores


def _weights(scores: Tensor, lse: Tensor) -> Tensor:
    """The softmax from the log-sum-exp; a row that is masked altogether attends to nothing."""
    most, rest = lse.unsqueeze(-2).unbind(-1)
    return ((scores - most) - rest).exp().masked_fill(most == -math.inf, 0.0)


def _flash_fits(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float) -> bool:
    """Whether the CPU flash kernels can be called: without heads or query rows they kill the process.

    They tell the log-sum-exp as one number, which says nothing of how many keys there are where a mask of numbers
    hides all of them by a large one.
    """
    return (
        q.device.type == "cpu"
        and p == 0
        and (mask is None or mask.dtype == torch.bool)
        and q.dim() == k.dim() == v.dim() == 4
        and q.shape[-1] == v.shape[-1]
        and q.numel() > 0
        and k.numel() > 0
        and q.shape[:2] == _batch(q, k, v)
    )


def _for_flash(x: Tensor, batch: Sequence[int]) -> Tensor:
    """``x`` as the CPU flash kernels can read it: they do not look at the stride of the features."""
    x = x.expand(*batch, *x.shape[2:])
    return x if x.stride(-1) == 1 and x.stride(-2) >= x.shape[-1] else x.contiguous()


def _batch(q: Tensor, k: Tensor, v: Tensor) -> torch.Size:
    return torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])


def _flash_mask(q: Tensor, mask: Tensor | None) -> Tensor | None:
    if mask is None:
        return None
    numbers = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(mask.logical_not(), -math.inf)
    return numbers.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    rng: Tensor | None,
    p: float,
    causal: bool,
    scale: float,
    gqa: bool,
    index: int,
    sizes: Sequence[int] = (),
    starts: Sequence[int] = (),
    lengths: Sequence[int] = (),
    queries: Stretch = (),
    keys: Stretch = (),
) -> tuple[Tensor, Tensor]:
    mask, causal = _masks(q, k, mask, causal, queries, keys)
    repeated_k, repeated_v = _repeated(k, q, gqa), _repeated(v, q, gqa)
    if _flash_fits(q, repeated_k, repeated_v, mask, p):
        flash_mask = _flash_mask(q, mask)
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            *(_for_flash(x, q.shape[:2]) for x in (q, repeated_k, repeated_v)),
            0.0, causal, attn_mask=flash_mask, scale=scale,
        )  # fmt: skip
        if flash_mask is not None:  # the kernel says zero where there is no visible key
            lse = lse.masked_fill((flash_mask == -math.inf).all(-1), -math.inf)
        return in_order_of(q, out), torch.stack([lse, torch.zeros_like(lse)], -1)
    scores = _scores(q, repeated_k, mask, causal, scale)
    lse = log_sum_exp(scores)
    weights = _weights(scores, lse)
    if p:
        weights = weights * keep_mask(weights.shape, rng, p, index, weights, sizes, starts, lengths)
    return in_order_of(q, weights.to(v.dtype) @ repeated_v), lse


def _sdpa_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    rng: Tensor | None,
    p: float,
    causal: bool,
    scale: float,
    gqa: bool,
    index: int,
    mask_grad: bool,
    sizes: Sequence[int] = (),
    starts: Sequence[int] = (),
    lengths: Sequence[int] = (),
    queries: Stretch = (),
    keys: Stretch = (),
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    mask_shape, mask_dtype = (None, None) if mask is None else (mask.shape, mask.dtype)
    mask, causal = _masks(q, k, mask, causal, queries, keys)
    repeated_k, repeated_v = _repeated(k, q, gqa), _repeated(v, q, gqa)
    grad_mask = None
    if _flash_fits(q, repeated_k, repeated_v, mask, p) and not mask_grad:
        grad_q, grad_k, grad_v = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *(_for_flash(x, q.shape[:2]) for x in (grad, q, repeated_k, repeated_v, out)),
            lse.sum(-1).masked_fill(lse[..., 0] == -math.inf, 0), 0.0, causal,
            attn_mask=_flash_mask(q, mask), scale=scale,
        )  # fmt: skip
    else:
        dtype = wide(q.dtype)
        wide_q, wide_k, wide_v, grad, out = (x.to(dtype) for x in (q, repeated_k, repeated_v, grad, out))
        weights = _weights(_scores(wide_q, wide_k, mask, causal, scale), lse)
        grad_weights = grad @ wide_v.mT
        dropped = weights
        if p:
            kept = keep_mask(weights.shape, rng, p, index, weights, sizes, starts, lengths)
            dropped, grad_weights = weights * kept, grad_weights * kept
        grad_v = dropped.mT @ grad
        # The sum over keys of weights * grad_weights equals that of grad * out over the features.
        grad_scores = weights * (grad_weights - (grad * out).sum(-1, keepdim=True))
        grad_q, grad_k = grad_scores @ wide_k * scale, grad_scores.mT @ wide_q * scale
        if mask_grad:
            assert mask_shape is not None
            grad_mask = grad_scores.sum_to_size(mask_shape).to(mask_dtype).contiguous()
    if gqa:
        grad_k, grad_v = _summed(grad_k, k.shape[-3]), _summed(grad_v, v.shape[-3])
    grads = (g.sum_to_size(x.shape).to(x.dtype) for g, x in ((grad_q, q), (grad_k, k), (grad_v, v)))
    return *(in_order_of(x, g) for g, x in zip(grads, (q, k, v), strict=True)), grad_mask  # type: ignore[return-value]


def _sdpa_fake(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rng: Tensor | None, p: float, causal: bool, scale: float,
    gqa: bool, *_: Any
) -> tuple[Tensor, Tensor]:  # fmt: skip
    # Grouped heads broadcast to those of the queries.
    batches = [x.shape[:-3] + q.shape[-3:-2] if gqa else x.shape[:-2] for x in (q, k, v)]
    out = in_order_of(q, q.new_empty((*torch.broadcast_shapes(*batches), q.shape[-2], v.shape[-1])))
    scores = torch.broadcast_shapes(*batches[:2])
    return out, q.new_empty((*scores, q.shape[-2], 2), dtype=wide(q.dtype))


def _sdpa_backward_fake(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None, rng: Tensor | None,
    p: float, causal: bool, scale: float, gqa: bool, index: int, mask_grad: bool, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    grad_q, grad_k, grad_v = (in_order_of(x, x.new_empty(x.shape)) for x in (q, k, v))
    return grad_q, grad_k, grad_v, mask.new_empty(mask.shape) if mask_grad and mask is not None else None


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, rng, p, causal, scale, gqa, index, *window = inputs
    ctx.attributes, ctx.window = (p, causal, scale, gqa, index), window
    ctx.save_for_backward(q, k, v, *output, mask, rng)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 15
    mask_grad = ctx.needs_input_grad[3]
    grads = torch.ops.hap.sdpa_backward(grad, *ctx.saved_tensors, *ctx.attributes, mask_grad, *ctx.window)
    return *grads, *(None,) * 11


define(
    "sdpa(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? rng, float p, bool causal, float scale, bool gqa, "
    f"int index, {_WHERE}) -> (Tensor, Tensor)",
    _sdpa,
    _sdpa_fake,
)
define(
    "sdpa_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? mask, Tensor? rng, "
    f"float p, bool causal, float scale, bool gqa, int index, bool mask_grad, {_WHERE}) "
    "-> (Tensor, Tensor, Tensor, Tensor?)",
    _sdpa_backward,
    _sdpa_backward_fake,
)
torch.library.register_autograd("hap::sdpa", _backward, setup_context=_setup, lib=library)


def _flops(q: Sequence[int], k: Sequence[int], out: Sequence[int], products: int, products_of_values: int) -> int:
    """Multiplications of matrices; a causal mask is not taken off, as in ``torch.utils.flop_counter``."""
    return 2 * math.prod(out[:-1]) * k[-2] * (products * q[-1] + products_of_values * out[-1])


@register_flop_formula(torch.ops.hap.sdpa)
def _sdpa_flops(q: Sequence[int], k: Sequence[int], *_: Any, out_shape: Any = None, **__: Any) -> int:
    return _flops(q, k, out_shape[0], 1, 1)


# The scores once more, the gradients of weights and values, of queries and keys: five multiplications for two.
@register_flop_formula(torch.ops.hap.sdpa_backward)
def _sdpa_backward_flops(
    grad: Sequence[int], q: Sequence[int], k: Sequence[int], *_: Any, out_shape: Any = None, **__: Any
) -> int:
    return _flops(q, k, grad, 3, 2)

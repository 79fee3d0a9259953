"""Scaled dot-product attention and its backward, as two operators that mean the same on every device.

Formulas: softmax(q k^T * scale + mask) v, with the log-sum-exp of the scores kept for the backward (Dao et al. 2022).
Contract: ``out`` lies in memory in the order of q, ``lse`` is contiguous, and each gradient lies in the order of its
tensor, whatever kernel ran; so views behind them hold.
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
from hap.operators.random import WINDOW, keep_mask

aten = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)


def _accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _HALF else dtype


def _in_order_of(model: Tensor, x: Tensor) -> Tensor:
    """``x`` (same rank), dense, with its dimensions in memory in the order of ``model``'s strides."""
    if x.dim() != model.dim():
        return x.contiguous()
    strides = model.stride()
    order = sorted(range(model.dim()), key=lambda dim: (-strides[dim], dim))
    inverse = [order.index(dim) for dim in range(model.dim())]
    return x.permute(order).contiguous().permute(inverse)


def _repeated(x: Tensor, heads: int, gqa: bool) -> Tensor:
    """Keys or values with each head repeated for the group of queries that shares it."""
    if not gqa or x.shape[-3] == heads:
        return x
    return x.repeat_interleave(heads // x.shape[-3], -3)


def _summed(grad: Tensor, heads: int) -> Tensor:
    """The gradient of :func:`_repeated`."""
    if grad.shape[-3] == heads:
        return grad
    return grad.unflatten(-3, (heads, grad.shape[-3] // heads)).sum(-3)


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    scores = (q @ k.mT) * scale
    if causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(visible.logical_not(), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores


def _weights(scores: Tensor, lse: Tensor) -> Tensor:
    """The softmax from the log-sum-exp; a row that is masked altogether attends to nothing."""
    return (scores - lse.unsqueeze(-1)).exp().masked_fill((lse == -math.inf).unsqueeze(-1), 0.0)


def _flash_fits(q: Tensor, k: Tensor, v: Tensor, p: float) -> bool:
    """Whether the CPU flash kernels can be called: without heads or query rows they kill the process."""
    return (
        q.device.type == "cpu"
        and p == 0
        and q.dim() == 4
        and q.shape[-1] == v.shape[-1]
        and q.numel() > 0
        and k.numel() > 0
        and q.shape[:2] == k.shape[:2]
    )


def _flash_mask(q: Tensor, mask: Tensor | None) -> Tensor | None:
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(mask.logical_not(), -math.inf)
    return mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))


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
) -> tuple[Tensor, Tensor]:
    keys, values = _repeated(k, q.shape[-3], gqa), _repeated(v, q.shape[-3], gqa)
    if _flash_fits(q, keys, values, p):
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            q, keys, values, 0.0, causal, attn_mask=_flash_mask(q, mask), scale=scale
        )
        return _in_order_of(q, out), lse.contiguous()
    scores = _scores(q, keys, mask, causal, scale).to(_accumulation_dtype(q.dtype))
    lse = scores.logsumexp(-1)
    weights = _weights(scores, lse)
    if p:
        weights = weights * keep_mask(weights.shape, rng, p, index, weights, sizes, starts, lengths)
    return _in_order_of(q, weights.to(v.dtype) @ values), lse.contiguous()


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
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    keys, values = _repeated(k, q.shape[-3], gqa), _repeated(v, q.shape[-3], gqa)
    grad_mask = None
    if _flash_fits(q, keys, values, p) and not mask_grad:
        grad_q, grad_k, grad_v = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, keys, values, out, lse, 0.0, causal, attn_mask=_flash_mask(q, mask), scale=scale
        )
    else:
        dtype = _accumulation_dtype(q.dtype)
        queries, keys, values, grad, out = (x.to(dtype) for x in (q, keys, values, grad, out))
        weights = _weights(_scores(queries, keys, mask, causal, scale), lse)
        grad_weights = grad @ values.mT
        dropped = weights
        if p:
            kept = keep_mask(weights.shape, rng, p, index, weights, sizes, starts, lengths)
            dropped, grad_weights = weights * kept, grad_weights * kept
        grad_v = dropped.mT @ grad
        # The sum over keys of weights * grad_weights equals that of grad * out over the features.
        grad_scores = weights * (grad_weights - (grad * out).sum(-1, keepdim=True))
        grad_q, grad_k = grad_scores @ keys * scale, grad_scores.mT @ queries * scale
        if mask_grad:
            assert mask is not None
            grad_mask = grad_scores.sum_to_size(mask.shape).to(mask.dtype).contiguous()
    if gqa:
        grad_k, grad_v = _summed(grad_k, k.shape[-3]), _summed(grad_v, v.shape[-3])
    grads = (g.sum_to_size(x.shape).to(x.dtype) for g, x in ((grad_q, q), (grad_k, k), (grad_v, v)))
    return *(_in_order_of(x, g) for g, x in zip(grads, (q, k, v), strict=True)), grad_mask  # type: ignore[return-value]


def _sdpa_fake(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rng: Tensor | None, p: float, causal: bool, scale: float,
    gqa: bool, *_: Any
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch = tuple(q.shape[:-2]) if gqa else torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    out = _in_order_of(q, q.new_empty((*batch, q.shape[-2], v.shape[-1])))
    return out, q.new_empty((*batch, q.shape[-2]), dtype=_accumulation_dtype(q.dtype))


def _sdpa_backward_fake(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None, rng: Tensor | None,
    p: float, causal: bool, scale: float, gqa: bool, index: int, mask_grad: bool, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    grad_q, grad_k, grad_v = (_in_order_of(x, x.new_empty(x.shape)) for x in (q, k, v))
    return grad_q, grad_k, grad_v, mask.new_empty(mask.shape) if mask_grad and mask is not None else None


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, rng, p, causal, scale, gqa, index, *window = inputs
    ctx.attributes, ctx.window = (p, causal, scale, gqa, index), window
    ctx.save_for_backward(q, k, v, *output, mask, rng)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 13
    mask_grad = ctx.needs_input_grad[3]
    grads = torch.ops.hap.sdpa_backward(grad, *ctx.saved_tensors, *ctx.attributes, mask_grad, *ctx.window)
    return *grads, *(None,) * 9


define(
    "sdpa(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? rng, float p, bool causal, float scale, bool gqa, "
    f"int index, {WINDOW}) -> (Tensor, Tensor)",
    _sdpa,
    _sdpa_fake,
)
define(
    "sdpa_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? mask, Tensor? rng, "
    f"float p, bool causal, float scale, bool gqa, int index, bool mask_grad, {WINDOW}) "
    "-> (Tensor, Tensor, Tensor, Tensor?)",
    _sdpa_backward,
    _sdpa_backward_fake,
)
torch.library.register_autograd("hap::sdpa", _backward, setup_context=_setup, lib=library)


def _flops(q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> int:
    """Two multiplications of matrices; a causal mask is not taken off, as in ``torch.utils.flop_counter``."""
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


@register_flop_formula(torch.ops.hap.sdpa)
def _sdpa_flops(q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: Any, out_shape: Any = None, **__: Any) -> int:
    return _flops(q, k, v)


# The scores once more, the gradients of weights and values, of queries and keys: five multiplications for two.
@register_flop_formula(torch.ops.hap.sdpa_backward)
def _sdpa_backward_flops(
    grad: Sequence[int], q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: Any, out_shape: Any = None, **__: Any
) -> int:
    return 2 * math.prod(q[:-1]) * k[-2] * (3 * q[-1] + 2 * v[-1])

"""What is taken apart while tracing, so that few operators need rules and no rule needs a special case.

Means, variances, batch norm and mean-reduced losses become sums and the literal global count: a rule then never has to
know that a local mean is not a summand of the global one.
"""

# torch.ops is untyped.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions

from hap.trace import random_decompositions

aten = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)


def _t(x: Tensor) -> Tensor:
    return x if x.dim() < 2 else aten.permute(x, [1, 0])


def _transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    if x.dim() == 0:
        return aten.view(x, [])
    order = list(range(x.dim()))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return aten.permute(x, order)


def _padded(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Zeros around ``x`` along ``dim``; the list of pads counts from the last dimension."""
    return aten.constant_pad_nd(x, [0, 0] * (x.dim() - dim - 1) + [before, after])


def _slice_backward(grad: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Tensor:
    dim %= len(sizes)
    size = sizes[dim]
    start = max(start + size, 0) if start < 0 else min(start, size)
    if step > 1:
        # Spread the elements by `step`: [k] -> [k, step] with zeros -> [k * step], then cut what hangs over.
        count = grad.shape[dim]
        grad = _padded(aten.unsqueeze(grad, dim + 1), dim + 1, 0, step - 1)
        grad = aten.view(grad, [*grad.shape[:dim], count * step, *grad.shape[dim + 2 :]])
        if start + count * step > size:
            grad = aten.slice(grad, dim, 0, size - start)
    return _padded(grad, dim, start, size - start - grad.shape[dim])


def _select_backward(grad: Tensor, sizes: Sequence[int], dim: int, index: int) -> Tensor:
    dim %= len(sizes)
    index %= sizes[dim]
    return _padded(aten.unsqueeze(grad, dim), dim, index, sizes[dim] - index - 1)


def _stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    dim %= tensors[0].dim() + 1
    return aten.cat([aten.unsqueeze(x, dim) for x in tensors], dim)


def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """``x.copy_(source)`` without the old value: converted and broadcast."""
    if source.dtype != x.dtype:
        source = aten._to_copy(source, dtype=x.dtype)
    return source if source.shape == x.shape else aten.expand(source, list(x.shape))


# ---- means and variances


def _reduced(x: Tensor, dim: Sequence[int] | None) -> tuple[list[int], int]:
    """The dimensions that a reduction goes over (none given: all), and the number of elements in each sum."""
    dims = sorted(d % max(x.dim(), 1) for d in dim) if dim else list(range(x.dim()))
    if x.dim() == 0:
        return [], 1
    return dims, math.prod(x.shape[d] for d in dims)


def _mean(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    result = dtype or x.dtype
    dims, count = _reduced(x, dim)
    # A sum in half precision would overflow or lose the small addends where the mean does not.
    wide = torch.float32 if result in _HALF else result
    total = aten.sum(x, dims, keepdim, dtype=wide if wide != x.dtype else None) if dims else x.to(wide)
    mean = aten.div.Tensor(total, count)
    return mean if mean.dtype == result else aten._to_copy(mean, dtype=result)


def _mean_all(x: Tensor, *, dtype: Any = None) -> Tensor:
    return _mean(x, None, dtype=dtype)


def _var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims, count = _reduced(x, dim)
    wide = aten._to_copy(x, dtype=torch.float32) if x.dtype in _HALF else x
    mean = aten.div.Tensor(aten.sum(wide, dims, True) if dims else wide, count)
    deviation = aten.sub.Tensor(wide, mean)
    squares = aten.mul.Tensor(deviation, deviation)
    total = aten.sum(squares, dims, keepdim) if dims else squares
    var = aten.div.Tensor(total, max(count - (1 if correction is None else correction), 0))
    if not keepdim and dims:
        mean = aten.view(mean, [size for d, size in enumerate(x.shape) if d not in dims])
    if x.dtype in _HALF:
        var, mean = aten._to_copy(var, dtype=x.dtype), aten._to_copy(mean, dtype=x.dtype)
    return var, mean


def _var(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _std(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    return aten.sqrt(_var(x, dim, correction=correction, keepdim=keepdim))


def _std_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    var, mean = _var_mean(x, dim, correction=correction, keepdim=keepdim)
    return aten.sqrt(var), mean


def _weight_norm_backward(
    grad: Tensor, direction: Tensor, length: Tensor, norm: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """The gradients of ``direction`` and ``length`` from that of ``direction * length / norm``.

    The norm is over all dimensions but ``dim``; its derivative is ``direction / norm``.
    """
    others = [i for i in range(direction.dim()) if i != dim]
    unit = direction / norm
    along = (grad * unit).sum(others, keepdim=True)
    return ((grad - along * unit) * (length / norm)).to(direction.dtype), along.to(length.dtype)


# ---- memory without a value: zeros, so that a run never depends on what was there


def _empty(size: Sequence[int], *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return aten.full(size, 0, dtype=dtype or torch.get_default_dtype(), device=device)


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, device: Any = None, **_: Any
) -> Tensor:
    return _empty(size, dtype=dtype, device=device)


def _full_like(x: Tensor, value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return aten.full(list(x.shape), value, dtype=dtype or x.dtype, device=device or x.device)


def _like(value: int) -> Callable[..., Tensor]:
    def filled(x: Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
        return _full_like(x, value, dtype=dtype, device=device)

    return filled


def _new_full(x: Tensor, size: Sequence[int], value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return aten.full(size, value, dtype=dtype or x.dtype, device=device or x.device)


def _new(value: int) -> Callable[..., Tensor]:
    def filled(x: Tensor, size: Sequence[int], *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
        return _new_full(x, size, value, dtype=dtype, device=device)

    return filled


_OWN: dict[Any, Callable[..., Any]] = {
    aten.t.default: _t,
    aten.transpose.int: _transpose,
    aten._unsafe_view.default: lambda x, size: aten.view(x, size),
    aten.reshape.default: lambda x, size: aten.view(x, size),
    aten.stack.default: _stack,
    aten.copy.default: _copy,
    aten.slice_backward.default: _slice_backward,
    aten.select_backward.default: _select_backward,
    aten.add.Scalar: lambda x, y, alpha=1: aten.add.Tensor(x, y, alpha=alpha),
    aten.sub.Scalar: lambda x, y, alpha=1: aten.sub.Tensor(x, y, alpha=alpha),
    aten.mul.Scalar: lambda x, y: aten.mul.Tensor(x, y),
    aten.div.Scalar: lambda x, y: aten.div.Tensor(x, y),
    aten.div.Scalar_mode: lambda x, y, rounding_mode=None: aten.div.Tensor_mode(x, y, rounding_mode=rounding_mode),
    aten.mean.default: _mean_all,
    aten.mean.dim: _mean,
    aten.var.correction: _var,
    aten.var_mean.correction: _var_mean,
    aten.std.correction: _std,
    aten.std_mean.correction: _std_mean,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
    aten.empty.memory_format: _empty,
    aten.empty_strided.default: _empty_strided,
    aten.empty_like.default: _like(0),
    aten.zeros_like.default: _like(0),
    aten.ones_like.default: _like(1),
    aten.full_like.default: _full_like,
    aten.new_empty.default: _new(0),
    aten.new_zeros.default: _new(0),
    aten.new_ones.default: _new(1),
    aten.new_full.default: _new_full,
    aten.fill.Scalar: lambda x, value: _full_like(x, value),
    aten.zero.default: lambda x: _full_like(x, 0),
    aten.zeros.default: _empty,
    aten.ones.default: lambda size, *, dtype=None, device=None, **_: aten.full(
        size, 1, dtype=dtype or torch.get_default_dtype(), device=device
    ),
}

_TORCH = get_decompositions(
    [
        aten.nll_loss_forward, aten.nll_loss_backward, aten.nll_loss2d_forward, aten.nll_loss2d_backward,
        aten.mse_loss, aten.mse_loss_backward, aten.l1_loss, aten.smooth_l1_loss, aten.smooth_l1_loss_backward,
        aten.huber_loss, aten.huber_loss_backward, aten.soft_margin_loss, aten.soft_margin_loss_backward,
        aten.binary_cross_entropy, aten.binary_cross_entropy_backward, aten.binary_cross_entropy_with_logits,
        aten.native_batch_norm, aten.native_batch_norm_backward, aten._native_batch_norm_legit,
        aten._native_batch_norm_legit_no_training, aten._native_batch_norm_legit_functional,
        aten._batch_norm_with_update_functional, aten.batch_norm_backward, aten.cudnn_batch_norm,
        aten.cudnn_batch_norm_backward, aten.miopen_batch_norm_backward,
        aten.glu, aten.glu_backward, aten._prelu_kernel, aten._prelu_kernel_backward, aten.softplus,
        aten.softplus_backward, aten.log_sigmoid_forward, aten.log_sigmoid_backward, aten._weight_norm_interface,
        aten.rsub, aten.norm, aten.linalg_vector_norm, aten._trilinear, aten.masked_fill, aten.addcmul, aten.addcdiv,
        aten.lerp, aten._unsafe_masked_index, aten._unsafe_masked_index_put_accumulate, aten.affine_grid_generator,
    ]
)  # fmt: skip

TABLE: dict[Any, Callable[..., Any]] = {**_TORCH, **_OWN, **random_decompositions.TABLE}
"""The decompositions of the joint export, by overload."""

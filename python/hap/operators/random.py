"""Random operators whose numbers are a function of the step's state and the operator, not of the plan.

``rng`` is an int64[2]: seed and step. ``index`` tells apart the random operators of one graph; a forward operator and
its backward share it. The last three arguments are the *window*: where they are empty the local tensor is the whole
one; else the numbers are those of the whole tensor, viewed as ``sizes`` and restricted to the box of ``lengths`` units
from ``starts`` along each dimension, so that they never depend on how the tensor is split.

Each element is made of one, two or four random words of its own (:mod:`hap.operators.philox`). What is made of them by
exact arithmetic (masks, uniform numbers, integers) is equal on all devices; normal numbers take a logarithm and a
cosine in float64, and may differ in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from hap.operators.library import define, library
from hap.operators.philox import words

WINDOW = "int[] sizes=[], int[] starts=[], int[] lengths=[]"

_DIGITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}


def _drawn(rng: Tensor, index: int, shape: Sequence[int], window: tuple[Sequence[int], ...], each: int) -> Tensor:
    """Random words, int32, of shape ``[*shape, each]``."""
    sizes, starts, lengths = window if window and window[0] else (shape, [0] * len(shape), shape)
    return words(rng, index, [*sizes, each], [*starts, 0], [*lengths, each]).view(*shape, each)


def kept(shape: Sequence[int], rng: Tensor, p: float, index: int, *window: Sequence[int]) -> Tensor:
    """True with probability ``1 - p``, to within 2**-32."""
    if p in (0, 1):
        return torch.full(tuple(shape), p == 0, device=rng.device)
    return _drawn(rng, index, shape, window, 1).squeeze(-1) >= min(round(p * 2**32), 2**32 - 1) - 2**31


def _scale(p: float) -> float:
    """What keeps the mean as it was."""
    return 1 / (1 - p) if p < 1 else 0.0


def keep_mask(
    shape: Sequence[int], rng: Tensor | None, p: float, index: int, like: Tensor, *window: Sequence[int]
) -> Tensor:
    """Dropout's mask: 0 with probability ``p``, else 1 / (1 - p), in the element type and on the device of ``like``."""
    assert rng is not None, "dropout needs the state of the random numbers"
    mask = kept(shape, rng, p, index, *window)
    return mask.to(device=like.device, dtype=like.dtype).mul_(_scale(p))


def _dropout(x: Tensor, rng: Tensor, p: float, index: int, *window: Sequence[int]) -> Tensor:
    mask = kept(x.shape, rng, p, index, *window).to(x.device)
    # The memory order is that of x, as the shape function says, whatever the order of the mask.
    return torch.mul(x, mask, out=torch.empty_like(x)).mul_(_scale(p))


def _dropout_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, rng, *ctx.rest = inputs
    ctx.save_for_backward(rng)


def _dropout_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    # Dropout is linear in x and its mask can be drawn again: the backward is the operator itself.
    return torch.ops.hap.dropout(grad, *ctx.saved_tensors, *ctx.rest), *(None,) * 6


def _rand(
    rng: Tensor, size: Sequence[int], index: int, dtype: torch.dtype, device: torch.device, *window: Sequence[int]
) -> Tensor:
    """Multiples of 2**-24 in [0, 1) (float32; as many digits as the type has), as PyTorch draws them."""
    digits = _DIGITS[dtype]
    if dtype == torch.float64:
        signed = _drawn(rng, index, size, window, 2).view(torch.int64) >> (64 - digits)
    else:
        signed = _drawn(rng, index, size, window, 1) >> (32 - digits)
    return signed.squeeze(-1).to(device=device, dtype=dtype).mul_(2**-digits).add_(0.5)


def _randn(
    rng: Tensor, size: Sequence[int], index: int, dtype: torch.dtype, device: torch.device, *window: Sequence[int]
) -> Tensor:
    """Box and Muller (1958), of two uniform numbers of 32 bits (float64: 53 bits)."""
    drawn = _drawn(rng, index, size, window, 4 if dtype == torch.float64 else 2)
    digits = 32
    if dtype == torch.float64:
        drawn, digits = drawn.view(torch.int64) >> 11, 53
    radial, angle = drawn.to(device=device, dtype=torch.float64).add_(0.5).mul_(2**-digits).add_(0.5).unbind(-1)
    return ((-2 * radial.log()).sqrt_() * (angle * (2 * math.pi)).cos_()).to(dtype)


def _bernoulli(
    rng: Tensor, size: Sequence[int], p: float, index: int, dtype: torch.dtype, device: torch.device,
    *window: Sequence[int]
) -> Tensor:  # fmt: skip
    return kept(size, rng, 1 - p, index, *window).to(device=device, dtype=dtype)


def _randint(
    rng: Tensor, size: Sequence[int], low: int, high: int, index: int, dtype: torch.dtype, device: torch.device,
    *window: Sequence[int]
) -> Tensor:  # fmt: skip
    """Whole numbers in [low, high), each as likely as another to within 2**-63 of the range."""
    drawn = _drawn(rng, index, size, window, 2).view(torch.int64).squeeze(-1)
    return ((drawn & (2**63 - 1)) % (high - low) + low).to(device=device, dtype=dtype)


def _fill_fake(rng: Tensor, size: Sequence[int], *rest: Any) -> Tensor:
    dtype, device = next((rest[at], rest[at + 1]) for at in range(len(rest)) if isinstance(rest[at], torch.dtype))
    return torch.empty(size, dtype=dtype, device=device)


define(
    f"dropout(Tensor x, Tensor rng, float p, int index, {WINDOW}) -> Tensor",
    _dropout,
    lambda x, *_: torch.empty_like(x),
)
torch.library.register_autograd("hap::dropout", _dropout_backward, setup_context=_dropout_setup, lib=library)

_FILLS: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "rand": ("", _rand),
    "randn": ("", _randn),
    "bernoulli": ("float p, ", _bernoulli),
    "randint": ("int low, int high, ", _randint),
}
for _name, (_parameters, _kernel) in _FILLS.items():
    define(
        f"{_name}(Tensor rng, int[] size, {_parameters}int index, ScalarType dtype, Device device, {WINDOW}) -> Tensor",
        _kernel,
        _fill_fake,
    )


# A multiplication an element; the drawing of the mask is not counted.
@register_flop_formula(torch.ops.hap.dropout)
def _dropout_flops(shape: Sequence[int], *_: Any, out_shape: Any = None, **__: Any) -> int:
    return math.prod(shape)

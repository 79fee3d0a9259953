"""Random operators whose numbers are a function of the step's state and the operator, not of the plan.

``rng`` is an int64[2] on the CPU: seed and step. ``index`` tells apart the random operators of one graph; a forward
operator and its backward share it. The last three arguments are the *window*: where they are empty the local tensor is
the whole one; else the numbers are those of the whole tensor, viewed as ``sizes`` and restricted to the box of
``lengths`` units from ``starts`` along each dimension, so that they never depend on how the tensor is split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from hap.operators.library import define, library

WINDOW = "int[] sizes=[], int[] starts=[], int[] lengths=[]"
_MASK64 = (1 << 64) - 1


def _mixed(state: int, word: int) -> int:
    """One step of SplitMix64 (Steele, Lea, Flood 2014) over ``state`` and a further word."""
    z = (state + word * 0xBF58476D1CE4E5B9 + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def generator(rng: Tensor, index: int) -> torch.Generator:
    """The generator of one operator in one step. It lives on the CPU, so that all devices draw the same numbers."""
    state = 0
    for word in (*rng.tolist(), index):
        state = _mixed(state, int(word))
    # Generator seeds are signed 64-bit integers.
    return torch.Generator().manual_seed(state - (1 << 63))


def window_of(
    draw: Callable[[Sequence[int]], Tensor],
    shape: Sequence[int],
    sizes: Sequence[int],
    starts: Sequence[int],
    lengths: Sequence[int],
) -> Tensor:
    """The local part, of shape ``shape``, of what ``draw`` gives for the whole tensor."""
    if not sizes:
        return draw(shape)
    drawn = draw(sizes)
    for dim, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        drawn = drawn.narrow(dim, start, length)
    return drawn.reshape(tuple(shape))


def keep_mask(
    shape: Sequence[int],
    rng: Tensor | None,
    p: float,
    index: int,
    like: Tensor,
    sizes: Sequence[int] = (),
    starts: Sequence[int] = (),
    lengths: Sequence[int] = (),
) -> Tensor:
    """Dropout's mask: 0 with probability ``p``, else 1 / (1 - p), in the element type and on the device of ``like``."""
    assert rng is not None, "dropout needs the state of the random numbers"
    source = generator(rng, index)
    kept = window_of(lambda whole: torch.rand(whole, generator=source) >= p, shape, sizes, starts, lengths)
    return kept.to(device=like.device, dtype=like.dtype) * (1 / (1 - p) if p < 1 else 0.0)


def _dropout(
    x: Tensor,
    rng: Tensor,
    p: float,
    index: int,
    sizes: Sequence[int] = (),
    starts: Sequence[int] = (),
    lengths: Sequence[int] = (),
) -> Tensor:
    mask = keep_mask(x.shape, rng, p, index, x, sizes, starts, lengths)
    # The memory order is that of x, as the shape function says, whatever the order of the mask.
    return torch.mul(x, mask, out=torch.empty_like(x))


def _dropout_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, rng, *ctx.rest = inputs
    ctx.save_for_backward(rng)


def _dropout_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    # Dropout is linear in x and its mask can be drawn again: the backward is the operator itself.
    return torch.ops.hap.dropout(grad, *ctx.saved_tensors, *ctx.rest), *(None,) * 6


def _drawn(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The kernel that fills a window with what ``draw`` draws: ``torch.rand`` or ``torch.randn``."""

    def fill(
        rng: Tensor,
        size: Sequence[int],
        index: int,
        dtype: torch.dtype,
        device: torch.device,
        sizes: Sequence[int] = (),
        starts: Sequence[int] = (),
        lengths: Sequence[int] = (),
    ) -> Tensor:
        source = generator(rng, index)
        drawn = window_of(lambda whole: draw(whole, generator=source, dtype=dtype), size, sizes, starts, lengths)
        return drawn.to(device)

    return fill


def _bernoulli(
    rng: Tensor,
    size: Sequence[int],
    p: float,
    index: int,
    dtype: torch.dtype,
    device: torch.device,
    sizes: Sequence[int] = (),
    starts: Sequence[int] = (),
    lengths: Sequence[int] = (),
) -> Tensor:
    source = generator(rng, index)
    drawn = window_of(lambda whole: torch.rand(whole, generator=source) < p, size, sizes, starts, lengths)
    return drawn.to(device=device, dtype=dtype)


def _fill_fake(rng: Tensor, size: Sequence[int], *rest: Any) -> Tensor:
    # The element type and the device stand behind the numbers p (if any) and index.
    dtype, device = next((rest[at], rest[at + 1]) for at in range(len(rest)) if isinstance(rest[at], torch.dtype))
    return torch.empty(size, dtype=dtype, device=device)


define(
    f"dropout(Tensor x, Tensor rng, float p, int index, {WINDOW}) -> Tensor",
    _dropout,
    lambda x, *_: torch.empty_like(x),
)
torch.library.register_autograd("hap::dropout", _dropout_backward, setup_context=_dropout_setup, lib=library)
define(
    f"rand(Tensor rng, int[] size, int index, ScalarType dtype, Device device, {WINDOW}) -> Tensor",
    _drawn(torch.rand),
    _fill_fake,
)
define(
    f"randn(Tensor rng, int[] size, int index, ScalarType dtype, Device device, {WINDOW}) -> Tensor",
    _drawn(torch.randn),
    _fill_fake,
)
define(
    f"bernoulli(Tensor rng, int[] size, float p, int index, ScalarType dtype, Device device, {WINDOW}) -> Tensor",
    _bernoulli,
    _fill_fake,
)


# A multiplication an element; the drawing of the mask is not counted.
@register_flop_formula(torch.ops.hap.dropout)
def _dropout_flops(shape: Sequence[int], *_: Any, out_shape: Any = None, **__: Any) -> int:
    return math.prod(shape)

"""Random words that are a function of seed, step, operator and position: Philox4x32-10, equal on all devices.

``rust/random.rs`` says how they are made of one another, and makes them on the CPU; here stands the same function in
integer operators of PyTorch, for all other devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hap import _core

_LOW = (1 << 32) - 1
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def words(rng: Tensor, index: int, sizes: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """The words at the positions of a box of a tensor: int32, of shape ``lengths``, on the device of ``rng``.

    Args:
        rng: int64[2], seed and step.
        index: number of the operator in its graph.
        sizes: of the whole tensor.
        starts: where the box starts along each dimension.
        lengths: how many positions it holds there.
    """
    if rng.device.type != "cpu":
        return words_by_operators(rng, index, sizes, starts, lengths)
    seed, step = rng.tolist()
    made = _core.random_words(seed, step, index, sizes, starts, lengths)
    # An empty buffer cannot be taken.
    drawn = torch.frombuffer(made, dtype=torch.int32) if made else torch.empty(0, dtype=torch.int32)
    return drawn.view(tuple(lengths))


def words_by_operators(
    rng: Tensor, index: int, sizes: Sequence[int], starts: Sequence[int], lengths: Sequence[int]
) -> Tensor:
    """As :func:`words`, by operators of PyTorch on the device of ``rng``, without waiting for it."""
    # Dimensions that are taken whole make one run of positions with the one before them.
    outer = len(sizes) - 1
    while outer > 0 and lengths[outer] == sizes[outer]:
        outer -= 1
    outer = max(outer, 0)
    strides = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    offset = sum(start * stride for start, stride in zip(starts, strides, strict=True))
    first = torch.full((1,), offset, dtype=torch.int64, device=rng.device)
    for length, stride in zip(lengths[:outer], strides[:outer], strict=True):
        first = (first[:, None] + torch.arange(length, device=rng.device) * stride).flatten()
    run = math.prod(lengths[outer:])
    blocks = first[:, None] // 4 + torch.arange((run + 2) // 4 + 1, device=rng.device)
    drawn = torch.stack(_philox(blocks, rng, index), -1).flatten(1)
    inside = first[:, None] % 4 + torch.arange(run, device=rng.device)
    return drawn.gather(1, inside).to(torch.int32).view(tuple(lengths))


def _philox(blocks: Tensor, rng: Tensor, index: int) -> list[Tensor]:
    """The four words of each block, as int64 of 32 bits. Products of 64 bits may wrap: their bits are right."""
    a, b = blocks & _LOW, blocks >> 32 & _LOW
    c, d = rng[1].expand_as(blocks), torch.full_like(blocks, index)
    keys = [rng[0] & _LOW, rng[0] >> 32 & _LOW]
    for _ in range(10):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (second >> 32 & _LOW) ^ b ^ keys[0], second & _LOW
        c, d = (first >> 32 & _LOW) ^ d ^ keys[1], first & _LOW
        keys = [key + step & _LOW for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return [a, b, c, d]

"""Functions of PyTorch that are put as others which shard: bags of embeddings, averages over images, masked places.

``aten._embedding_bag`` has results that tell how it went about its work, and so no axes; the average over all positions
ends in ``as_strided`` where the memory of its input is permuted; the backward of ``x[mask] = row`` has shapes that
depend on the mask.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """As PyTorch's function of this name: by an embedding, and sums over each bag."""
    per_bag = offsets is None and input.dim() == 2
    if max_norm is not None or scale_grad_by_freq or sparse or not (per_bag or (offsets is not None and mode != "max")):
        return F.embedding_bag(
            input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights,
            include_last_offset, padding_idx,
        )  # fmt: skip
    rows = F.embedding(input, weight)
    kept = torch.ones_like(input, dtype=weight.dtype)
    if padding_idx is not None:
        kept = (input != padding_idx % weight.shape[0]).to(weight.dtype)
    if mode == "max":
        every = rows.masked_fill(kept.unsqueeze(-1) == 0, -torch.inf).max(1).values
        return every.masked_fill(kept.sum(1, keepdim=True) == 0, 0.0)
    if per_sample_weights is not None:
        kept = kept * per_sample_weights
    if padding_idx is not None or per_sample_weights is not None:
        rows = rows * kept.unsqueeze(-1)
    if offsets is None:
        total, count = rows.sum(1), kept.sum(1)
    else:
        starts = offsets[:-1] if include_last_offset else offsets
        bag = torch.searchsorted(starts, torch.arange(input.shape[0], device=input.device), right=True) - 1
        total = rows.new_zeros(starts.shape[0], rows.shape[1]).index_add(0, bag, rows)
        count = kept.new_zeros(starts.shape[0]).index_add(0, bag, kept)
    return total if mode == "sum" else total / count.clamp(min=1.0).unsqueeze(-1)


def _average(space: int, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function``, an adaptive average pool over so many dimensions, as a mean where a single position is left."""

    def pool(input: Tensor, output_size: int | Sequence[int | None]) -> Tensor:
        sizes = [output_size] * space if isinstance(output_size, int) else list(output_size)
        if all(size == 1 for size in sizes):
            return input.mean(tuple(range(-space, 0)), keepdim=True)
        return function(input, output_size)

    return pool


def setitem(x: Tensor, index: Any, value: Any) -> None:
    """``x[index] = value``: a choice of elements where a mask says where one value goes, as in ``x[:, mask] = row``."""
    *whole, mask = index if isinstance(index, tuple) else (index,)
    before = len(whole)
    if isinstance(mask, Tensor) and whole == [...]:
        before, whole = x.dim() - mask.dim(), []
    rest = x.dim() - before - mask.dim() if isinstance(mask, Tensor) else 0
    while isinstance(value, Tensor) and value.dim() > before + 1 + rest and value.shape[0] == 1:
        value = value.squeeze(0)  # as PyTorch: more leading ones than `x[index]` has dimensions
    if (
        not (isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.dim() and mask.device == x.device)
        or not (isinstance(value, Tensor) and value.device == x.device and value.dtype == x.dtype)
        or not all(isinstance(one, slice) and one == slice(None) for one in whole)
        or mask.shape != x.shape[before : before + mask.dim()]
        or (value.dim() > rest and value.shape[value.dim() - rest - 1] != 1)  # one for each place
    ):
        x[index] = value
        return
    if value.dim() > rest:
        # The dimension of all places together stands for those of the mask.
        place = value.dim() - rest - 1
        value = value.reshape(*value.shape[:place], *[1] * mask.dim(), *value.shape[place + 1 :])
    x.copy_(torch.where(mask.reshape(*mask.shape, *[1] * rest), value, x))


REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    F.embedding_bag: embedding_bag,
    operator.setitem: setitem,
    torch.adaptive_avg_pool1d: _average(1, torch.adaptive_avg_pool1d),
    F.adaptive_avg_pool2d: _average(2, F.adaptive_avg_pool2d),
    F.adaptive_avg_pool3d: _average(3, F.adaptive_avg_pool3d),
}

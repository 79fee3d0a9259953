"""Attention over parts of the keys, put together by their log-sum-exps.

out = sum over parts of out_i exp(lse_i - lse), with lse the log-sum-exp of all lse_i (Dao et al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def _weights(lse: Tensor, keys: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Over all parts, from theirs as rows: the log-sum-exp, and what each part's output weighs.

    Rows that are masked by the lowest number instead of minus infinity swallow the logarithm of the number of their
    keys: it is put back, so that such a row's weights are equal as in the whole.
    """
    largest = lse.amax(0)
    count = torch.tensor(keys, dtype=lse.dtype, device=lse.device).log().view(-1, *(1 for _ in range(lse.dim() - 1)))
    relative = lse - largest + torch.where(lse < torch.finfo(lse.dtype).min / 2, count, 0.0)
    weights = relative.masked_fill(lse == -torch.inf, -torch.inf).exp()
    total = weights.sum(0)
    return largest + total.log(), (weights / total).masked_fill(total == 0, 0.0)


def merged(
    out: Tensor, lse: Tensor, keys: int, other_out: Tensor, other_lse: Tensor, other_keys: int
) -> tuple[Tensor, Tensor]:
    """``out`` and ``lse`` over two parts with these numbers of keys."""
    whole, weights = _weights(torch.stack([lse, other_lse]), [keys, other_keys])
    first, second = weights.unsqueeze(-1)
    return (out * first + other_out * second).to(out.dtype), whole


def summand(out: Tensor, every_lse: Tensor, keys: Sequence[int], part: int) -> tuple[Tensor, Tensor]:
    """What a part adds to the output, and the log-sum-exp over all parts, from ``every_lse`` with theirs as rows."""
    whole, weights = _weights(every_lse, keys)
    return (out * weights[part].unsqueeze(-1)).to(out.dtype), whole

"""Attention over parts of the keys, put together by their log-sum-exps.

out = sum over parts of out_i exp(lse_i - lse), with lse the log-sum-exp of all lse_i (Dao et al. 2022).

A log-sum-exp is held as two numbers whose sum it is, side by side in the last dimension: it as near as a number can be,
and what is left. For keys masked by a large number instead of minus infinity, -1e9 say, that is the logarithm of how
many they are.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_sum_exp(scores: Tensor, rest: Tensor | float = 0.0) -> Tensor:
    """Of ``scores + rest`` along the last dimension: in its place the two numbers; minus infinity and 0 of nothing."""
    most = (scores + rest).logsumexp(-1)
    left = ((scores - most.unsqueeze(-1)) + rest).exp().sum(-1).log()
    return torch.stack([most, left.masked_fill(most == -torch.inf, 0.0)], -1)


def _weights(every_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Over all parts, from theirs as rows: the log-sum-exp, and what each part's output weighs."""
    most, rest = every_lse.unbind(-1)
    whole = log_sum_exp(most.movedim(0, -1), rest.movedim(0, -1))
    weights = ((most - whole[..., 0]) + (rest - whole[..., 1])).exp()
    return whole, weights.masked_fill(whole[..., 0] == -torch.inf, 0.0)


def merged(out: Tensor, lse: Tensor, other_out: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """``out`` and ``lse`` over two parts."""
    whole, weights = _weights(torch.stack([lse, other_lse]))
    first, second = weights.unsqueeze(-1)
    return (out * first + other_out * second).to(out.dtype), whole


def summand(out: Tensor, every_lse: Tensor, part: int) -> tuple[Tensor, Tensor]:
    """What a part adds to the output, and the log-sum-exp over all parts, from ``every_lse`` with theirs as rows."""
    whole, weights = _weights(every_lse)
    return (out * weights[part].unsqueeze(-1)).to(out.dtype), whole

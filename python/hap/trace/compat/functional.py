"""PyTorch's own functions that inspect values in Python, or whose checks capture takes for effects to keep in order."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch._higher_order_ops.effects as effects
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules import transformer


def _gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """As PyTorch's, but for the error at negative variances."""
    variance = var * torch.ones_like(input) if isinstance(var, float) else var
    if variance.size() != input.size():
        # One variance for the last dimension, which may also be left out.
        variance = variance.unsqueeze(-1) if input.size()[:-1] == variance.size() else variance
        if (
            input.dim() != variance.dim()
            or sum(a != b for a, b in zip(input.size(), variance.size(), strict=True)) != 1
        ):
            raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    # The gradient passes the clamp.
    variance = variance + (variance.clamp(min=eps) - variance).detach()
    loss = 0.5 * (torch.log(variance) + (input - target) ** 2 / variance)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def _detect_is_causal_mask(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """As PyTorch's, but for the look at a mask without a hint: it is used as it stands, with the same results."""
    return bool(is_causal)


_effect = effects._get_effect


def _get_effect(op: Any) -> Any:
    # The check of torch.linalg's results stays where its operands are, and is dropped with the other assertions.
    return None if op is torch.ops.aten._linalg_check_errors.default else _effect(op)


@contextlib.contextmanager
def compatible() -> Iterator[None]:
    """Puts them in place meanwhile."""
    with (
        patch.object(F, "gaussian_nll_loss", _gaussian_nll_loss),
        patch.object(transformer, "_detect_is_causal_mask", _detect_is_causal_mask),
        patch.object(effects, "_get_effect", _get_effect),
    ):
        yield

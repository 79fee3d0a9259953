"""Losses whose PyTorch functions cannot be captured, or are captured as something else than they compute.

Formulas of ``torch.nn.functional``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import _reduction
from torch.nn.modules.adaptive import _ASMoutput


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """As PyTorch's function of this name, but that no value is looked at: a negative variance counts as ``eps``."""
    if not isinstance(var, Tensor):
        var = torch.full_like(input, var)
    elif var.dim() == input.dim() - 1 and var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    elif var.shape != input.shape:
        other = [size for size, whole in zip(var.shape, input.shape, strict=False) if size != whole]
        if var.dim() != input.dim() or other != [1]:
            raise ValueError(f"gaussian_nll_loss: var has shape {list(var.shape)}, which is not that of the input")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    var = var.clone()
    with torch.no_grad():  # the gradient passes the clamp
        var.clamp_(min=eps)
    loss = 0.5 * (var.log() + (input - target).square() / var)
    return _reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def adaptive_log_softmax(self: nn.AdaptiveLogSoftmaxWithLoss, input: Tensor, target: Tensor) -> Any:
    """As the forward of ``nn.AdaptiveLogSoftmaxWithLoss``, which selects the rows of each cluster.

    Here each cluster takes all rows: no shape depends on the targets.

    Raises:
        RuntimeError: the shapes are not ``(rows, features)`` and ``(rows,)``, or ``(features,)`` and ``()``.
    """
    if target.dim() > 1 or input.dim() != target.dim() + 1 or input.shape[:-1] != target.shape:
        raise RuntimeError(
            "AdaptiveLogSoftmaxWithLoss: expected an input of shape (rows, features) and a target of shape (rows,), or "
            f"(features,) and (); got {list(input.shape)} and {list(target.shape)}"
        )
    rows = input if target.dim() else input.unsqueeze(0)
    head = self.head(rows).log_softmax(1)
    scores = [head[:, : self.shortlist_size]]
    for number, tail in enumerate(self.tail, self.shortlist_size):
        scores.append(tail(rows).log_softmax(1) + head[:, number : number + 1])
    output = torch.cat(scores, 1).gather(1, target.reshape(-1, 1)).squeeze(1)
    return _ASMoutput(output if target.dim() else output.squeeze(0), -output.mean())


def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """As PyTorch's function of this name.

    Its decomposition counts what stands behind the first -1 of a target as label 0.
    """
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    classes = input.shape[-1]
    labels = (target < 0).cumsum(-1) == 0
    named = target.masked_fill(labels.logical_not(), 0)
    places = torch.arange(classes, device=target.device)
    others = ((named.unsqueeze(-1) == places) & labels.unsqueeze(-1)).any(-2).logical_not()
    margins = (1 - input.gather(-1, named).unsqueeze(-1) + input.unsqueeze(-2)).relu()
    counted = labels.unsqueeze(-1) & others.unsqueeze(-2)
    return _reduced(torch.where(counted, margins, 0).sum((-2, -1)) / classes, reduction)

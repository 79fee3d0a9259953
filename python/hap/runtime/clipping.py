"""Clipping by the norm of all gradients of all devices."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from hap.errors import HapError
from hap.runtime.accumulate import check_reduced
from hap.runtime.agree import process_group
from hap.runtime.group import Group
from hap.runtime.optimisers import mark_of
from hap.runtime.requests import AllReduce, in_place

Parameters = nn.Module | torch.Tensor | Iterable[nn.Module | torch.Tensor]


@torch.no_grad()
def clip_grad_norm_(
    parameters: Parameters,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """Scale gradients in place so that their norm, over all devices, is at most ``max_norm``.

    As :func:`torch.nn.utils.clip_grad_norm_` on one device: shards are parts of their parameters, and what every device
    holds whole counts once. A collective: all ranks must call it, with the same parameters.

    Args:
        parameters: a module, a parameter, or several of either, parallel or not; those that are not must be alike on
            all ranks.
        max_norm: the largest norm that the gradients may keep.
        norm_type: the ``p`` of the norm, above zero; ``inf`` for the largest absolute value.
        error_if_nonfinite: raise where the norm is infinite or no number.
        foreach: as PyTorch's, for the scaling.

    Returns:
        The norm before, the same on every rank: in float64 if a gradient is, else in float32.

    Raises:
        HapError: the norm is not finite (on all ranks, where that is asked for), ``norm_type`` is not above zero, or
            gradients wait for their reduction under ``no_sync``.
    """
    norm_type = float(norm_type)
    if not norm_type > 0.0:
        raise HapError(f"clip_grad_norm_: expected a norm_type above zero, got {norm_type}")
    chosen = _distinct(parameters)
    check_reduced(chosen, "clip_grad_norm_")
    group = Group(process_group(None))
    counted = [one for one in chosen if one.grad is not None and _counted(one, group.rank)]
    gradients = [one.grad for one in counted if one.grad is not None and one.grad.numel()]
    device = next((one.device for one in chosen), torch.device("cpu"))
    total = _total(
        [_norm(gradient, norm_type).to(device, torch.float64) for gradient in gradients], norm_type, group, device
    )
    wide = any(one.grad is not None and one.grad.dtype == torch.float64 for one in chosen)
    total = total.to(torch.float64 if wide else torch.float32)
    if error_if_nonfinite and not bool(total.isfinite()):
        raise HapError(
            f"the norm of order {norm_type} of the gradients is {total.item()}, so they cannot be clipped; to scale "
            "them by it all the same, leave error_if_nonfinite=False"
        )
    torch.nn.utils.clip_grads_with_norm_(chosen, max_norm, total, foreach)
    return total


def _counted(parameter: torch.Tensor, rank: int) -> bool:
    """Whether a rank counts a parameter: its shard, or as the first of those that hold the same, but for rounding."""
    mark = mark_of(parameter)
    return rank == 0 if mark is None else mark.counted


def _total(norms: list[torch.Tensor], order: float, group: Group, device: torch.device) -> torch.Tensor:
    """The norm of all ranks' norms."""
    values = torch.stack([*norms, torch.zeros((), dtype=torch.float64, device=device)])
    if math.isinf(order):
        # The largest of several may pass over what is no number: that is asked for apart.
        missing = values.isnan()
        found = torch.stack([values.masked_fill(missing, 0.0).max(), missing.any().to(torch.float64)])
        if group.size > 1:
            group.run("all_reduce of the norm of gradients", in_place(AllReduce(found, "max"), found))
        return torch.where(found[1] > 0.0, math.nan, found[0])
    total: torch.Tensor = values.pow(order).sum()
    if group.size > 1:
        group.run("all_reduce of the norm of gradients", in_place(AllReduce(total), total))
    return total.pow(1.0 / order)


def _distinct(parameters: Parameters) -> list[torch.Tensor]:
    """Each parameter once."""
    if isinstance(parameters, nn.Module | torch.Tensor):
        parameters = [parameters]
    found: dict[int, torch.Tensor] = {}
    for one in parameters:
        if not isinstance(one, nn.Module | torch.Tensor):
            raise HapError(f"clip_grad_norm_: expected modules or parameters, got {type(one).__name__}")
        for parameter in one.parameters() if isinstance(one, nn.Module) else [one]:
            found[id(parameter)] = parameter
    return list(found.values())


def _norm(gradient: torch.Tensor, order: float) -> torch.Tensor:
    """In float32 at least: 16 bits would lose or overflow the sum."""
    dtype = torch.float32 if gradient.dtype.itemsize < 4 else None
    norm: torch.Tensor = torch.linalg.vector_norm(gradient, order, dtype=dtype)
    return norm

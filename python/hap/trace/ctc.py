"""``torch.ctc_loss`` on hap's own operator, whose shapes do not depend on the lengths."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Lengths = Tensor | Sequence[int] | int


def _lengths(given: Lengths, device: torch.device) -> Tensor:
    lengths = given.to(device) if isinstance(given, Tensor) else torch.tensor(given, device=device)
    return lengths.reshape(-1)


def _padded(targets: Tensor, lengths: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Concatenated targets one row a sample, and their lengths.

    A target longer than ``steps`` has no alignment, whatever stands in it: rows of one more are wide enough.
    """
    wide = min(targets.shape[0], steps + 1)
    starts = lengths.cumsum(0) - lengths
    places = starts.unsqueeze(1) + torch.arange(wide, device=targets.device)
    if not wide:
        return targets.new_zeros(places.shape), lengths
    return targets[places.clamp(max=targets.shape[0] - 1)], lengths.clamp(max=wide)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """As ``torch.ctc_loss``; ``reduction`` is 0 (none), 1 (mean) or 2 (sum)."""
    # PyTorch's operator is on autocast's list of operators that run in float32; hap's is not.
    if torch.is_autocast_enabled(log_probs.device.type):
        log_probs = log_probs.float()
    batched = log_probs.dim() == 3
    if not batched:
        log_probs = log_probs.unsqueeze(1)
        targets = targets.unsqueeze(0) if targets.dim() == 1 else targets
    inputs, lengths = (_lengths(one, log_probs.device) for one in (input_lengths, target_lengths))
    padded, clamped = (targets, lengths) if targets.dim() == 2 else _padded(targets, lengths, log_probs.shape[0])
    loss: Tensor = torch.ops.hap.ctc_loss(log_probs, padded, inputs, clamped, blank, zero_infinity)
    if reduction == 1:
        return (loss / lengths.clamp(min=1)).mean()
    if reduction == 2:
        return loss.sum()
    return loss if batched else loss.squeeze(0)

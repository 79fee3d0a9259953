"""A rank's share of a dimension: where its elements stand in the whole one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Stretch = Sequence[int]
"""A share of a dimension viewed as ``[outer, size, inner]``: these sizes, its first unit and its units."""


def positions(stretch: Stretch, device: torch.device | None = None) -> Tensor:
    """The place in the whole dimension of each element that a rank holds, ascending, int64."""
    outer, size, inner, start, length = stretch
    whole = torch.arange(outer * size * inner, device=device).view(outer, size, inner)
    return whole.narrow(1, start, length).reshape(-1)


def elements(stretch: Stretch) -> int:
    """How many elements of the dimension a rank holds."""
    outer, _, inner, _, length = stretch
    return outer * length * inner

"""The element type in which operators sum."""

from __future__ import annotations

import torch

_HALF = (torch.bfloat16, torch.float16)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type that sums and states are kept in, as in PyTorch's kernels: single precision for half types."""
    return torch.float32 if dtype in _HALF else dtype

"""PyTorch's own functions that inspect values in Python, or whose checks capture takes for effects to keep in order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch._higher_order_ops.effects as effects
from torch import Tensor
from torch.nn.modules import transformer


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
        patch.object(transformer, "_detect_is_causal_mask", _detect_is_causal_mask),
        patch.object(effects, "_get_effect", _get_effect),
    ):
        yield

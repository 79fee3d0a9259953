"""Hugging Face transformers: no caches in training, its machinery for captured outputs made plain, and its CTC loss."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _Collector:
    """Stands for the context variable of ``output_capturing``, which Dynamo cannot read."""

    def __init__(self) -> None:
        self.value: Any = None

    def get(self) -> Any:
        return self.value

    def set(self, value: Any) -> None:
        self.value = value

    def reset(self, token: Any) -> None:
        self.value = None


def _ctc_loss(
    logits: Tensor,
    labels: Tensor,
    logit_lengths: Tensor,
    blank_token_id: int,
    reduction: str = "mean",
    zero_infinity: bool = False,
    ignore_index: int = -100,
    **_: Any,
) -> Tensor:
    """As ``ForCTCLoss``, which selects the labels that count: here they move to the front of their rows.

    ``logits`` has shape (samples, steps, classes), ``labels`` (samples, places).
    """
    labels = labels.to(logits.device)
    apart = (labels == ignore_index) | (labels == blank_token_id)
    order = apart.long().argsort(dim=-1, stable=True)
    targets = labels.masked_fill(apart, blank_token_id).gather(-1, order)
    scores = logits.log_softmax(-1, dtype=torch.float32).transpose(0, 1)
    lengths = apart.logical_not().sum(-1)
    return F.ctc_loss(scores, targets, logit_lengths, lengths, blank_token_id, reduction, zero_infinity)


def is_hidden_side_effect(source: str) -> bool:
    """The plain collector is set and reset in each forward."""
    return "output_capturing" in source


@contextlib.contextmanager
def compatible(module: nn.Module) -> Iterator[None]:
    """Does nothing where transformers is not imported. Hooks that it installs go with ``hap.trace.fakes.preserved``."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    modeling = sys.modules.get("transformers.modeling_utils")
    if capturing is None or modeling is None:
        yield
        return
    losses = sys.modules.get("transformers.loss.loss_utils")
    with contextlib.ExitStack() as stack:
        if losses is not None and "ForCTC" in losses.LOSS_MAPPING:
            stack.enter_context(patch.dict(losses.LOSS_MAPPING, {"ForCTC": _ctc_loss}))
        stack.enter_context(patch.object(capturing, "_active_collector", _Collector()))
        for part in module.modules():
            if isinstance(part, modeling.PreTrainedModel):
                # The model does this itself at its first call.
                capturing.maybe_install_capturing_hooks(part)
            if getattr(getattr(part, "config", None), "use_cache", None) is True:
                stack.enter_context(patch.object(part.config, "use_cache", False))
            if part.__dict__.get("_requires_grad") is True:
                # Some encoders then set requires_grad of their hidden states.
                stack.enter_context(patch.dict(part.__dict__, {"_requires_grad": False}))
        yield

"""PyTorch's functions that are replaced by operators of :mod:`hap.operators` while tracing."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hap.operators  # noqa: F401  defines torch.ops.hap
from hap.trace import equivalents, recurrent
from hap.trace.ctc import ctc_loss
from hap.trace.losses import adaptive_log_softmax, gaussian_nll_loss, multilabel_margin_loss

# Tells the forward and its backward apart from others until the clean-up numbers them in the order of the graph.
_indices = itertools.count(1)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As PyTorch's function of this name; the clean-up puts in the state of the random numbers."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    # PyTorch's operator is on autocast's list of operators that run in half precision; hap's is not.
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (x.to(dtype) if x.is_floating_point() else x for x in (query, key, value))
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, query.dtype):
        attn_mask = attn_mask.to(query.dtype)
    out: Tensor = torch.ops.hap.sdpa(
        query, key, value, attn_mask, None, dropout_p, is_causal, scale, enable_gqa, next(_indices)
    )[0]
    return out


REPLACEMENTS = {
    F.scaled_dot_product_attention: scaled_dot_product_attention,
    F.multilabel_margin_loss: multilabel_margin_loss,
    **recurrent.REPLACEMENTS,
    **equivalents.REPLACEMENTS,
}


def replace_targets(captured: torch.fx.GraphModule) -> None:
    """Replaces the targets in the graph and in the graphs inside it (bodies of checkpoints)."""
    for part in captured.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                if node.op == "call_function" and node.target in REPLACEMENTS:
                    node.target = REPLACEMENTS[node.target]
            part.recompile()


@contextlib.contextmanager
def replaced_for_capture() -> Iterator[None]:
    """While Dynamo captures: functions that look at values, or make shapes of them, which it cannot follow."""
    with (
        patch.object(torch, "ctc_loss", ctc_loss),
        patch.object(F, "gaussian_nll_loss", gaussian_nll_loss),
        patch.object(nn.AdaptiveLogSoftmaxWithLoss, "forward", adaptive_log_softmax),
    ):
        yield


@contextlib.contextmanager
def replaced() -> Iterator[None]:
    """During the joint export: inside functions that Dynamo leaves whole, as ``F.multi_head_attention_forward``."""
    with replaced_for_capture(), patch.object(F, "scaled_dot_product_attention", scaled_dot_product_attention):
        yield

"""Recurrent layers of ``torch.nn``, which look whether their weights are still those that they have listed."""

from __future__ import annotations

import weakref

from torch import nn


def prepare(module: nn.Module) -> None:
    """Lists the fakes that stand for the weights. What is changed goes with ``hap.trace.fakes.preserved``."""
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            weights = [getattr(part, name, None) for name in part._flat_weights_names]
            part._flat_weights = weights
            part._flat_weight_refs = [None if one is None else weakref.ref(one) for one in weights]

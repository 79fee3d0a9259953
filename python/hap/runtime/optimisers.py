"""Refuses optimisers that would compute something else on a shard of a parameter than on the whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hap.errors import HapError

NOT_ELEMENTWISE = frozenset({
    "Adafactor", "DistributedShampoo", "LAMB", "LARS", "LBFGS", "Lamb", "Lars", "Muon", "SOAP", "Shampoo",
})  # fmt: skip
"""Names of classes whose step depends on a whole parameter, or on all of them: norms, factors, inner products."""

_MARK = "_hap_shard"
_registered = False


def mark_shard(parameter: nn.Parameter, name: str) -> None:
    """Note that a parameter is a shard; from now on :data:`NOT_ELEMENTWISE` optimisers refuse it.

    An attribute of the parameter: a weak reference to it would be in the way of ``torch.utils.swap_tensors``.
    """
    global _registered
    setattr(parameter, _MARK, name)
    if not _registered:
        register_optimizer_step_pre_hook(_check_optimiser)
        _registered = True


def is_shard(parameter: torch.Tensor) -> bool:
    """Whether a parameter has been marked."""
    return hasattr(parameter, _MARK)


def _check_optimiser(optimiser: torch.optim.Optimizer, *_: Any) -> None:
    """Before each step of any optimiser.

    Raises:
        HapError: it is not element-wise and holds a shard.
    """
    refused = next((kind.__name__ for kind in type(optimiser).__mro__ if kind.__name__ in NOT_ELEMENTWISE), None)
    if refused is None:
        return
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            name = getattr(parameter, _MARK, None)
            if name is not None:
                raise HapError(
                    f'{refused} does not work element by element, but "{name}" is split over the devices: its step '
                    "would differ from one device's. Take an element-wise optimiser (SGD, Adam, AdamW, RMSprop, ...)."
                )

"""Which device a rank computes on."""

from __future__ import annotations

import os

import torch
from torch import nn


def device_of(module: nn.Module) -> torch.device:
    """Where a module computes: where its first parameter or buffer is, or the CPU without any.

    Modules on the meta device compute on the accelerator of this rank on its host, where there is one.
    """
    tensors = [*module.parameters(), *module.buffers()]
    device = next((tensor.device for tensor in tensors if not tensor.is_meta), None)
    if device is None and tensors:
        device = own_accelerator()
    return device or torch.device("cpu")


def own_accelerator() -> torch.device | None:
    """The accelerator of this rank on its host, ``None`` without one: that of ``LOCAL_RANK``.

    Where ranks share accelerators, and there is none of that number, it is the current one (``torch.cuda.set_device``).
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return None
    number = int(os.environ.get("LOCAL_RANK", "0"))
    if number >= torch.accelerator.device_count():
        number = torch.accelerator.current_device_index()
    return torch.device(accelerator.type, number)

"""Inputs that are this rank's share of a global batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class LocalInput:
    """A tensor whose first dimension is this rank's share of the batch, in the order of the ranks; may be empty.

    What ``model.local_inputs`` and :meth:`hap.DistributedSampler.collate` return. It goes into the model as a tensor
    would; for anything else take :attr:`tensor`.
    """

    tensor: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        """Shape of the share."""
        return self.tensor.shape

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self.tensor.dtype

    @property
    def device(self) -> torch.device:
        """Where the share is."""
        return self.tensor.device

    def to(self, *args: Any, **kwargs: Any) -> LocalInput:
        """As :meth:`torch.Tensor.to`."""
        return LocalInput(self.tensor.to(*args, **kwargs))

    def pin_memory(self) -> LocalInput:
        """As :meth:`torch.Tensor.pin_memory`; called by ``DataLoader(pin_memory=True)``."""
        return LocalInput(self.tensor.pin_memory())

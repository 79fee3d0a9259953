"""Inputs that are this rank's share of a global batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hap.runtime.along import Along
from hap.runtime.placing import Layout
from hap.trace.inputs import map_inputs


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


def marked(value: Any, mark: Callable[[torch.Tensor], LocalInput] = LocalInput) -> Any:
    """A tensor, or those in containers at any depth, as shares; what is one already, and constants, stay.

    Raises:
        TraceError: there is an object that hap cannot open, which may hold tensors.
    """
    ((made,), _) = map_inputs(
        lambda one: mark(one) if isinstance(one, torch.Tensor) else one, (value,), None, also=(LocalInput,)
    )
    return made


def share_layout(shape: tuple[int, ...], units: tuple[int, ...]) -> Layout:
    """How a global batch lies when each rank brings some samples."""
    return Layout(shape, tuple((count, *shape[1:]) for count in units), Along(0, ((1, 1),), units))

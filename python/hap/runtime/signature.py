"""What kind of call a call is: all that its trace depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from hap.errors import HapError
from hap.runtime.local_inputs import LocalInput
from hap.trace.inputs import flatten_inputs, map_inputs

_FLAT = (torch.Tensor, LocalInput, bool, int, float, str, type(None))
WHOLE = -1
"""In the place of a number of samples: the call's inputs are global."""


class Call:
    """A call of the module, flattened.

    Attributes:
        args, kwargs: as the user passed them.
        tensors: by path (``args.0``, ``kwargs.labels``); of shares, the share.
        local: paths of the tensors that are shares.
        samples: samples in this rank's share; ``WHOLE`` where no input is one.
        key: hashable; equal on all ranks, and for calls that share a trace, but for the numbers of samples in shares.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device) -> None:
        self.args = tuple(args)
        self.kwargs = dict(kwargs)
        self.tensors: dict[str, torch.Tensor] = {}
        self.local: list[str] = []
        self.samples = WHOLE
        key: list[Any] = []
        for name, value in _named(self.args, self.kwargs):
            if isinstance(value, LocalInput):
                self._add_share(name, value.tensor)
                value = value.tensor
                shape: tuple[Any, ...] = ("share", *value.shape[1:])
            elif isinstance(value, torch.Tensor):
                shape = tuple(value.shape)
            else:
                key.append((name, repr(value)))
                continue
            if value.device != device:
                raise HapError(f'"{name}" is on {value.device}, but the module is on {device}: move it there')
            self.tensors[name] = value
            key.append((name, shape, str(value.dtype), value.requires_grad))
        autocast = torch.is_autocast_enabled(device.type)
        self.key: tuple[Any, ...] = (
            tuple(key),
            torch.is_grad_enabled(),
            str(torch.get_autocast_dtype(device.type)) if autocast else None,
        )

    def _add_share(self, name: str, share: torch.Tensor) -> None:
        if not share.dim():
            raise HapError(f'"{name}" is marked as a share of the batch, but has no dimensions')
        if share.requires_grad:
            raise HapError(f'"{name}" is marked as a share of the batch and requires a gradient: pass the global batch')
        if self.samples not in (WHOLE, share.shape[0]):
            raise HapError(
                f'"{name}" holds {share.shape[0]} samples of the batch, but "{self.local[0]}" holds {self.samples}: '
                "shares of one call must have the same first dimension"
            )
        self.samples = share.shape[0]
        self.local.append(name)

    def whole_key(self, total: int) -> tuple[Any, ...]:
        """The key of the same call with global inputs of ``total`` samples."""
        if not self.local:
            return self.key
        entries = tuple(
            (entry[0], (total, *entry[1][1:]), *entry[2:]) if len(entry) > 2 and entry[1][:1] == ("share",) else entry
            for entry in self.key[0]
        )
        return (entries, *self.key[1:])

    def whole_inputs(self, total: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments for a trace: in the place of shares, tensors of the global shape without defined values."""

        def whole(value: Any) -> Any:
            if isinstance(value, LocalInput):
                return value.tensor.new_empty((total, *value.tensor.shape[1:]))
            return value

        return map_inputs(whole, self.args, self.kwargs, also=(LocalInput,))

    def description(self) -> dict[str, str]:
        """The key in words, to tell the ranks' calls apart."""
        inputs, gradients, autocast = self.key
        words = {f'the input "{entry[0]}"': " ".join(str(part) for part in entry[1:3]) for entry in inputs}
        return {
            "the inputs": ", ".join(entry[0] for entry in inputs),
            **words,
            "whether gradients are recorded": str(gradients),
            "autocast": str(autocast),
        }


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Flat inputs by name."""
    if all(isinstance(value, _FLAT) for value in (*args, *kwargs.values())):
        # As below, in a tenth of its time.
        named = {f"args.{position}": value for position, value in enumerate(args)}
        named.update((f"kwargs.{name}", value) for name, value in kwargs.items())
        return named.items()
    flat, names, _ = flatten_inputs(args, kwargs, also=(LocalInput,))
    return zip(names, flat, strict=True)

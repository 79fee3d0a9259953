"""A copy of a module without data, kept for tracing it again once its parameters have become shards."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from hap.errors import HapError


def detached(module: nn.Module) -> dict[int, Any]:
    """For ``copy.deepcopy``: plain tensor attributes that are results of a graph, which it refuses, by ``id``."""
    return {
        id(value): value.detach().clone()
        for part in module.modules()
        for value in vars(part).values()
        if isinstance(value, torch.Tensor) and not value.is_leaf
    }


class Twin:
    """The module as it was, with its parameters and buffers on the meta device.

    Training flags and ``requires_grad`` follow the original's; other attributes are those that it had when it was
    copied.
    """

    def __init__(self, original: nn.Module) -> None:
        self.original = original
        memo = detached(original)
        for parameter in original.parameters():
            like = torch.empty_like(parameter, device="meta")
            memo[id(parameter)] = nn.Parameter(like, requires_grad=parameter.requires_grad)
        for buffer in original.buffers():
            memo[id(buffer)] = torch.empty_like(buffer, device="meta")
        try:
            self.module = copy.deepcopy(original, memo)
        except Exception as error:
            raise HapError(
                f"the module cannot be copied ({type(error).__name__}: {error}), which hap needs to trace it: "
                "keep what cannot be copied (open files, locks, process groups) out of the module"
            ) from error
        self._pairs = [(mine, part) for mine, part in zip(self.module.modules(), original.modules(), strict=True)]

    def flags(self) -> Iterator[bool]:
        """Training flags and ``requires_grad`` of the original: what a trace depends on beside the inputs."""
        for _, part in self._pairs:
            yield part.training
            for parameter in part._parameters.values():
                if parameter is not None:
                    yield parameter.requires_grad

    def names(self) -> Iterator[str]:
        """What each of :meth:`flags` is."""
        for path, part in self.original.named_modules():
            yield f'training of "{path}"' if path else "training of the module"
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    yield f'requires_grad of "{path}{path and "."}{name}"'

    def refresh(self) -> nn.Module:
        """The twin with the original's flags as they are now."""
        for mine, part in self._pairs:
            mine.training = part.training
            for name, parameter in part._parameters.items():
                copied = mine._parameters.get(name)
                if parameter is not None and copied is not None:
                    copied.requires_grad_(parameter.requires_grad)
        return self.module

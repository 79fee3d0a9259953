"""Parameters and buffers that are different views of the same memory."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from hap.errors import TraceError
from hap.trace.writes import memory


def check_apart(module: nn.Module) -> None:
    """Refuses two registered tensors with an element in common: a change of one would not reach the other.

    One tensor under several names is tied, and may be. So may be frozen parameters, which never change.

    Raises:
        TraceError: names the two.
    """
    stored: dict[int, list[tuple[str, Tensor]]] = {}
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        # What is no dense array is refused with its reason later.
        if not (tensor.is_nested or nn.parameter.is_lazy(tensor)) and (at := memory(tensor)) is not None:
            stored.setdefault(at, []).append((name, tensor))
    for sharing in stored.values():
        for (one_name, one), (other_name, other) in itertools.combinations(sharing, 2):
            if (_may_change(one) or _may_change(other)) and _overlap(one, other):
                raise TraceError(
                    f'"{one_name}" and "{other_name}" are views of the same memory, of which hap would train separate '
                    f'copies: register one tensor under both names, or make "{other_name}" in the forward from '
                    f'"{one_name}", or `.clone()` it'
                )


def _may_change(tensor: Tensor) -> bool:
    return tensor.requires_grad or not isinstance(tensor, nn.Parameter)


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one storage have a byte in common."""
    (first, end), (other_first, other_end) = _bytes(one), _bytes(other)
    if end <= other_first or other_end <= first:
        return False
    # Their ranges cross, as those of the columns of a matrix do, which have nothing in common.
    return bool(torch.isin(_places(one), _places(other)).any()) if one.itemsize == other.itemsize else True


def _bytes(tensor: Tensor) -> tuple[int, int]:
    """The range of memory, from the start of the storage."""
    first = int(tensor.storage_offset())
    last = first + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first * tensor.itemsize, (last + 1) * tensor.itemsize if tensor.numel() else first * tensor.itemsize


def _places(tensor: Tensor) -> Tensor:
    """The number in the storage of each element."""
    places = torch.tensor(tensor.storage_offset())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return places.flatten()

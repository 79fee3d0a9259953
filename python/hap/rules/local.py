"""What one rank executes for one operator under one choice, as plain data, and the few helpers that it calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of a :class:`LocalCode`: an operand, or, beyond the operands, a value made by its calls, in order."""

    index: int


@dataclass(frozen=True, slots=True)
class LocalCall:
    """One call.

    Attributes:
        target: what is called.
        args, kwargs: its arguments, with :class:`Value` (also inside lists) for tensors.
        results: the values that it makes.
        sequence: whether it returns them as a tuple or list (else there is one result, returned bare).
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    results: tuple[Value, ...] = ()
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class LocalCode:
    """Calls in order, and the value of each result of the operator that exists."""

    calls: tuple[LocalCall, ...]
    results: tuple[Value, ...]


def run(code: LocalCode, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Executes local code on this rank's operands, one by one."""
    values: dict[Value, Any] = {Value(i): tensor for i, tensor in enumerate(operands)}
    for call in code.calls:
        made = call.target(*replace_values(call.args, values), **replace_values(call.kwargs, values))
        values.update(zip(call.results, made if call.sequence else (made,), strict=True))
    return [values[value] for value in code.results]


def replace_values(argument: Any, values: dict[Value, Any]) -> Any:
    """An argument with what stands for each :class:`Value` in its place, also inside lists, tuples and dicts."""
    if isinstance(argument, Value):
        return values[argument]
    if isinstance(argument, (list, tuple)):
        return type(argument)(replace_values(item, values) for item in argument)
    if isinstance(argument, dict):
        return {name: replace_values(item, values) for name, item in argument.items()}
    return argument


def narrow_axis(
    whole: torch.Tensor, sizes: Sequence[int], dim: int, start: int, length: int, shape: Sequence[int]
) -> torch.Tensor:
    """A rank's share of a whole tensor: viewed as ``sizes``, narrowed along ``dim``, given its local ``shape``."""
    return whole.reshape(list(sizes)).narrow(dim, start, length).reshape(list(shape))

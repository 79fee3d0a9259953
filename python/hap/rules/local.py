"""What one rank executes for one operator under one choice, as plain data, and the few helpers that it calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of a :class:`LocalCode`: an operand, or, beyond the operands, a value made by its calls, in order."""

    index: int


class Collective(ABC):
    """Stands for a function in :class:`LocalCall`: takes one tensor on every rank, and needs those of all ranks.

    Every rank calls it, also one without a share. The runtime carries it out by :mod:`hap.runtime.collectives`.
    """

    __slots__ = ()

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Not a function of one rank's tensor."""
        raise AssertionError(f"{self} needs the tensors of all ranks")

    @abstractmethod
    def exchange(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What it means: each rank's result, from each rank's tensor."""


@dataclass(frozen=True, slots=True)
class AllReduce(Collective):
    """Every rank gets the sum, or element by element the largest, of all ranks' tensors of equal shape."""

    op: Literal["sum", "max"] = "sum"

    def exchange(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See :class:`Collective`."""
        every = torch.stack(list(tensors))
        total = every.sum(0, dtype=every.dtype) if self.op == "sum" else every.amax(0)
        return [total.clone() for _ in tensors]


@dataclass(frozen=True, slots=True)
class Stack(Collective):
    """Every rank gets all ranks' tensors of equal shape, as rows ``[ranks, ...]``."""

    def exchange(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See :class:`Collective`."""
        return [torch.stack(list(tensors)) for _ in tensors]


@dataclass(frozen=True, slots=True)
class AllGather(Collective):
    """Every rank gets all ranks' tensors one after another along ``dim``.

    Attributes:
        shape: of the result.
        dim: counted from the left.
        lengths: of each rank's tensor along ``dim``; some may be 0.
    """

    shape: tuple[int, ...]
    dim: int
    lengths: tuple[int, ...]

    def exchange(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See :class:`Collective`."""
        assert tuple(tensor.shape[self.dim] for tensor in tensors) == self.lengths
        whole = torch.cat(list(tensors), self.dim)
        assert tuple(whole.shape) == self.shape
        return [whole.clone() for _ in tensors]


@dataclass(frozen=True, slots=True)
class Shift(Collective):
    """Every rank gets the tensor of the rank before it, of this shape; the first gets the last one's."""

    shape: tuple[int, ...]

    def exchange(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See :class:`Collective`."""
        return [tensor.clone() for tensor in (tensors[-1], *tensors[:-1])]


@dataclass(frozen=True, slots=True)
class LocalCall:
    """One call.

    Attributes:
        target: what is called; a :class:`Collective` with one tensor for its arguments, or a function.
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


@dataclass(slots=True)
class Writer:
    """Local code while it is written; ``values`` counts the operands first, then what the calls make."""

    values: int
    calls: list[LocalCall] = field(default_factory=list)

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Value:
        """Adds a call that returns one tensor."""
        return self.add(target, args, kwargs, 1, False)[0]

    def add(
        self, target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], count: int, sequence: bool
    ) -> list[Value]:
        """Adds a call that returns ``count`` tensors (``sequence``: in a tuple or list)."""
        made = [Value(self.values + i) for i in range(count)]
        self.values += count
        self.calls.append(LocalCall(target, tuple(args), kwargs, tuple(made), sequence))
        return made

    def finish(self, *results: Value) -> LocalCode:
        """The code, with the values of the results that exist."""
        return LocalCode(tuple(self.calls), results)


def run(codes: Sequence[LocalCode], operands: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Executes the local code of all ranks on their operands, in lock-step; the results by rank."""
    ranks = [_execute(code, own) for code, own in zip(codes, operands, strict=True)]
    answers: list[Any] = [None] * len(ranks)
    while True:
        waiting: list[tuple[Collective, torch.Tensor]] = []
        results = []
        for rank, answer in zip(ranks, answers, strict=True):
            try:
                waiting.append(rank.send(answer))
            except StopIteration as stop:
                results.append(stop.value)
        if results:
            assert not waiting, f"{len(results)} ranks have ended while {len(waiting)} wait in a collective"
            return results
        kinds = {type(collective).__name__ for collective, _ in waiting}
        assert len(kinds) == 1, f"ranks stand in different collectives: {sorted(kinds)}"
        # Ranks may differ in what they expect (a shift's shape), not in what they give.
        answers = waiting[0][0].exchange([tensor for _, tensor in waiting])
        for (collective, _), made in zip(waiting, answers, strict=True):
            shape = collective.shape if isinstance(collective, (AllGather, Shift)) else made.shape
            assert tuple(made.shape) == tuple(shape), f"{collective} brings a tensor of shape {tuple(made.shape)}"


def _execute(
    code: LocalCode, operands: Sequence[torch.Tensor]
) -> Generator[tuple[Collective, torch.Tensor], Any, list[torch.Tensor]]:
    """One rank's calls; yields each collective with its tensor, and is sent its result."""
    values: dict[Value, Any] = {Value(i): tensor for i, tensor in enumerate(operands)}
    for call in code.calls:
        args, kwargs = replace_values(call.args, values), replace_values(call.kwargs, values)
        if isinstance(call.target, Collective):
            made = yield call.target, args[0]
        else:
            made = call.target(*args, **kwargs)
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

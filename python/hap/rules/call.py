"""One call of an operator with its arguments by name, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch

from hap.graph import Graph, Operator, Ref, Tensor, references

Shape = tuple[int, ...]


def broadcast(*shapes: Shape) -> Shape:
    """The shape that shapes broadcast to."""
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Signature:
    """An overload's schema, as plain data.

    Attributes:
        names: all arguments, in order.
        defaults: by name, where there is one (``None`` otherwise).
        keyword_only: names that must be passed by keyword.
        tensors: names of the arguments that are a tensor, an optional tensor or a list of tensors.
        listed: whether one of them is a list, or the result is.
        sequence: whether a call returns a tuple or a list of tensors, not one tensor.
    """

    names: tuple[str, ...]
    defaults: Mapping[str, Any]
    keyword_only: frozenset[str]
    tensors: tuple[str, ...]
    listed: bool
    sequence: bool


@cache
def signature(target: torch._ops.OpOverload) -> Signature:
    """The schema of an overload."""
    schema = target._schema
    kinds = {a.name: str(a.type) for a in schema.arguments}
    returns = [str(r.type) for r in schema.returns]
    return Signature(
        names=tuple(kinds),
        defaults={a.name: a.default_value if a.has_default_value() else None for a in schema.arguments},
        keyword_only=frozenset(a.name for a in schema.arguments if a.kwarg_only),
        tensors=tuple(name for name, kind in kinds.items() if "Tensor" in kind),
        listed=any("List" in kind and "Tensor" in kind for kind in kinds.values()),
        sequence=len(returns) != 1 or "List" in returns[0],
    )


@cache
def size_arguments(target: torch._ops.OpOverload) -> tuple[str, ...]:
    """The arguments that may depend on the sizes of tensors: those of type ``SymInt``, or lists of it."""

    def depends(kind: Any) -> bool:
        while kind.kind() in ("ListType", "OptionalType"):
            kind = kind.getElementType()
        return bool(kind.kind() == "SymIntType")

    return tuple(argument.name for argument in target._schema.arguments if depends(argument.real_type))


@dataclass(frozen=True, slots=True)
class Call:
    """An operator of the graph with its arguments by name.

    Attributes:
        operands: the tensors read, in the order of the schema.
        names: the argument that each of them stands in.
        order: for each of :attr:`Operator.operands`, its place in ``operands``.
        results: the tensors written, ``None`` where one does not exist.
    """

    operator: Operator
    signature: Signature
    arguments: Mapping[str, Any]
    operands: tuple[Tensor, ...]
    names: tuple[str, ...]
    order: tuple[int, ...]
    results: tuple[Tensor | None, ...]

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def shape(self, operand: int = 0) -> Shape:
        """Shape of an operand, in the order of the schema."""
        return self.operands[operand].shape

    def shape_of(self, name: str) -> Shape:
        """Shape of the tensor in an argument."""
        return self.operands[self.names.index(name)].shape

    def has(self, name: str) -> bool:
        """Whether a tensor is passed for an argument."""
        return name in self.names

    def result_shape(self, result: int = 0) -> Shape:
        """Shape of a result that exists."""
        tensor = self.results[result]
        assert tensor is not None, f"result {result} of {self.operator.name} does not exist"
        return tensor.shape

    @property
    def first_result(self) -> Tensor | None:
        """The first result that exists."""
        return next((tensor for tensor in self.results if tensor is not None), None)

    def dim(self, name: str = "dim", rank: int | None = None) -> int:
        """A dimension in an argument, counted from the left of ``rank`` (default: of the first operand)."""
        rank = len(self.shape()) if rank is None else rank
        return int(self.arguments[name]) % max(rank, 1)

    def dims(self, name: str = "dim") -> list[int]:
        """Dimensions of the first operand in an argument; all where it is empty or ``None``."""
        rank = len(self.shape())
        given = self.arguments[name]
        if given is None or (isinstance(given, (list, tuple)) and not given):
            return list(range(rank))
        return sorted(d % max(rank, 1) for d in (given if isinstance(given, (list, tuple)) else [given]))


def bind_arguments(graph: Graph, operator: Operator) -> Call:
    """The arguments of an operator by name, defaults filled in."""
    sig = signature(operator.target)
    arguments: dict[str, Any] = dict(sig.defaults)
    arguments.update(zip(sig.names, operator.args, strict=False))
    arguments.update(operator.kwargs)
    found = [(name, ref.tensor) for name in sig.tensors for ref in references(arguments[name])]
    given = list(zip(sig.names, operator.args, strict=False)) + list(operator.kwargs.items())
    names_given = [name for name, value in given for _ in references(value)]
    if names_given == [name for name, _ in found]:
        order = tuple(range(len(found)))
    else:  # keyword arguments in another order than the schema's
        places: dict[str, list[int]] = {}
        for place, (name, _) in enumerate(found):
            places.setdefault(name, []).append(place)
        order = tuple(places[name].pop(0) for name in names_given)
    return Call(
        operator=operator,
        signature=sig,
        arguments=arguments,
        operands=tuple(graph.tensors[t] for _, t in found),
        names=tuple(name for name, _ in found),
        order=order,
        results=tuple(None if t is None else graph.tensors[t] for t in operator.results),
    )


def is_tensor(value: Any) -> bool:
    """Whether an argument of a traced call is a tensor."""
    return isinstance(value, Ref)


class Inner(Protocol):
    """Gives the sizes of inner parts that two dimensions may share (:func:`hap.rules.axes.inner_products`).

    Each side is ``("operand" | "result", index)``; ``small`` is a stretch of ``large`` along ``dim``.
    """

    def __call__(self, small: tuple[str, int], large: tuple[str, int], dim: int) -> list[int]:
        """The sizes, ascending, 1 first."""


class Local(Protocol):
    """What one rank holds under one choice, for making arguments local."""

    def size(self, letter: str) -> int:
        """Units of a letter on this rank."""

    def whole(self, letter: str) -> int:
        """Units of a letter on one device."""

    def result(self, index: int) -> Shape:
        """Shape of a result on this rank."""

    def operand(self, index: int) -> Shape:
        """Shape of one of :attr:`Operator.operands` on this rank."""

    def stretch(self, letter: str) -> list[int] | None:
        """This rank's share of a letter (:data:`hap.operators.stretch.Stretch`); ``None`` where it has all of it."""

    def window(self, letters: Sequence[str]) -> dict[str, Any]:
        """The arguments ``sizes``, ``starts``, ``lengths`` of this rank's part of a tensor with these dimensions.

        See :mod:`hap.operators.random`; empty where the part is the whole.
        """


Lowered = tuple[Callable[..., Any], dict[str, Any]]
"""The callable of a local call, and the arguments that differ from the traced ones, by name."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What hap knows of an operator.

    Attributes:
        line: the line of notation, or a function that writes it for a call (``None``: the rule does not hold for this
            call). With ``soft`` the function also takes :class:`Inner` and may return sizes of letters beside the line.
        runs: lengths of runs that ranks do not give.
        soft: a link of slice, split or cat: made after all others, refines only the larger side.
        layout: its results are views of its first operand; it costs nothing.
        whole: a generator whose values depend on their position: made whole, then narrowed.
        lower: another callable, or other arguments, for one rank.
        contiguous: the kernel takes its operands for contiguous, or refuses others; its callers see to it.
        sums: whether ``lower`` is right also where a rank has no one stretch of a dimension, which is a sum.
        touched: bytes touched of each operand and of each result, where that is less than all of them.
        outermost: letters may be shared along their outermost axis only.
        flops: floating-point operations of a call, as PyTorch's formulas take it; default: PyTorch's own.
    """

    line: str | Callable[..., Any]
    runs: Callable[[Call], dict[str, int] | None] | None = None
    soft: bool = False
    layout: bool = False
    whole: bool = False
    lower: Callable[[Call, Local], Lowered] | None = None
    contiguous: bool = False
    sums: bool = False
    touched: Callable[[Call], tuple[list[float], list[float]]] | None = None
    outermost: bool = False
    flops: Callable[..., float] | None = None


Table = dict[str, Rule]
"""The rules of a family by overload, ``aten.mm.default``."""

"""Chains of operators that have a better way together, in whatever holds a graph: as traced, or as one rank runs it.

The passes over lowered graphs (:mod:`hap.runtime.passes`) put the better way in their place, and the prediction of
memory (:mod:`hap.rules.reuse`) counts what is not made then. Both look for them here, and say how to look up a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

aten = torch.ops.aten

# Where rounding between the steps of a chain would show, it is left as it is.
_WIDE = (torch.float32, torch.float64)


class Known(NamedTuple):
    """A tensor's shape and element type."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Call(NamedTuple):
    """The arguments that an operator is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Values(Protocol):
    """What is known of the values of a graph, as they stand among the arguments of calls."""

    def call(self, value: object, target: torch._ops.OpOverload) -> Call | None:
        """The call of ``target`` that makes a value; ``None`` where something else does."""

    def known(self, value: object) -> Known | None:
        """What a value is, as far as that is known; ``None`` for what is no tensor."""

    def readers(self, value: Any) -> int:
        """How many read a value that is made in the graph."""


@dataclass(frozen=True, slots=True)
class Entries:
    """``zeros.scatter(dim, labels, factor) * weights``: one entry at each label.

    Attributes:
        labels: one along ``dim``.
        factor: of all weights.
        weights: of the shape of ``labels``, or one for all.
        chain: product, scattered and zeros.
    """

    labels: Any
    factor: float
    weights: Any
    chain: tuple[Any, Any, Any]


def entries(values: Values, given: Any, dim: int, result: Known) -> Entries | None:
    """The entries that a value is made of, where it is read once, and is of this shape and element type."""
    product = values.call(given, aten.mul.Tensor)
    if product is None or result.dtype not in _WIDE or values.known(given) != result or values.readers(given) != 1:
        return None
    axis = dim % len(result.shape)
    one_each = (*result.shape[:axis], 1, *result.shape[axis + 1 :])
    for scattered, weights in (product.args, product.args[::-1]):
        scatter = values.call(scattered, aten.scatter.value)
        if scatter is None or scatter.kwargs or values.readers(scattered) != 1:
            continue
        zeros, along, labels, factor = scatter.args
        full = values.call(zeros, aten.full.default)
        if full is None or full.args[1:] != (0,) or along % len(result.shape) != axis:
            continue
        rows, weight = values.known(labels), values.known(weights)
        if rows is None or weight is None or weight.dtype != result.dtype:
            continue
        if rows.shape == one_each and weight.shape in (one_each, ()):
            return Entries(labels, factor, weights, (given, scattered, zeros))
    return None


class Rows(NamedTuple):
    """The gradient of an embedding, added to a table; ``place`` is the table's among the operands of the sum."""

    table: Any
    gradient: Any
    place: int
    call: Call


def added_rows(values: Values, operands: Sequence[Any], result: Known) -> Iterator[Rows]:
    """How a sum of this shape and element type adds rows of a gradient that it alone reads, not divided by counts."""
    for place, (table, gradient) in enumerate((operands, operands[::-1])):
        call = values.call(gradient, aten.embedding_dense_backward.default)
        if call is not None and values.readers(gradient) == 1 and not call.args[4] and values.known(table) == result:
            yield Rows(table, gradient, place, call)

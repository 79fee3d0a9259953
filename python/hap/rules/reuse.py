"""Whose memory operators may write their results to, and which results are never made: for the prediction of memory.

The passes over lowered graphs (:mod:`hap.runtime.passes`) do so where nothing reads that memory any more, which depends
on the program: the core finds that out. Here is what they match in the graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from hap.graph import Graph, Operator, Ref
from hap.operators.memory import CHANGING, is_opaque, shows_all, writing

aten = torch.ops.aten

_WIDE = (torch.float32, torch.float64)


@dataclass(slots=True)
class Reuse:
    """Of the operators of a graph, by index.

    Attributes:
        reuses: the operand, among :attr:`hap.graph.Operator.operands`, whose memory the result may be written to.
        fused: those whose result is not made, where the operator at the end of its readers writes to an operand.
        opaque: those that may keep or return what they are given: memory that they have had is never written to.
        partial: views that leave out elements of what they view, or show one at several places.
    """

    reuses: dict[int, int] = field(default_factory=dict)
    fused: set[int] = field(default_factory=set)
    opaque: set[int] = field(default_factory=set)
    partial: set[int] = field(default_factory=set)


class _Values:
    """Who makes and who reads the tensors of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.maker: dict[int, int] = {}
        self.readers: dict[int, int] = defaultdict(int)
        for index, operator in enumerate(graph.operators):
            self.maker |= {tensor: index for tensor in operator.results if tensor is not None}
            for tensor in set(operator.operands):
                self.readers[tensor] += 1
        for output in graph.outputs:
            if output.tensor is not None:
                self.readers[output.tensor] += 1

    def made_by(self, argument: object, target: torch._ops.OpOverload) -> tuple[int, Operator] | None:
        """The call of ``target`` that makes an argument."""
        index = self.maker.get(argument.tensor) if isinstance(argument, Ref) else None
        if index is None or self.graph.operators[index].target != target:
            return None
        return index, self.graph.operators[index]

    def alike(self, *arguments: object) -> bool:
        """Whether all are tensors of one shape and element type."""
        tensors = [self.graph.tensors[one.tensor] for one in arguments if isinstance(one, Ref)]
        return len(tensors) == len(arguments) and len({(one.shape, one.dtype) for one in tensors}) == 1


def find_reuse(graph: Graph) -> Reuse:
    """What the passes match in a graph."""
    found, values = Reuse(), _Values(graph)
    for index, operator in enumerate(graph.operators):
        if is_opaque(operator.target):
            found.opaque.add(index)
        elif any(result.alias_info is not None for result in operator.target._schema.returns):
            if not shows_all(operator.target):
                found.partial.add(index)
        elif operator.target == aten._log_softmax_backward_data.default:
            chain = list(_entries(values, operator))
            found.fused.update(chain)
            if chain:
                found.reuses[index] = 1
        elif rows := _rows(values, operator):
            embedding, found.reuses[index] = rows
            found.fused.add(embedding)
        elif _in_place(values, operator):
            found.reuses[index] = 0
    return found


def _in_place(values: _Values, operator: Operator) -> bool:
    """As :mod:`hap.runtime.passes.in_place` has it."""
    first = operator.args[0] if operator.args else None
    if operator.target in CHANGING:
        return values.made_by(first, aten.full.default) is not None
    (result, *others) = operator.results
    return (
        not others and result is not None and values.alike(first, Ref(result)) and writing(operator.target) is not None
    )


def _entries(values: _Values, operator: Operator) -> Iterator[int]:
    """As :mod:`hap.runtime.passes.cross_entropy` has it: what is fused into the gradient of a log-softmax."""
    given, logs, dim, _ = operator.args
    (result,) = operator.results
    product = values.made_by(given, aten.mul.Tensor)
    if result is None or product is None or not values.alike(given, logs, Ref(result)):
        return
    shape, dtype = values.graph.tensors[result].shape, values.graph.tensors[result].dtype
    axis = dim % len(shape)
    one_each = (*shape[:axis], 1, *shape[axis + 1 :])
    if dtype not in _WIDE or values.readers[given.tensor] != 1:
        return
    for scattered, weights in (product[1].args, product[1].args[::-1]):
        scatter = values.made_by(scattered, aten.scatter.value)
        if scatter is None or scatter[1].kwargs or values.readers[scattered.tensor] != 1:
            continue
        zeros, along, labels, _ = scatter[1].args
        full = values.made_by(zeros, aten.full.default)
        if full is None or full[1].args[1] != 0 or along % len(shape) != axis or not isinstance(weights, Ref):
            continue
        weight = values.graph.tensors[weights.tensor]
        if values.graph.tensors[labels.tensor].shape == one_each and weight.dtype == dtype:
            if weight.shape in (one_each, ()):
                yield from (full[0],) if values.readers[zeros.tensor] == 1 else ()
                yield from (scatter[0], product[0])
            return


def _rows(values: _Values, operator: Operator) -> tuple[int, int] | None:
    """As :mod:`hap.runtime.passes.rows` has it: the gradient of an embedding, and the operand that it is added to."""
    if operator.target != aten.add.Tensor or operator.kwargs or len(set(operator.operands)) != 2:
        return None
    for place in (0, 1):
        table, gradient = operator.args[place], operator.args[1 - place]
        embedding = values.made_by(gradient, aten.embedding_dense_backward.default)
        if embedding is None or values.readers[gradient.tensor] != 1 or embedding[1].args[4]:
            continue
        (result,) = operator.results
        if result is not None and values.alike(table, Ref(result)):
            return embedding[0], place
    return None

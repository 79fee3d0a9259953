"""Whose memory operators may write their results to, and which results are never made: for the prediction of memory.

The passes over lowered graphs (:mod:`hap.runtime.passes`) do so where nothing reads that memory any more, which depends
on the program: the core finds that out. Here is what they match in the graph.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch

from hap.graph import Graph, Operator, Ref
from hap.operators.matching import Call, Known, added_rows, entries
from hap.operators.memory import CHANGING, is_opaque, shows_all, writing

aten = torch.ops.aten


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
    """The tensors of a graph, for :mod:`hap.operators.matching`; ``maker`` says which operator makes them."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.maker: dict[int, int] = {}
        self._readers: dict[int, int] = defaultdict(int)
        for index, operator in enumerate(graph.operators):
            self.maker |= {tensor: index for tensor in operator.results if tensor is not None}
            for tensor in set(operator.operands):
                self._readers[tensor] += 1
        for output in graph.outputs:
            if output.tensor is not None:
                self._readers[output.tensor] += 1

    def call(self, value: object, target: torch._ops.OpOverload) -> Call | None:
        index = self.maker.get(value.tensor) if isinstance(value, Ref) else None
        if index is None or self._graph.operators[index].target != target:
            return None
        return Call(self._graph.operators[index].args, self._graph.operators[index].kwargs)

    def known(self, value: object) -> Known | None:
        if not isinstance(value, Ref):
            return None
        tensor = self._graph.tensors[value.tensor]
        return Known(tensor.shape, tensor.dtype)

    def readers(self, value: Ref) -> int:
        return self._readers[value.tensor]

    def result(self, operator: Operator) -> Known | None:
        """What an operator makes, where it is one tensor."""
        (made, *others) = operator.results
        return None if others or made is None else self.known(Ref(made))


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
            if chain := _fused(values, operator):
                found.fused.update(chain)
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
        return values.call(first, aten.full.default) is not None
    result = values.result(operator)
    return result is not None and values.known(first) == result and writing(operator.target) is not None


def _fused(values: _Values, operator: Operator) -> list[int]:
    """As :mod:`hap.runtime.passes.cross_entropy` has it: what is not made for the gradient of a log-softmax."""
    given, logs, dim, _ = operator.args
    result = values.result(operator)
    found = None if result is None or values.known(logs) != result else entries(values, given, dim, result)
    if found is None:
        return []
    *others, zeros = found.chain
    made = [*others, zeros] if values.readers(zeros) == 1 else others
    return [values.maker[one.tensor] for one in made]


def _rows(values: _Values, operator: Operator) -> tuple[int, int] | None:
    """As :mod:`hap.runtime.passes.rows` has it: the gradient of an embedding, and the operand that it is added to."""
    if operator.target != aten.add.Tensor or operator.kwargs or len(set(operator.operands)) != 2:
        return None
    result = values.result(operator)
    found = None if result is None else next(added_rows(values, operator.args, result), None)
    return None if found is None else (values.maker[found.gradient.tensor], found.place)

"""Finds the axes of a graph, and what every operator offers: ``annotate(graph) -> AxisGraph``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hap.graph import Graph, Operator
from hap.placement import REPLICATE, Placements, Shard
from hap.program import Replicated, SplitClass
from hap.rules import costs, serialise
from hap.rules.axes import Factor, entries, inner_products, leaves, unify
from hap.rules.binding import Bound, Dims, bind
from hap.rules.call import Call, Rule, bind_arguments
from hap.rules.choices import Choice, operator_choices
from hap.rules.composites import COMPOSITES
from hap.rules.families import rule_of
from hap.rules.local import LocalCode
from hap.rules.localise import Site, local_code, local_shape
from hap.rules.naming import Axis, name_axes, name_runs
from hap.rules.pieces import Occurrence
from hap.rules.runs import Runs, find_runs, sizes_with_run, tensor_stands
from hap.rules.sums import find_sums

logger = logging.getLogger("hap")

Splits = Mapping[str, Sequence[int]]
"""Units of each device, by the name of the axis."""


@dataclass(frozen=True)
class AxisGraph:
    """A graph with its axes and with all that its operators offer.

    Attributes:
        graph: the graph.
        axes: the model's axes; behind them the runs of adjacent ones that can be sharded as one.
        occurrences: for each tensor its axes, dimension by dimension, outermost first; then the runs that lie inside of
            a dimension, then other split classes. ``Shard(i)`` means entry ``i``.
        choices: for each operator every way to run it; the first is the replicated one.
        replicated: operators that no rule speaks of.
        layout: for each operator, whether it only makes views.
        flops: floating-point operations of each operator on one device.
        cuts: operators at which two ways of factoring a dimension could not be matched.
        classes: further split classes of axes (:mod:`hap.rules.classes`), which stand among the axes, by name.
        base: the same without these, where there are such.
    """

    graph: Graph
    axes: tuple[Axis, ...]
    occurrences: tuple[tuple[Occurrence, ...], ...]
    choices: tuple[tuple[Choice, ...], ...]
    replicated: tuple[int, ...]
    layout: tuple[bool, ...]
    flops: tuple[float, ...]
    cuts: tuple[int, ...]
    calls: tuple[Call, ...]
    bound: tuple[Bound | None, ...]
    classes: Mapping[str, SplitClass] = field(default_factory=dict)
    base: AxisGraph | None = None

    def to_json(self) -> bytes:
        """What the Rust core reads: format ``hap-graph-1``."""
        return self._json

    @cached_property
    def _json(self) -> bytes:
        return serialise.to_json(self)

    @cached_property
    def written_operators(self) -> tuple[dict[str, Any], ...]:
        """What :meth:`to_json` writes of each operator beside its choices; it must not be changed."""
        return serialise.operators(self) if self.base is None else self.base.written_operators

    @property
    def without_rule(self) -> tuple[Replicated, ...]:
        """The operators of :attr:`replicated` by name, target and source line."""
        operators = (self.graph.operators[index] for index in self.replicated)
        return tuple(Replicated(each.name, str(each.target), each.source) for each in operators)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the graph with its arguments; equal on all ranks for equal models, whatever the split classes."""
        return serialise.fingerprint(self) if self.base is None else self.base.fingerprint

    def local_shape(self, tensor: int, placements: Placements, splits: Splits, rank: int) -> tuple[int, ...]:
        """The shape of what a rank holds of a tensor in a placement."""
        placement = placements[0]
        share = 0
        if isinstance(placement, Shard):
            share = splits[self.axes[self.occurrences[tensor][placement.occurrence].axis].name][rank]
        return local_shape(self.graph.tensors[tensor].shape, self.occurrences[tensor], placements, share)

    def local_code(self, operator: int, choice: Choice, splits: Splits, rank: int) -> LocalCode:
        """What a rank executes for an operator under one of its choices."""
        call, bound = self.calls[operator], self.bound[operator]
        units = [] if choice.axis is None else splits[self.axes[choice.axis].name]
        node = self.graph.operators[operator]
        site = Site(
            call=call,
            bound=bound,
            choice=choice,
            leaf_sizes={} if bound is None else _leaf_sizes(bound, choice),
            operand_occurrences=tuple(self.occurrences[t] for t in node.operands),
            result_occurrences=tuple(None if t is None else self.occurrences[t] for t in node.results),
            share=units[rank] if units else 0,
            offset=sum(units[:rank]),
            units=tuple(units),
            rank=rank,
        )
        return local_code(site) if choice.composite is None else COMPOSITES[choice.composite].code(site)


def _leaf_sizes(bound: Bound, choice: Choice) -> dict[str, list[int]]:
    """Sizes of the leaves of each letter; a run that the choice shards is one of them."""
    sizes = {letter: [leaf.size for leaf in leaves(factors)] for letter, factors in bound.letters.items()}
    if choice.letter is not None and choice.leaves > 1:
        letter, first = choice.letter
        sizes[letter] = sizes_with_run(sizes[letter], first, choice.leaves)
    return sizes


def annotate(graph: Graph) -> AxisGraph:
    """Finds a graph's axes and attaches the operators' rules.

    Each gradient and new buffer is linked to what it belongs to, then come the hard links (contractions, pointwise,
    views), then sums, then slice, split and cat, in order and in reverse. Operators without a rule are replicated,
    each with a warning.
    """
    dims: list[Dims] = [[[Factor(size)] for size in tensor.shape] for tensor in graph.tensors]
    # Before anything is refined, so that both stay factored alike whatever their readers do.
    for output in graph.outputs:
        if output.tensor is not None and output.of is not None:
            for a, b in zip(dims[output.tensor], dims[output.of], strict=True):
                unify(a, b)
    calls = [bind_arguments(graph, operator) for operator in graph.operators]
    rules = [rule_of(operator.target) for operator in graph.operators]
    bound: list[Bound | None] = [None] * len(calls)
    soft: list[int] = []
    for i, (call, rule) in enumerate(zip(calls, rules, strict=True)):
        if rule is not None:
            bound[i] = _bind(call, rule, graph.operators[i], dims, hard=True)
            if rule.soft and bound[i] is not None:
                soft.append(i)
    find_sums(((graph.operators[i], bound[i]) for i in soft), dims)
    for i in (*soft, *reversed(soft)):
        rule = rules[i]
        assert rule is not None
        bound[i] = _bind(calls[i], rule, graph.operators[i], dims, hard=False)
    replicated = tuple(i for i, b in enumerate(bound) if b is None)
    for i in replicated:
        _warn(graph.operators[i], rules[i])
    axes, numbers = name_axes(graph, dims)
    busy = (b for b in bound if b is not None and costs.contracts(b))
    found = [run for run in find_runs(busy) if all(leaf in numbers for leaf in run)]
    runs = {run: len(axes) + i for i, run in enumerate(found)}
    axes += name_runs(found, axes, numbers)
    occurrences = tuple(_occurrences(own, numbers, runs) for own in dims)
    return AxisGraph(
        graph=graph,
        axes=axes,
        occurrences=occurrences,
        choices=tuple(
            _choices(graph, operator, b, dims, numbers, runs)
            for operator, b in zip(graph.operators, bound, strict=True)
        ),
        replicated=replicated,
        layout=tuple(b is not None and b.rule.layout for b in bound),
        flops=tuple(
            costs.flops(graph, call, None if b is None else b.rule) for call, b in zip(calls, bound, strict=True)
        ),
        cuts=tuple(i for i, b in enumerate(bound) if b is not None and b.cut),
        calls=tuple(calls),
        bound=tuple(bound),
    )


def _bind(call: Call, rule: Rule, operator: Operator, dims: Sequence[Dims], hard: bool) -> Bound | None:
    ordered = [0] * len(call.order)
    for tensor, place in zip(operator.operands, call.order, strict=True):
        ordered[place] = tensor
    operands = [dims[t] for t in ordered]
    results = [None if t is None else dims[t] for t in operator.results]

    def inner(small: tuple[str, int], large: tuple[str, int], dim: int) -> list[int]:
        if hard:
            return [1]

        def side(kind: str, index: int) -> Sequence[Factor]:
            own = operands[index] if kind == "operand" else results[index]
            assert own is not None
            return own[dim]

        return inner_products(side(*small), side(*large))

    return bind(call, rule, operands, results, inner)


def _occurrences(dims: Dims, numbers: Mapping[Factor, int], runs: Runs) -> tuple[Occurrence, ...]:
    """The entries of a tensor: its axes, dimension by dimension, then the runs that lie inside of one."""
    axes = [
        Occurrence(dim, numbers[entry.axis], entry.blocks)
        for dim, factors in enumerate(dims)
        for entry in entries(factors)
    ]
    together = [
        Occurrence(dim, runs[stand.run], ((stand.outer, stand.inner),)) for dim, stand in tensor_stands(dims, runs)
    ]
    return (*axes, *together)


def _choices(
    graph: Graph,
    operator: Operator,
    bound: Bound | None,
    dims: Sequence[Dims],
    numbers: Mapping[Factor, int],
    runs: Runs,
) -> tuple[Choice, ...]:
    operands = operator.operands
    if bound is None:
        exist = [t for t in operator.results if t is not None]
        return (Choice((REPLICATE,) * len(operands), (REPLICATE,) * len(exist)),)
    return operator_choices(
        bound,
        [graph.tensors[t] for t in operands],
        [dims[t] for t in operands],
        [None if t is None else dims[t] for t in operator.results],
        numbers,
        COMPOSITES,
        runs,
    )


def _warn(operator: Operator, rule: Rule | None) -> None:
    reason = "has no rule" if rule is None else "is called with arguments that its rule does not cover"
    where = f", at {operator.source}" if operator.source else ""
    logger.warning("%s (%s) %s: every device computes the whole of it%s", operator.name, operator.target, reason, where)


__all__ = ["Axis", "AxisGraph", "Choice", "Occurrence", "annotate"]

"""Gradient accumulation: what microbatches under ``no_sync`` add up, and the one reduction that follows.

A gradient ends in a *tail*: conversions, and operators that only rearrange or cast. All of it is linear, so that the
sum over microbatches can be taken before the first collective of the tail, which then runs once. A backward is
therefore lowered in two parts, the first up to the *summands*, the second from their sums to the gradients.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hap.errors import HapError
from hap.placement import PARTIAL
from hap.runtime.code import Runs, straight
from hap.runtime.lower import lower_steps
from hap.runtime.passes import PASSES, improve_part, owned
from hap.runtime.schedule import Change, Property, ancestors, arrange, gains_of, needs_of
from hap.runtime.schedule import Step as Instruction
from hap.runtime.step import Step, apart

if TYPE_CHECKING:
    from hap.program import Program, Splits
    from hap.rules import AxisGraph

_MOVING = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


@dataclass(frozen=True, eq=False)
class Parts:
    """A backward in two parts; each takes a list, which it empties.

    Attributes:
        step: the same in one.
        summing: ``[*saved, *tangents, group]`` to ``[*summands, *gradients of inputs]``.
        reducing: ``[*sums of summands, group]`` to the gradients of parameters.
        types: of the sums. That of the gradient, which may be wider than the summand's own.
        parameters: names of the parameters, in the order of the gradients.
        parents: for each sum, the parameters whose gradients are made from it.
    """

    step: Step
    summing: Runs
    reducing: Runs
    types: tuple[torch.dtype, ...]
    parameters: tuple[str, ...]
    parents: tuple[frozenset[str], ...]


def in_parts(axes: AxisGraph, program: Program, splits: Splits, step: Step, *, within: bool) -> Parts:
    """Lower the backward of ``step`` in two parts.

    Args:
        axes: the annotated graph.
        program: the program.
        splits: its splits.
        step: the same, lowered whole.
        within: keep no sum that may be larger than this rank's piece of the gradient: where a gradient is scattered,
            it is reduced for each microbatch.
    """
    schedule = arrange(axes, program)
    graph, local = axes.graph, step.program
    own = [one for one in schedule.gradients if graph.outputs[one.output].kind == "gradient"]
    others = [one.needs for one in schedule.gradients if graph.outputs[one.output].kind != "gradient"]
    makers = makers_of(schedule.backward)
    sources = {one.needs: summand(axes, makers, one.needs, within=within) for one in own}
    summands = list(dict.fromkeys(sources.values()))
    types = {prop: graph.tensors[prop.tensor].dtype for prop in summands}
    parents: dict[Property, set[str]] = {prop: set() for prop in summands}
    for one in own:
        source = sources[one.needs]
        types[source] = torch.promote_types(types[source], graph.tensors[one.needs.tensor].dtype)
        parents[source].add(graph.outputs[one.output].name)

    def code(
        steps: Sequence[Instruction], inputs: list[Property], outputs: list[Property], groups: Sequence[Collection[int]]
    ) -> Runs:
        needed = ancestors(steps, outputs)
        chosen = [one for one, wanted in zip(steps, needed, strict=True) if wanted]
        ranks, device = step.group.size, step.device
        # This rank saves what its backward reads.
        absent = [prop for prop in inputs if prop in unsaved]
        graph = lower_steps(
            axes, chosen, inputs, outputs, splits, local.rank, ranks=ranks, device=device, absent=absent
        )
        if local.make is straight:
            improve_part(graph, groups, PASSES)
        return local.make(graph, "backward")

    unsaved = frozenset(schedule.saved) - frozenset(local.saved)
    before = [*schedule.saved, *(given.gains for given in schedule.tangents)]
    made = frozenset(summands)
    tail = [one for one in schedule.backward if made.isdisjoint(gains_of(one))]
    # Sums belong to nobody else; those that are wider than the graph knows are left alone.
    sums = [{at} for at, prop in enumerate(summands) if types[prop] == graph.tensors[prop.tensor].dtype]
    return Parts(
        step,
        code(schedule.backward, before, [*summands, *others], owned(local.forward_graph, len(local.saved))),
        code(tail, summands, [one.needs for one in own], sums),
        tuple(types.values()),
        tuple(graph.outputs[one.output].name for one in own),
        tuple(frozenset(names) for names in parents.values()),
    )


def makers_of(steps: Sequence[Instruction]) -> dict[Property, Instruction]:
    """The first step that yields each property."""
    makers: dict[Property, Instruction] = {}
    for step in steps:
        for prop in gains_of(step):
            makers.setdefault(prop, step)
    return makers


def summand(
    axes: AxisGraph, makers: Mapping[Property, Instruction], gradient: Property, *, within: bool = False
) -> Property:
    """The property that a gradient's sum over microbatches is best taken of: before the first collective of its tail.

    Args:
        axes: the annotated graph.
        makers: by property, the step of the backward that yields it.
        gradient: the gradient.
        within: as for :func:`in_parts`.
    """
    at = best = gradient
    while (maker := makers.get(at)) is not None and _linear(axes, maker):
        (at,) = needs_of(maker)
        if isinstance(maker, Change) and maker.instruction.conversion in _MOVING:
            best = at
    return gradient if within and gradient.placements != ("R",) else best


def _linear(axes: AxisGraph, step: Instruction) -> bool:
    """Whether a step is a conversion, or an operator that rearranges, scales or casts: linear in its only operand."""
    if isinstance(step, Change):
        return True
    if len(step.needs) != 1 or len(step.gains) != 1:
        return False
    tensors = axes.graph.tensors
    if math.prod(tensors[step.needs[0].tensor].shape) != math.prod(tensors[step.gains[0].tensor].shape):
        return False
    passes = (PARTIAL,), (PARTIAL,)
    return any((choice.inputs, choice.outputs) == passes for choice in axes.choices[step.operator])


_KEPT: weakref.WeakSet[Accumulation] = weakref.WeakSet()


class Accumulation:
    """The sums of one parallel module.

    At most one set is unreduced: where microbatches come under several plans, those of the plan before are reduced, and
    what they give is added to the gradients to come.

    Args:
        state: the module's parameters by name.

    Attributes:
        used: whether calls were made under ``no_sync`` at all.
    """

    def __init__(self, state: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        self._state = state
        self.used = False
        self._parts: Parts | None = None
        self._sums: list[torch.Tensor] = []
        self._reduced: dict[str, torch.Tensor] = {}
        _KEPT.add(self)

    @property
    def pending(self) -> bool:
        """Whether there are gradients to reduce or to hand over."""
        return self._parts is not None or bool(self._reduced)

    def backward(
        self,
        parts: Parts,
        saved: list[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        *,
        last: bool,
    ) -> list[torch.Tensor | None]:
        """Gradients of one microbatch, as :meth:`Step.backward`; ``None`` for parameters until the ``last``."""
        values = parts.step.backward(saved, tangents, parts.summing)
        count = len(parts.types)
        self._add(parts, values[:count])
        others = iter(values[count:])
        del values
        gradients: dict[str, torch.Tensor] = {}
        if last:
            self._reduce()
            gradients, self._reduced = self._reduced, {}
        graph = parts.step.graph
        outputs = [graph.outputs[one.output] for one in parts.step.program.gradients]
        result = [gradients.pop(one.name, None) if one.kind == "gradient" else next(others) for one in outputs]
        self._deliver(gradients)
        return result

    def _add(self, parts: Parts, values: list[torch.Tensor]) -> None:
        if self._parts is not parts:
            self._reduce()
        if self._parts is None:
            self._parts = parts
            for dtype in parts.types:
                # A copy: a gradient may share its memory with a tangent or with what was saved.
                self._sums.append(values.pop(0).to(dtype, copy=True, memory_format=torch.contiguous_format))
        else:
            for total in self._sums:
                total.add_(values.pop(0))

    def _reduce(self) -> None:
        """From sums to gradients."""
        if (parts := self._parts) is None:
            return
        arguments: list[object] = [*self._sums, parts.step.group]
        self._parts, self._sums = None, []
        for name, gradient in zip(parts.parameters, apart(parts.reducing(arguments)), strict=True):
            before = self._reduced.get(name)
            self._reduced[name] = gradient if before is None else before.add_(gradient)

    def finish(self) -> None:
        """Reduce and hand over what is left: of calls under ``no_sync`` whose backward ran after that of the last."""
        self._reduce()
        gradients, self._reduced = self._reduced, {}
        self._deliver(gradients)

    def _deliver(self, gradients: dict[str, torch.Tensor]) -> None:
        """Hand over gradients without autograd."""
        if gradients:
            state = self._state()
            for name, gradient in gradients.items():
                parameter = state[name]
                if parameter.grad is None:
                    parameter.grad = gradient
                else:
                    parameter.grad.add_(gradient)

    def names(self, parameters: Iterable[torch.Tensor]) -> list[str]:
        """Those of the parameters that have a part in the sums."""
        summed = {*self._reduced, *(() if self._parts is None else self._parts.parameters)}
        chosen = {id(parameter) for parameter in parameters}
        state = self._state() if summed else {}
        return sorted(name for name in summed if id(state[name]) in chosen)

    def forget(self, parameters: Iterable[torch.Tensor]) -> None:
        """Drop what was summed up for these parameters."""
        dropped = frozenset(self.names(parameters))
        for name in dropped:
            self._reduced.pop(name, None)
        if self._parts is None:
            return
        if dropped.issuperset(self._parts.parameters):
            self._parts, self._sums = None, []
            return
        for total, names in zip(self._sums, self._parts.parents, strict=True):
            if names <= dropped:
                total.zero_()


def forget(parameters: Sequence[torch.Tensor]) -> None:
    """Drop the sums of these parameters, whatever module they are of."""
    for one in _KEPT:
        if one.pending:
            one.forget(parameters)


def check_reduced(parameters: Sequence[torch.Tensor], what: str) -> None:
    """Raise where gradients of these parameters wait for their reduction."""
    names = [name for one in _KEPT if one.pending for name in one.names(parameters)]
    if names:
        raise HapError(
            f'{what}: the gradient of "{names[0]}" and {len(names) - 1} more were accumulated under no_sync() and are '
            "not reduced yet: run the last microbatch, forward and backward, outside of no_sync(), or call zero_grad() "
            "to drop them"
        )

"""All that one kind of call of a parallel module needs: graph, plan, code, layouts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import fx

from hap.graph import Graph
from hap.program import Splits
from hap.rules import BATCH
from hap.runtime.accumulate import Parts, in_parts
from hap.runtime.active import Active
from hap.runtime.agree import Control
from hap.runtime.finite import Checked
from hap.runtime.idle import idle_parts
from hap.runtime.lower import lower
from hap.runtime.placing import Layout
from hap.runtime.schedule import Property
from hap.runtime.step import Step

if TYPE_CHECKING:
    from hap.planning import Plan
    from hap.rules import AxisGraph


@dataclass(frozen=True)
class Prepared:
    """Everything that one kind of call needs.

    Attributes:
        axes: the annotated graph.
        plan: the plan.
        splits: its splits.
        step: what this rank runs.
        constants: values of the graph's constants, by tensor, on this rank's device.
        layouts: how inputs, outputs, parameters and buffers lie.
        refused: names of the outputs that carry no gradient although one device would record one.
        within: see :func:`hap.runtime.accumulate.in_parts`.
        control: the ranks, for what they compare.
        active: the ranks that run it.
    """

    axes: AxisGraph
    plan: Plan
    splits: Splits
    step: Step
    constants: dict[int, torch.Tensor]
    layouts: dict[Property, Layout]
    refused: frozenset[str]
    within: bool
    control: Control
    active: Active

    @property
    def batch(self) -> tuple[int, ...]:
        """Samples by rank; none where the program does not share them."""
        units = self.splits.get(BATCH)
        return () if units is None else self.active.units(units)

    @property
    def graph(self) -> Graph:
        """The reference program."""
        return self.axes.graph

    @cached_property
    def checked(self) -> Prepared:
        """The same with checks for NaN."""
        step = self.step

        def make(graph: fx.Graph, what: str) -> Checked:
            return Checked(graph, what, self.graph, self.control)

        if self.active.group is None:
            program = replace(step.program, make=make)
        else:
            place, places, device = step.program.rank, step.group.size, step.device
            program = lower(self.axes, self.plan.program, self.splits, place, ranks=places, device=device, make=make)
        return replace(self, step=replace(step, program=program))

    @cached_property
    def parts(self) -> Parts:
        """The backward for microbatches that are reduced together."""
        if self.active.group is None:
            return idle_parts(self.step, lambda prop: self.layouts[prop].shapes[self.active.rank])
        return in_parts(self.axes, self.plan.program, self.splits, self.step, within=self.within)


def without_gradient(graph: Graph) -> frozenset[str]:
    """Names of the outputs that stand beside a loss and depend on something trained.

    Their gradients are not part of the graph (see :mod:`hap.trace.root`), while one device would record them. What the
    module itself has detached counts too, as the graph does not show it.
    """
    losses = [entry for entry in graph.outputs if entry.kind == "loss" and entry.tensor is not None]
    if not any(entry.name == "loss" or not graph.tensors[entry.tensor or 0].shape for entry in losses):
        return frozenset()  # every differentiable output has its gradient
    trained = {entry.of for entry in graph.outputs if entry.kind in ("gradient", "input_gradient")}
    for operator in graph.operators:
        if operator.phase == "forward" and any(operand in trained for operand in operator.operands):
            trained.update(result for result in operator.results if result is not None)
    return frozenset(
        entry.name
        for entry in graph.outputs
        if entry.kind == "output"
        and entry.of is None
        and entry.tensor is not None
        and entry.tensor in trained
        and (graph.tensors[entry.tensor].dtype.is_floating_point or graph.tensors[entry.tensor].dtype.is_complex)
    )

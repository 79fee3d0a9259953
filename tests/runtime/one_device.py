"""A program run by all ranks in lock-step, compared with one device that computes the whole step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hap import interpret
from hap.program import Program, Splits
from hap.rules import AxisGraph, annotate
from hap.runtime.emulate import emulate
from hap.runtime.reference import eager
from hap.trace import trace
from hap.trace.inputs import map_inputs
from tests.trace.comparison import wide


@dataclass(frozen=True)
class Step:
    """A training step of a module.

    Attributes:
        axes: its annotated graph.
        values: the inputs of the graph, by tensor.
        outputs: what one device makes of them, by kind and name.
    """

    axes: AxisGraph
    values: Mapping[int, torch.Tensor]
    outputs: Mapping[tuple[str, str], torch.Tensor | None]

    def check(self, program: Program, splits: Splits, ranks: int, tolerance: float) -> None:
        """All ranks together give the same loss, outputs, gradients and buffers, to a relative ``tolerance``.

        Gradients far below the norm of all of them are measured against a thousandth of it. The inputs stay unchanged.
        """
        before = {tensor: value.clone() for tensor, value in self.values.items()}
        outputs = emulate(self.axes, program, splits, ranks, self.values)
        gradients = [g for (kind, _), g in self.outputs.items() if kind == "gradient" and g is not None]
        floor = 1e-3 * float(torch.stack([wide(g).norm() for g in gradients]).norm())
        assert len(outputs) == sum(output.tensor is not None for output in self.axes.graph.outputs)
        for output in outputs:
            expected = self.outputs[output.kind, output.name]
            assert expected is not None
            for copy in output.copies:
                difference = float((wide(copy) - wide(expected)).norm())
                limit = tolerance * max(float(wide(expected).norm()), floor)
                assert difference <= limit, f"{output.kind} {output.name}: {difference} over {limit}"
        for tensor, value in before.items():
            assert torch.equal(value, self.values[tensor]), "the run wrote to its inputs"


def step(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Step:
    """The module's step on these inputs, traced and computed on one device.

    Raises:
        CheckError: the module itself gives a gradient or changes a buffer that the graph does not have.
    """
    axes = annotate(trace(module, args, kwargs))
    values = interpret.bind(axes.graph, module, args, kwargs, rng=(3, 1))
    eager(axes.graph, deepcopy(module), *map_inputs(_fresh, tuple(args), dict(kwargs)), values)
    return Step(axes, values, interpret.run(axes.graph, values))


def _fresh(value: Any) -> Any:
    """A copy of a tensor that no graph has made."""
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value

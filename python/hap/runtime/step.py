"""One training step of one rank inside autograd: the lowered graph behind a single ``torch.autograd.Function``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from hap.errors import HapError
from hap.graph import Graph
from hap.runtime.code import Runs
from hap.runtime.local_program import LocalProgram

if TYPE_CHECKING:
    from hap.runtime.active import Active
    from hap.runtime.group import Group


@dataclass(frozen=True)
class Step:
    """A lowered program with what it needs to run.

    Attributes:
        graph: the reference program.
        program: what this rank runs.
        group: the ranks that run it.
        updated: tensors of the buffers that a step updates.
        device: where this rank computes.
        active: how idle ranks hear of the results; ``None`` where there are none.
        pieces: shapes of this rank's pieces of the tangents.
    """

    graph: Graph
    program: LocalProgram
    group: Group
    updated: frozenset[int]
    device: torch.device
    active: Active | None = None
    pieces: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def differentiable(self) -> tuple[str, ...]:
        """Names of the parameters and inputs that get a gradient, in the order of ``gradients``."""
        return tuple(self.graph.outputs[one.output].name for one in self.program.gradients)

    @cached_property
    def changing(self) -> tuple[int, ...]:
        """Positions of what is saved and updated by a step."""
        return tuple(at for at, prop in enumerate(self.program.saved) if prop.tensor in self.updated)

    @cached_property
    def tangents(self) -> tuple[int, ...]:
        """For each tangent the position of its output."""
        outputs = [self.graph.outputs[one.output] for one in self.program.outputs]
        names = {one.name: at for at, one in enumerate(outputs) if one.kind != "buffer"}
        return tuple(names[self.graph.inputs[given.input].name] for given in self.program.tangents)

    @cached_property
    def constant(self) -> tuple[int, ...]:
        """Positions of the outputs without a tangent, and of new buffers."""
        outputs = [self.graph.outputs[one.output] for one in self.program.outputs]
        return tuple(at for at, one in enumerate(outputs) if one.kind == "buffer" or at not in self.tangents)

    @cached_property
    def random(self) -> bool:
        """Whether it draws random numbers."""
        return any(self.graph.inputs[given.input].kind == "rng" for given in self.program.inputs)

    def infer(self, inputs: list[Any]) -> list[torch.Tensor]:
        """Losses, outputs and new buffers from this rank's inputs, without a backward."""
        results = self.program.inference([*inputs, self.group])
        self._tell(results)
        return results

    def forward(self, inputs: list[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Losses, outputs and new buffers; and what the backward needs."""
        results = self.program.forward([*inputs, self.group])
        count = len(self.program.outputs)
        self._tell(results[:count])
        saved = results[count:]
        for position in self.changing:
            # The buffer itself changes before the backward.
            saved[position] = saved[position].clone()
        return results[:count], saved

    def _tell(self, results: Sequence[torch.Tensor]) -> None:
        """Losses, which are whole, to the idle ranks."""
        if self.active is None:
            return
        losses = (self.graph.outputs[one.output].kind == "loss" for one in self.program.outputs)
        self.active.tell("the loss", [value for value, loss in zip(results, losses, strict=True) if loss])

    def tell_inputs(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Gradients of inputs, which are whole, to the idle ranks."""
        if self.active is None:
            return
        kinds = (self.graph.outputs[one.output].kind for one in self.program.gradients)
        whole = [one for one, kind in zip(gradients, kinds, strict=True) if kind == "input_gradient"]
        self.active.tell("the gradients of inputs", [one for one in whole if one is not None])

    def backward(
        self,
        saved: list[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        code: Runs | None = None,
    ) -> list[torch.Tensor]:
        """Gradients of parameters and inputs. Empties ``saved``.

        Args:
            saved: from :meth:`forward`.
            gradients: of the outputs, in their order; ``None`` where there is none.
            code: what to run in the place of the program's backward, with the same arguments.
        """
        arguments: list[Any] = saved.copy()
        saved.clear()
        for position, entry, shape in zip(self.tangents, self.program.tangents, self.pieces, strict=True):
            value = gradients[position]
            if value is None:
                dtype = self.graph.tensors[entry.gains.tensor].dtype
                value = torch.zeros(shape, dtype=dtype, device=self.device)
            arguments.append(value)
        arguments.append(self.group)
        backward = self.program.backward if code is None else code
        assert backward is not None
        return apart(backward(arguments))


def apart(results: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results, none overlapping another in memory: autograd keeps them, and optimisers write to them."""
    if len({result.untyped_storage().data_ptr() for result in results}) == len(results):
        return results  # as nearly always; what follows takes longer
    taken: dict[int, list[tuple[int, int]]] = {}
    for position, result in enumerate(results):
        if not result.numel():
            continue
        begin = result.data_ptr()
        steps = zip(result.shape, result.stride(), strict=True)
        end = begin + result.element_size() * (1 + sum((size - 1) * stride for size, stride in steps))
        others = taken.setdefault(result.untyped_storage().data_ptr(), [])
        if any(begin < stop and first < end for first, stop in others):
            results[position] = result.clone()
        else:
            others.append((begin, end))
    return results


class _Saved:
    """What crosses from forward to backward, with the versions of the inputs that are among it."""

    def __init__(self, step: Step, values: list[torch.Tensor]) -> None:
        self.step = step
        self.values: list[torch.Tensor] | None = values
        self.versions = [value._version for value in values]

    def take(self) -> list[torch.Tensor]:
        """The values, once."""
        if self.values is None:
            raise HapError(
                "backward() was called a second time for one forward: a step's saved values are freed as its backward "
                "uses them up. Call the model again, or add the losses up before one backward()."
            )
        values, self.values = self.values, None
        for prop, value, version in zip(self.step.program.saved, values, self.versions, strict=True):
            if value._version != version:
                raise HapError(
                    f'"{self.step.graph.tensors[prop.tensor].name}" was changed in place between forward and backward '
                    "(an optimiser's step, an update of an input): call backward() first"
                )
        return values


Backward: TypeAlias = Callable[[list[torch.Tensor], Sequence[torch.Tensor | None]], Sequence[torch.Tensor | None]]
"""From what the forward saved and gradients of outputs to gradients of the differentiable arguments."""


class StepFunction(torch.autograd.Function):
    """Runs a step's forward, and its backward when autograd asks for it."""

    @staticmethod
    def forward(
        ctx: Any,
        step: Step,
        inputs: list[Any],
        backward: Backward,
        *differentiable: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """All outputs; those without a tangent are not differentiable. ``backward`` gives the gradients later."""
        outputs, saved = step.forward(inputs)
        inputs.clear()
        ctx.saved = _Saved(step, saved)
        ctx.run_backward = backward
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(outputs[position] for position in step.constant))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the differentiable arguments."""
        if torch.is_grad_enabled():
            # They would be constants, and a penalty on them without effect.
            raise HapError(
                "create_graph=True: hap computes no gradients of gradients; a parallel module cannot be trained with a "
                "gradient penalty"
            )
        saved: _Saved = ctx.saved
        return (None, None, None, *ctx.run_backward(saved.take(), gradients))

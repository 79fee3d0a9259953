"""One call of a parallel module: this rank's inputs, the lowered graph inside autograd, and the module's output."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from hap.runtime.collectives import re_split
from hap.runtime.local_inputs import share_layout
from hap.runtime.prepared import Prepared
from hap.runtime.schedule import Property
from hap.runtime.session import Session
from hap.runtime.sharded_tensor import ShardedTensor, refuse_gradient
from hap.runtime.signature import Call
from hap.runtime.step import Backward, StepFunction


def run(session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One call of a parallel module."""
    call, prepared, units = session.prepare(args, kwargs)
    graph, step = prepared.graph, prepared.step
    state = session.state()
    inputs: list[Any] = []
    for given in step.program.inputs:
        entry = graph.inputs[given.input]
        if entry.kind in ("parameter", "buffer"):
            inputs.append(state[entry.name].detach())
        elif entry.kind == "input":
            inputs.append(_piece(session, prepared, given.gains, call, entry.name, units))
        elif entry.kind == "constant":
            inputs.append(prepared.constants[entry.tensor])
        else:
            inputs.append(torch.tensor([session.seed, session.steps], dtype=torch.int64, device=session.device))
    # Casts are part of the graph; switching autocast off takes time where it is off.
    autocast = torch.is_autocast_enabled(session.device.type)
    with torch.autocast(session.device.type, enabled=False) if autocast else nullcontext():
        if step.tangents and torch.is_grad_enabled():
            differentiable = [state.get(name, call.tensors.get(name)) for name in step.differentiable]
            results = list(StepFunction.apply(step, inputs, _backward(session, prepared), *differentiable))  # type: ignore[no-untyped-call]
        else:
            with torch.no_grad():
                results = step.infer(inputs)
    session.steps += step.random
    return _outputs(session, prepared, results, state, units if call.local else None)


def _backward(session: Session, prepared: Prepared) -> Backward:
    """The backward of a call that is made now: under ``no_sync`` it only sums up, and the next one outside reduces."""
    last, sums = session.synchronising, session.sums
    sums.used |= not last

    def backward(saved: list[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        if last and sums.used:
            # One backward() may go through several calls, and come to those under no_sync later.
            torch.autograd.Variable._execution_engine.queue_callback(sums.finish)
        if last and not sums.pending:
            made: Sequence[torch.Tensor | None] = prepared.step.backward(saved, gradients)
        else:
            made = sums.backward(prepared.parts, saved, gradients, last=last)
        prepared.step.tell_inputs(made)
        return made

    return backward


def _piece(
    session: Session, prepared: Prepared, prop: Property, call: Call, name: str, units: tuple[int, ...]
) -> torch.Tensor:
    """This rank's piece of an input, in the placement that the program takes."""
    layout, rank = prepared.layouts[prop], session.group.rank
    value = call.tensors[name].detach()
    if name in call.local:
        given = share_layout(layout.shape, units)
        assert given.along is not None
        if layout.along is not None and layout.along[:2] == given.along[:2]:
            shape = layout.shapes[rank]
            return re_split(value, name=name, shape=shape, source=given.along, target=layout.along, group=session.group)
        value = given.gather(value, name, session.group)
    return layout.share(value, rank)


def _outputs(
    session: Session,
    prepared: Prepared,
    results: list[torch.Tensor],
    state: dict[str, torch.Tensor],
    units: tuple[int, ...] | None,
) -> Any:
    """Update buffers in place and rebuild the module's output; ``units`` are the samples of inputs that are shares."""
    graph, step = prepared.graph, prepared.step
    sharded = graph.sharded_outputs or any(
        graph.outputs[one.output].kind == "loss" and not results[position].shape
        for position, one in enumerate(step.program.outputs)
    )
    tensors: list[Any] = []
    for one, value in zip(step.program.outputs, results, strict=True):
        output = graph.outputs[one.output]
        if output.kind == "buffer":
            if prepared.active.group is None:
                continue
            with torch.no_grad():
                state[output.name].copy_(value)
            continue
        layout = prepared.layouts[one.needs]
        refused = torch.is_grad_enabled() and output.name in prepared.refused
        if output.kind == "loss":
            tensors.append(value)
        elif sharded:
            one_of_all = ShardedTensor(value, layout, output.name, session.group, refused=refused, units=units)
            tensors.append(one_of_all)
        else:
            whole = layout.gather(value, output.name, session.group)
            tensors.append(refuse_gradient(whole, output.name) if refused else whole)
    return graph.output_spec.build(tensors)

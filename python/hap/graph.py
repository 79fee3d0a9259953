"""The training step as a single device would run it: the *reference program*.

Plain data, made by :mod:`hap.trace`, read by everything behind it. It knows nothing of devices, axes or placements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

InputKind = Literal["parameter", "buffer", "input", "tangent", "constant", "rng"]
OutputKind = Literal["loss", "output", "gradient", "buffer", "input_gradient"]


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor in the arguments of an operator: an index into :attr:`Graph.tensors`."""

    tensor: int

    def __repr__(self) -> str:
        return f"%{self.tensor}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value: its unique name, its shape on one device, its element type."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Size of the whole tensor in bytes."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Operator:
    """One call of an ATen (or ``torch.ops.hap``) operator.

    Attributes:
        name: unique name.
        target: the overload that is called.
        args, kwargs: its arguments as the call would take them, with :class:`Ref` (also inside lists) for tensors.
        results: the tensors that it writes, flattened; ``None`` where a result does not exist or nobody reads it.
        source: the user's source line, ``model.py:12: x = self.fc(x)``; empty where there is none.
        module: path of the user's module, ``transformer.h.0.attn``; empty at the root.
        phase: whether it belongs to the forward or the backward pass.
    """

    name: str
    target: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[int | None, ...]
    source: str = ""
    module: str = ""
    phase: Literal["forward", "backward"] = "forward"

    @property
    def operands(self) -> tuple[int, ...]:
        """The tensors that it reads, in the order of the schema's arguments; one may stand more than once."""
        return tuple(ref.tensor for ref in references((self.args, self.kwargs)))


def references(value: Any) -> Iterator[Ref]:
    """Every :class:`Ref` inside nested tuples, lists and dicts, in order."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from references(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from references(item)


@dataclass(frozen=True, slots=True)
class Input:
    """An input of the graph.

    ``name`` is the user's: the parameter's or buffer's name (the first one where several are tied, see
    :attr:`Graph.tied`), for an input its path in ``(args, kwargs)`` (``args.0``, ``kwargs.labels``), for a tangent the
    path of its output.
    """

    kind: InputKind
    name: str
    tensor: int


@dataclass(frozen=True, slots=True)
class Output:
    """An output of the graph.

    ``name`` is the parameter's or buffer's name for gradients and new buffers, the input's for the gradients of inputs,
    and the path in the module's output for losses and outputs (``loss``, ``logits``, ``0``; empty for a bare tensor).
    ``of`` is the tensor of that parameter, buffer or input; for an output that need not be whole, and that a gradient
    comes back to, its tangent, which lies as it does. ``tensor`` is ``None`` for the gradient of a parameter that
    no loss reads.
    """

    kind: OutputKind
    name: str
    tensor: int | None
    of: int | None = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """A value that the forward makes of its inputs in Python, such as ``mask.all()`` behind an ``if``.

    The strides of inputs are one too, where an operator reads memory by its places.

    Attributes:
        source: the user's source line.
        value: what it was; a number, a truth value, or lists of them.
        compute: the value of another call, from its inputs by name.
    """

    source: str
    value: Any
    compute: Callable[[Mapping[str, torch.Tensor]], Any]


@dataclass(slots=True)
class Graph:
    """The joint forward and backward graph of one training step.

    Attributes:
        tensors: all values.
        operators: in an order in which operands come before their readers.
        inputs: parameters, buffers, inputs, tangents, constants, and the state of the random numbers. Each tensor is
            written by exactly one input or operator.
        outputs: loss and other outputs in the order of the module's output, gradients in the order of the parameters,
            new buffers, gradients of inputs.
        constants: the values of inputs of kind ``constant``, by tensor.
        tied: other names of the same parameter or buffer, by that name, such as
            ``{"lm_head.weight": "transformer.wte.weight"}``.
        output_spec: what rebuilds the module's output from the list of its output tensors (see :mod:`hap.trace`).
        inspections: what the forward inspects of its inputs, in order: the graph is that of calls with equal values.
        plain: plain tensors of the user's that the forward reads, attributes and globals: their paths, and Python
            expressions for them in the scope of :func:`hap.trace.root.scope`.
        sharded_outputs: whether outputs need not be whole, also those that gradients come back to.
    """

    tensors: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    constants: dict[int, torch.Tensor] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    output_spec: Any = None
    inspections: list[Inspection] = field(default_factory=list)
    plain: dict[str, str] = field(default_factory=dict)
    sharded_outputs: bool = False

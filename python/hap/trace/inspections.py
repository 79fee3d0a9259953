"""Values of inputs that a forward inspects in Python: ``if mask.all():``, ``int(lengths.max())``.

Such a value is computed from the example inputs while the forward is captured, and is a constant of the trace, as a
shape is. What computes it is kept with the graph, so that each call is run by a trace whose values are its own.
"""

from __future__ import annotations

import contextlib
import dis
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._dynamo import symbolic_convert
from torch._dynamo.variables import TensorVariable
from torch._dynamo.variables.base import VariableTracker
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Interpreter, Node
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from hap.graph import Inspection
from hap.trace.sources import plain_source, source_of_stack
from hap.trace.writes import Writes, memory, tensors, written

_JUMPS = [code for name, code in dis.opmap.items() if "JUMP" in name and ("IF_TRUE" in name or "IF_FALSE" in name)]

_TRANSFORMED = (
    "a value that torch.func (vmap, grad) computes, which is not followed: compute it by operators on whole tensors, "
    "or outside of the module, and pass it as an input"
)


class _UnknownError(Exception):
    """A value does not follow from inputs and constants alone."""


class _RefusedError(_UnknownError):
    """What a value is and why it cannot be known, though it may follow from them."""


@dataclass(frozen=True)
class _Program:
    """A part of the captured graph, run on the inputs that it reads."""

    graph: torch.fx.Graph
    constants: nn.Module
    names: tuple[str, ...]
    convert: Callable[[Tensor], Any]

    def __call__(self, tensors: Mapping[str, Tensor]) -> Any:
        given = [tensors[name].detach() for name in self.names]
        with torch.no_grad():
            return self.convert(Interpreter(self.constants, graph=self.graph).run(*given))


class _Repeatable(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what computes something else when it is run again: random numbers, and changes of what was given."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given = {memory(one) for one in given}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise _UnknownError
        kwargs = kwargs or {}
        if any(memory(value) in self.given for value in written(func, args, kwargs)):
            raise _UnknownError
        return func(*args, **kwargs)


class Inspector:
    """Decides, while a forward is captured, what it inspects of its inputs.

    Args:
        fakes: the inputs as capture sees them.
        tensors: the inputs themselves, by name, in the same order.
        known: whether their values are those of a call; else all inspection is refused.

    Attributes:
        found: what was inspected, in order.
        plain: the plain tensors that this depends on, as :func:`hap.trace.sources.plain_source` says it.
        refusal: why a value could not be known though it follows from the inputs; empty if there is no such.
    """

    def __init__(self, fakes: Sequence[Tensor], tensors: Mapping[str, Tensor], known: bool) -> None:
        self.names = {id(fake): name for fake, name in zip(fakes, tensors, strict=True)}
        self.tensors = tensors
        self.known = known
        self.found: list[Inspection] = []
        self.plain: dict[str, str] = {}
        self.refusal = ""
        self.writes = Writes()
        self._output: Any = None

    def decide(self, tx: Any, variable: Any, convert: Callable[[Tensor], Any]) -> VariableTracker | None:
        """The value of a tensor in a capture as a constant; ``None`` where it does not follow from the inputs."""
        if tx.output is not self._output:
            # Dynamo starts anew at times.
            self._output, self.found = tx.output, []
        if tx.output.current_tracer.parent is not None:
            return None  # in the body of a checkpoint
        source = source_of_stack(torch._guards.TracingContext.extract_stack())
        try:
            program = self._program(variable.as_proxy().node, convert)
            if program.names:
                self._check_known(program)
            with _disable_current_modes(), _Repeatable([*self.tensors.values(), *program.constants.buffers()]):
                value = program(self.tensors)
        except _RefusedError as error:
            self.refusal = self.refusal or f"{source}: the forward inspects {error}"
            return None
        except _UnknownError:
            return None
        if program.names:
            self.found.append(Inspection(source, value, program))
        return VariableTracker.build(tx, value)  # type: ignore[no-any-return]

    def _check_known(self, program: _Program) -> None:
        meta = [name for name in program.names if self.tensors[name].device.type == "meta"]
        if self.known and not meta:
            return
        inspected = ", ".join(f'"{name}"' for name in meta or program.names)
        why = (
            "which is on the meta device: give example inputs with the values of a typical call"
            if meta
            else "which are known only where all inputs are global: pass whole batches, without local_inputs"
        )
        raise _RefusedError(f"the values of {inspected}, {why}")

    def _program(self, node: Node, convert: Callable[[Tensor], Any]) -> _Program:
        """What computes a node from the inputs, as a graph of its own.

        Raises:
            _UnknownError: it depends on more than inputs and constants.
        """
        needed = _needed(node, self.writes.of(node))
        graph, constants, copies = torch.fx.Graph(), nn.Module(), dict[Node, Node]()
        names: list[str] = []
        regions = 0  # of autocast, which would compute the operators otherwise
        transforms = 0  # such as vmap, of whose tensors there is more than operators see
        for one in node.graph.nodes:
            called = getattr(one.target, "__name__", "")
            regions += (called == "_enter_autocast") - (called == "_exit_autocast")
            transforms += called.endswith("_increment_nesting")
            if one in needed and transforms:
                raise _RefusedError(_TRANSFORMED)
            transforms -= called.endswith("_decrement_nesting")
            if one not in needed:
                continue
            if one.op == "placeholder":
                example = one.meta["grapharg"].example if "grapharg" in one.meta else None
                if id(example) in self.names:
                    names.append(self.names[id(example)])
                    copies[one] = graph.placeholder(f"input_{len(names)}")
                elif isinstance(example, Tensor) and not isinstance(example, FakeTensor) and not example.requires_grad:
                    constants.register_buffer(f"constant_{one.name}", example)
                    self.plain.update(plain_source(one))
                    copies[one] = graph.get_attr(f"constant_{one.name}")
                else:
                    raise _UnknownError
            elif one.op in ("call_function", "call_method") and not regions:
                copies[one] = graph.node_copy(one, copies.__getitem__)
                copies[one].meta = {}
            else:
                raise _UnknownError
        if regions:
            raise _UnknownError
        graph.output(copies[node])
        return _Program(graph, constants, tuple(names), convert)


def _needed(node: Node, writers: Mapping[int, Sequence[Node]]) -> set[Node]:
    """The nodes that a node depends on, with those that write to what it reads.

    Raises:
        _UnknownError: something has been written by what is not known to write.
    """
    waiting, seen = [node], {node}
    while waiting:
        one = waiting.pop()
        also: list[Node] = []
        for tensor in tensors(one.meta.get("example_value")):
            place = memory(tensor)
            if place is None:
                raise _UnknownError
            also += (own := writers.get(place, []))
            if (tensor._version and not own) or any(other.graph is not node.graph for other in own):
                raise _UnknownError
        for other in [*one.all_input_nodes, *also]:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def _whole(tensor: Tensor) -> bool:
    """Whether the elements are whole numbers or truth values; other numbers hardly ever come again."""
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


@contextlib.contextmanager
def inspecting(inspector: Inspector) -> Iterator[None]:
    """Within, a capture asks ``inspector`` where the forward makes a Python value of a tensor."""

    def converting(name: str, convert: Callable[[Tensor], Any], whole: bool) -> Any:
        original = getattr(TensorVariable, name)

        def method(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            decided = None
            if not whole or _whole(self.as_proxy().node.meta["example_value"]):
                decided = inspector.decide(tx, self, convert)
            return original(self, tx, *args, **kwargs) if decided is None else decided

        return patch.object(TensorVariable, name, method)

    def jumping(original: Any, name: str) -> Any:
        def jump(self: Any, inst: Any) -> None:
            value = self.stack[-1].realize()
            if not isinstance(value, TensorVariable) or _asserts(self, name):
                return original(self, inst)  # type: ignore[no-any-return]
            decided = inspector.decide(self, value, bool)
            if decided is None:
                return original(self, inst)  # type: ignore[no-any-return]
            self.stack[-1] = decided
            original(self, inst)
            if self.stack and self.stack[-1] is decided:
                self.stack[-1] = value  # `a and b` is the tensor itself
            return None

        return jump

    with contextlib.ExitStack() as stack:
        stack.enter_context(inspector.writes.noted())
        for name, convert, whole in (
            ("bool_impl", bool, False),
            ("nb_int_impl", int, True),
            ("nb_index_impl", int, True),
            ("method_item", Tensor.item, True),
            ("method_tolist", Tensor.tolist, True),
        ):
            stack.enter_context(converting(name, convert, whole))
        for kind in _translators(symbolic_convert.InstructionTranslatorBase):
            table = list(kind.dispatch_table)
            for code in _JUMPS:
                if table[code] is not None:
                    table[code] = jumping(table[code], dis.opname[code])
            stack.enter_context(patch.object(kind, "dispatch_table", table))
        yield


def _translators(kind: Any) -> list[Any]:
    """The classes that go through a frame's instructions."""
    own = [kind] if "dispatch_table" in kind.__dict__ else []
    return own + [one for derived in kind.__subclasses__() for one in _translators(derived)]


def _asserts(tx: Any, name: str) -> bool:
    """Whether a jump belongs to an ``assert``, which is no part of a training step."""
    if "IF_TRUE" not in name or "OR_POP" in name:
        return False
    found = symbolic_convert._detect_and_normalize_assert_statement(tx, operator.truth, False)
    if found:
        tx.pop()  # the message that it has pushed
    return found

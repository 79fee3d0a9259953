"""From the cleaned-up joint graph to :class:`hap.graph.Graph`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._functorch._aot_autograd import descriptors
from torch.fx import GraphModule, Node

from hap.errors import TraceError
from hap.graph import Graph, Input, InputKind, Operator, Output, Ref, Tensor
from hap.trace.memory import check_memory
from hap.trace.outputs import parse
from hap.trace.sources import module_of, source_of

_ROOT = "module."
_GIVEN = (descriptors.ParamAOTInput, descriptors.BufferAOTInput, descriptors.PlainAOTInput)
_IGNORED_KEYWORDS = {"pin_memory": False, "layout": torch.strided}


@dataclass(frozen=True, slots=True)
class Signature:
    """The names behind a trace.

    Attributes:
        parameters, buffers: all names with their tensors, tied ones under each of their names.
        inputs: names of the example tensors, in order.
        examples: the example tensors, in order.
    """

    parameters: tuple[tuple[str, torch.Tensor], ...]
    buffers: tuple[tuple[str, torch.Tensor], ...]
    inputs: tuple[str, ...]
    examples: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, module: nn.Module, inputs: Sequence[str], examples: Sequence[torch.Tensor]) -> Signature:
        """Reads the names of a module."""
        parameters = tuple(module.named_parameters(remove_duplicate=False))
        return cls(parameters, tuple(module.named_buffers(remove_duplicate=False)), tuple(inputs), tuple(examples))


class _Builder:
    def __init__(self, joint: GraphModule, signature: Signature, rng: Node | None) -> None:
        self.joint = joint
        self.signature = signature
        self.rng = rng
        self.graph = Graph()
        self.values: dict[Node, int | tuple[int | None, ...]] = {}
        self.given: dict[Node, torch.Tensor] = {}
        self.tensor_names: set[str] = set()
        self.operator_names: dict[str, int] = {}
        output = next(node for node in joint.graph.nodes if node.op == "output")
        self.results: tuple[Any, ...] = tuple(output.args[0])
        self.result_descriptors: list[Any] = list(output.meta["desc"])
        described = dict(zip(self.result_descriptors, self.results, strict=True))
        plain = [value for at, value in described.items() if isinstance(at, descriptors.PlainAOTOutput)]
        # The last plain output of the root module is the string that describes the others.
        self.paths, self.losses, self.graph.output_spec = parse(plain[-1])

    def tensor(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> int:
        unique, suffix = name, 1
        while unique in self.tensor_names:
            unique, suffix = f"{name}_{suffix}", suffix + 1
        self.tensor_names.add(unique)
        self.graph.tensors.append(Tensor(unique, tuple(shape), dtype))
        return len(self.graph.tensors) - 1

    def add_input(self, kind: InputKind, name: str, tensor_name: str, like: torch.Tensor) -> int:
        index = self.tensor(tensor_name, like.shape, like.dtype)
        self.graph.inputs.append(Input(kind, name, index))
        return index

    # ---- inputs

    def inputs(self) -> None:
        by_name: dict[tuple[str, str], int] = {}
        for kind, named in (("parameter", self.signature.parameters), ("buffer", self.signature.buffers)):
            first: dict[int, str] = {}
            for name, tensor in named:
                if id(tensor) in first:
                    self.graph.tied[name] = first[id(tensor)]
                    by_name[kind, name] = by_name[kind, first[id(tensor)]]
                else:
                    first[id(tensor)] = name
                    by_name[kind, name] = self.add_input(kind, name, name, tensor)  # type: ignore[arg-type]
        for name, tensor in zip(self.signature.inputs, self.signature.examples, strict=True):
            by_name["input", name] = self.add_input("input", name, name, tensor)
        self.by_name = by_name
        tensors: dict[tuple[str, str], torch.Tensor] = {
            **{("parameter", name): tensor for name, tensor in self.signature.parameters},
            **{("buffer", name): tensor for name, tensor in self.signature.buffers},
            **{("input", name): x for name, x in zip(self.signature.inputs, self.signature.examples, strict=True)},
        }
        for node in self.joint.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self.placeholder(node)
                if isinstance(node.meta.get("desc"), _GIVEN):
                    self.given[node] = tensors[self.key(node.meta["desc"])]
            elif node.op == "get_attr":
                self.values[node] = self.constant(node)

    def placeholder(self, node: Node) -> int:
        if node is self.rng:
            index = self.tensor("rng", (2,), torch.int64)
            self.graph.inputs.append(Input("rng", "rng", index))
            return index
        described = node.meta["desc"]
        if isinstance(described, descriptors.TangentAOTInput):
            if isinstance(described.output, descriptors.InputMutationAOTOutput):
                # What changes is a trained parameter, or its new value could be differentiated.
                self.refuse_mutation(described.output)
            assert isinstance(described.output, descriptors.PlainAOTOutput), described
            path = self.paths[described.output.idx]
            if not node.users:
                raise TraceError(
                    f'no gradient flows from output "{path}" to a parameter or input, though it requires grad: check '
                    "that the module's forward does not detach it"
                )
            return self.add_input("tangent", path, f"tangent.{path}" if path else "tangent", node.meta["val"])
        return self.by_name[self.key(described)]

    def refuse_mutation(self, described: descriptors.InputMutationAOTOutput) -> None:
        """Raises that a parameter or input is changed in place, or a buffer to a value that requires grad."""
        kind, name = self.key(described.mutated_input)
        node = dict(zip(self.result_descriptors, self.results, strict=True)).get(described)
        source = source_of(node) if isinstance(node, Node) else ""
        where = f"{source}: " if source else ""
        if kind == "buffer":
            raise TraceError(f'{where}the new value of buffer "{name}" requires grad: `.detach()` it')
        raise TraceError(
            f'{where}the forward changes {kind} "{name}" in place: work on a copy (`.clone()`), or make it a buffer'
        )

    def key(self, described: Any) -> tuple[str, str]:
        """Kind and name of a parameter, buffer or input from its descriptor."""
        if isinstance(described, descriptors.ParamAOTInput):
            return "parameter", described.target.removeprefix(_ROOT)
        if isinstance(described, descriptors.BufferAOTInput):
            return "buffer", described.target.removeprefix(_ROOT)
        if isinstance(described, descriptors.PlainAOTInput):
            return "input", self.signature.inputs[described.idx]
        raise TraceError(f"hap cannot train a module with an input of kind {type(described).__name__} ({described})")

    def constant(self, node: Node) -> int:
        value: Any = self.joint
        for part in str(node.target).split("."):
            value = getattr(value, part)
        assert isinstance(value, torch.Tensor), (node.target, type(value))
        if value.requires_grad:
            raise TraceError(
                f"{source_of(node) or 'the module'}: reads a tensor of shape {tuple(value.shape)} that requires grad "
                "but is no parameter of the module: register it as an nn.Parameter, or pass it as an input"
            )
        number = sum(item.kind == "constant" for item in self.graph.inputs)
        index = self.add_input("constant", str(number), f"constant.{number}", value)
        self.graph.constants[index] = value.detach()
        return index

    # ---- operators

    def operators(self) -> None:
        for node in self.joint.graph.nodes:
            if node.op != "call_function" or node.target is operator.getitem:
                continue
            if not isinstance(node.target, torch._ops.OpOverload):
                raise TraceError(f"{source_of(node)}: hap cannot train a module that calls {node.target}")
            check_memory(node, self.given)
            base = node.target._schema.name.split("::")[1].strip("_")
            number = self.operator_names.get(base, 0)
            self.operator_names[base] = number + 1
            name = f"{base}_{number}" if number else base
            args, kwargs = self.converted(node.args), self.converted(dict(node.kwargs))
            kwargs = {k: v for k, v in kwargs.items() if k not in _IGNORED_KEYWORDS or v != _IGNORED_KEYWORDS[k]}
            self.graph.operators.append(
                Operator(
                    name=name,
                    target=node.target,
                    args=args,
                    kwargs=kwargs,
                    results=self.written(node, name),
                    source=source_of(node),
                    module=module_of(node),
                    phase="backward" if node.meta.get("partitioner_tag") == "is_backward" else "forward",
                )
            )

    def written(self, node: Node, name: str) -> tuple[int | None, ...]:
        """Makes the tensors that a node writes; those that nobody reads do not exist."""
        value = node.meta["val"]
        assert value is not None, node
        if isinstance(value, torch.Tensor):
            index = self.tensor(name, self.static(node, value), value.dtype)
            self.values[node] = index
            return (index,)
        read = {user.args[1]: user for user in node.users}
        results: list[int | None] = []
        for position, item in enumerate(value):
            if position in read and item is not None:
                results.append(self.tensor(f"{name}.{position}", self.static(node, item), item.dtype))
                self.values[read[position]] = results[-1]  # type: ignore[assignment]
            else:
                results.append(None)
        for user in node.users:
            if user not in self.values:
                self.values[user] = results[user.args[1]]  # type: ignore[index, assignment]
        return tuple(results)

    def static(self, node: Node, value: torch.Tensor) -> tuple[int, ...]:
        if not all(isinstance(size, int) for size in value.shape):
            raise TraceError(
                f"{source_of(node) or node.name}: the shape of the result depends on the values of tensors; make it "
                "fixed (for example, mask instead of selecting)"
            )
        return tuple(value.shape)

    def converted(self, value: Any) -> Any:
        """Arguments with :class:`Ref` for nodes; immutable lists become lists."""
        if isinstance(value, Node):
            index = self.values[value]
            assert isinstance(index, int), value
            return Ref(index)
        if isinstance(value, tuple):
            return tuple(self.converted(item) for item in value)
        if isinstance(value, list):
            return [self.converted(item) for item in value]
        if isinstance(value, dict):
            return {key: self.converted(item) for key, item in value.items()}
        return value

    # ---- outputs

    def outputs(self) -> None:
        gradients: dict[tuple[str, str], int | None] = {}
        updates: dict[str, int | None] = {}
        plain: dict[int, int | None] = {}
        for described, node in zip(self.result_descriptors, self.results, strict=True):
            index = self.values[node] if isinstance(node, Node) else None
            assert not isinstance(index, tuple)
            if described is None:
                # The gradient of an input that requires none.
                assert node is None, node
            elif isinstance(described, descriptors.PlainAOTOutput):
                plain[described.idx] = index
            elif isinstance(described, descriptors.GradAOTOutput):
                key = self.key(described.grad_of)
                first = (key[0], self.graph.tied.get(key[1], key[1]))
                if index is not None:
                    assert gradients.get(first) is None, f"two gradients of {first}"
                    gradients[first] = index
            elif isinstance(described, descriptors.InputMutationAOTOutput):
                kind, name = self.key(described.mutated_input)
                if kind != "buffer":
                    self.refuse_mutation(described)
                updates[name] = index
            else:
                raise TraceError(f"hap cannot train a module with an output of kind {type(described).__name__}")
        self.add_plain(plain)
        trained = {name for name, tensor in self.signature.parameters if tensor.requires_grad}
        for item in [item for item in self.graph.inputs if item.kind == "parameter" and item.name in trained]:
            gradient = gradients.get(("parameter", item.name))
            self.graph.outputs.append(Output("gradient", item.name, gradient, item.tensor))
        for item in [item for item in self.graph.inputs if item.kind == "buffer"]:
            update = updates.get(item.name)
            if update is not None:
                self.graph.outputs.append(Output("buffer", item.name, update, item.tensor))
        for name, example in zip(self.signature.inputs, self.signature.examples, strict=True):
            if example.requires_grad:
                gradient = gradients.get(("input", name))
                self.graph.outputs.append(Output("input_gradient", name, gradient, self.by_name["input", name]))

    def add_plain(self, plain: dict[int, int | None]) -> None:
        for position, path in enumerate(self.paths):
            kind = "loss" if position in self.losses else "output"
            assert plain[position] is not None, path
            self.graph.outputs.append(Output(kind, path, plain[position]))  # type: ignore[arg-type]


def build(joint: GraphModule, signature: Signature, rng: Node | None) -> Graph:
    """The graph, with names from ``signature``; ``rng`` is the placeholder that the clean-up made, if any."""
    builder = _Builder(joint, signature, rng)
    builder.inputs()
    builder.operators()
    builder.outputs()
    return builder.graph

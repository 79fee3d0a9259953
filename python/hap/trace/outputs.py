"""Rebuilding the module's output from the flat list of its tensors."""

from __future__ import annotations

import ast
import collections
import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from hap.graph import Graph, Output
from hap.trace.inputs import unique
from hap.trace.root import remembered_class

logger = logging.getLogger("hap")


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The structure of a module's output.

    Attributes:
        kind: ``tensor``: entry ``index`` of the flat list; ``constant``: ``value`` (``None`` also for what is no part
            of a training step, such as caches); the others: a container of class ``cls``.
        children: the entries of a container with their keys, field names or positions, in order.
        factory: what a ``defaultdict`` makes its missing entries with.
    """

    kind: Literal["tensor", "constant", "mapping", "sequence", "named_tuple", "dataclass"]
    index: int = -1
    value: Any = None
    cls: Any = None
    children: tuple[tuple[Any, OutputSpec], ...] = ()
    factory: Any = None

    def build(self, tensors: Sequence[Tensor | Any]) -> Any:
        """The module's output with these tensors: what stands at position i of the graph's losses and outputs."""
        if self.kind == "tensor":
            return tensors[self.index]
        if self.kind == "constant":
            return self.value
        assert self.cls is not None
        built = {key: child.build(tensors) for key, child in self.children}
        if self.kind == "named_tuple":
            return self.cls(*built.values())
        if self.kind == "sequence":
            return self.cls(built.values())
        if issubclass(self.cls, collections.defaultdict):
            return self.cls(self.factory, built)
        if not hasattr(self.cls, "__dataclass_fields__"):
            return self.cls(built)
        # transformers' ModelOutput is both a dictionary and a dataclass.
        fields = {field.name: field for field in dataclasses.fields(self.cls)}
        made = self.cls(**{key: value for key, value in built.items() if key not in fields or fields[key].init})
        if self.kind == "dataclass":
            for key, value in built.items():
                # Also fields that the constructor does not take, or changes; also where they are frozen.
                object.__setattr__(made, key, value)
        return made

    def canonical(self) -> list[Any]:
        """Plain data that is equal for equal structures."""
        name = "" if self.cls is None else f"{self.cls.__module__}.{self.cls.__qualname__}"
        children = [[repr(key), child.canonical()] for key, child in self.children]
        return [self.kind, self.index, repr(self.value), name, children]


def parse(description: str) -> tuple[list[str], list[int], OutputSpec]:
    """Reads what :class:`hap.trace.root.Root` wrote: paths of the tensors, which are losses, and the structure."""
    paths, losses, structure = ast.literal_eval(description)
    return unique(paths), losses, _spec(structure)


def follow_tangents(graph: Graph) -> None:
    """Let differentiable outputs be as their tangents are, sharded or whole; but scalars, which are whole."""
    tangents = {entry.name: entry.tensor for entry in graph.inputs if entry.kind == "tangent"}
    for position, output in enumerate(graph.outputs):
        if output.kind == "loss" and output.tensor is not None and graph.tensors[output.tensor].shape:
            graph.outputs[position] = Output("output", output.name, output.tensor, tangents[output.name])


def _spec(item: tuple[Any, ...]) -> OutputSpec:
    if item[0] == "tensor":
        return OutputSpec("tensor", index=item[1])
    if item[0] == "constant":
        return OutputSpec("constant", value=item[1])
    if item[0] == "float":
        return OutputSpec("constant", value=float(item[1]))
    if item[0] == "left_out":
        _, path, number = item
        logger.warning(
            'the output "%s" is a %s, which hap does not rebuild: it is None in what the module returns under hap',
            path,
            remembered_class(number).__name__,
        )
        return OutputSpec("constant")
    kind, number, children, factory = item
    return OutputSpec(
        kind,
        cls=remembered_class(number),
        children=tuple((key, _spec(child)) for key, child in children),
        factory=None if factory is None else remembered_class(factory),
    )

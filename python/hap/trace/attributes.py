"""What a forward does with attributes of the user's objects: caches are kept out of the graph, state is refused.

Capture follows assignments to attributes, and to entries of lists and dicts, but drops them afterwards, so that each
step computes anew what eager PyTorch would keep. That is the same for a cache of constants (masks, tables of angles),
and for values that are only left for others to read. It is not for state: what depends on the inputs, parameters or
random numbers of one call and is read in the next.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.lists import BaseListVariable, CommonListMethodsVariable, DequeVariable, ListVariable
from torch._dynamo.variables.sets import SetVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable
from torch.fx import Node

from hap.errors import TraceError
from hap.trace.root import scope
from hap.trace.sources import dotted, source_of
from hap.trace.state import Change, attribute_change, changed_state, entries_change
from hap.trace.writes import Writes, memory, tensors

# Their first operand gives shape, element type and device alone.
_LIKE = {"zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"}
_LIKE |= {"new_tensor", "size", "dim", "getattr"}
# Their other operands give element type and device alone.
_CONVERSIONS = {"to", "type_as"}
_RANDOM = {
    "rand",
    "randn",
    "randint",
    "randperm",
    "rand_like",
    "randn_like",
    "randint_like",
    "bernoulli",
    "multinomial",
}
_RANDOM |= {"normal", "dropout", "uniform", "bernoulli", "exponential", "log_normal", "cauchy", "geometric", "poisson"}

_READ = ["mp_subscript_impl", "sq_item_impl", "sq_contains", "sq_length", "mp_length", "tp_iter_impl"]
_READ += ["unpack_var_sequence", "call_method"]
"""Where capture reads from a list or dict."""
_ONLY_WRITE = {"append", "appendleft", "extend", "insert", "update", "clear", "__setitem__"}
"""Methods of lists and dicts that tell nothing of what is inside."""
_CONTAINER = "a container of plain tensors, which would keep its first value"


@dataclass
class Attributes:
    """Attributes that a captured forward reads and assigns, by path: ``layers.0.cache``.

    Attributes:
        read: those that it reads, or looks for, before it assigns them.
        assigned: the last value of each that it assigns: a node of the graph where it is a tensor, else ``None``.
        looked_into: lists and dicts of which it reads an entry while some are there from before.
        containers: those that it changes, as capture sees them, by path.
        places: where attributes that it assigns stand, by path: the object and the value, as capture sees them.
        writes: what the calls of the forward write to.
        settled: those after whose first assignment the next call computes the same, such as flags.
    """

    writes: Writes
    read: set[str] = field(default_factory=set)
    assigned: dict[str, Node | None] = field(default_factory=dict)
    looked_into: set[str] = field(default_factory=set)
    containers: dict[str, Any] = field(default_factory=dict)
    places: dict[str, tuple[Any, str, Any]] = field(default_factory=dict)
    settled: list[str] = field(default_factory=list)

    def note_read(self, item: Any, name: str) -> None:
        """An attribute of ``item`` is read."""
        path = _path(item, name)
        if path is not None and path not in self.assigned:
            self.read.add(path)

    def note_assigned(self, item: Any, name: str, value: Any) -> None:
        """An attribute of ``item`` is assigned."""
        path = _path(item, name)
        if path is not None:
            proxy = getattr(value, "proxy", None)
            self.assigned[path] = proxy.node if isinstance(proxy, torch.fx.Proxy) else None
            self.places[path] = (item, name, value)

    def note_entries_read(self, container: Any) -> None:
        """An entry of a list or dict is read, or looked for."""
        path = _container_path(container)
        if path is not None and (path not in self.containers or _has_old_entries(container)):
            self.looked_into.add(path)

    def note_entries_changed(self, container: Any) -> None:
        """A list or dict is about to change."""
        path = _container_path(container)
        if path is not None:
            self.containers[path] = container

    def changes(self, root: Any) -> list[Change]:
        """What a capture of ``root`` leaves behind."""
        names = scope(root)
        found = []
        for path, (item, name, value) in self.places.items():
            # Only of objects it is known what is read of them.
            read = path in self.read or not isinstance(item, UserDefinedObjectVariable)
            found.append(attribute_change(path, item, name, value, names, read))
        found += [entries_change(path, container, names) for path, container in self.containers.items()]
        return [change for change in found if change is not None]

    def under(self, source: str) -> list[str]:
        """The attributes of an object that are assigned, by the name that capture has for it."""
        return [path for path, (item, _, _) in self.places.items() if item.source.name == source]

    def check(self) -> None:
        """Refuses tensors as state.

        Raises:
            TraceError: a tensor that depends on more than constants replaces an attribute that the forward has read, or
                is put into a list or dict that it has read.
        """
        for path, container in self.containers.items():
            for entry in _new_entries(container, container.source.name):
                if path in self.looked_into and not self.is_constant(entry):
                    raise TraceError(changed_state(path, source_of(entry), _CONTAINER))
        for path, node in self.assigned.items():
            if node is not None and path in self.read and not self.is_constant(node):
                source = source_of(node)
                raise TraceError(changed_state(path, source))

    def is_constant(self, node: Node) -> bool:
        """Whether a value depends on nothing that differs between steps."""
        waiting, seen = [node], {node}
        while waiting:
            one = waiting.pop()
            if one.op == "placeholder" and not self._is_constant_input(one):
                return False
            called = _name(one)
            if called.strip("_") in _RANDOM:
                return False
            operands = one.all_input_nodes
            if called in _LIKE:
                operands = []
            elif called in _CONVERSIONS:
                operands = operands[:1]
            # What is written to its memory counts too.
            places = {memory(value) for value in tensors(one.meta.get("example_value"))}
            writers = [writer for place in places if place for writer in self.writes.of(one).get(place, [])]
            for other in [*operands, *writers]:
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return True

    def _is_constant_input(self, node: Node) -> bool:
        """Whether an input of the graph is a buffer or a plain tensor that no step changes."""
        source = getattr(node, "_dynamo_source", None)
        value = node.meta.get("example_value")
        if source is None or not isinstance(value, torch.Tensor) or value._version:
            return False
        plain = node.type is not None and not issubclass(node.type, torch._subclasses.fake_tensor.FakeTensor)
        return (plain or "_buffers" in source.name) and dotted(source.name) not in self.assigned


def tensors_read(forward: torch.fx.GraphModule, root: Any) -> dict[Node, torch.Tensor]:
    """The tensors of the user's that a captured graph computes with, as far as capture can say where they are."""
    found = {}
    for node in forward.graph.nodes:
        source = getattr(node, "_dynamo_source", None)
        if node.op == "placeholder" and source is not None and node.users:
            with contextlib.suppress(Exception):
                found[node] = eval(source.name, scope(root))
    return {node: value for node, value in found.items() if isinstance(value, torch.Tensor)}


def _container_path(container: Any) -> str | None:
    """Where the user keeps a list, dict or set; ``None`` for new ones, and for a module's tables of tensors."""
    source = getattr(container, "source", None)
    if source is None or not isinstance(container, (CommonListMethodsVariable, ConstDictVariable, SetVariable)):
        return None
    return None if source.name.endswith(("._buffers", "._parameters", "._modules")) else dotted(source.name)


def _has_old_entries(container: Any) -> bool:
    """Whether some of the entries of a list or dict were there before the forward."""
    entries = container.items.values() if isinstance(container, ConstDictVariable) else container.items
    return any(entry.source is not None and entry.source.name.startswith(container.source.name) for entry in entries)


def _new_entries(value: Any, source: str) -> Iterator[Node]:
    """The tensors inside that were not there before; ``source`` is that of the whole."""
    if isinstance(value, LazyVariableTracker) and not value.is_realized():
        return
    try:
        value = value.realize()
    except Exception:  # some can be made only within a capture
        return
    if isinstance(value, (BaseListVariable, ConstDictVariable)):
        for entry in value.items.values() if isinstance(value, ConstDictVariable) else value.items:
            yield from _new_entries(entry, source)
    proxy = getattr(value, "proxy", None)
    if isinstance(proxy, torch.fx.Proxy) and (value.source is None or not value.source.name.startswith(source)):
        yield proxy.node


def _path(item: Any, name: str) -> str | None:
    source = getattr(item, "source", None)
    return None if source is None else dotted(f"{source.name}.{name}")


def _name(node: Node) -> str:
    return str(node.target) if isinstance(node.target, str) else getattr(node.target, "__name__", "")


@contextlib.contextmanager
def watched(attributes: Attributes) -> Iterator[None]:
    """Within, notes what a capture reads and assigns."""
    reads, looks, assigns = (
        UserDefinedObjectVariable.var_getattr,
        UserDefinedObjectVariable.call_obj_hasattr,
        SideEffects.store_attr,
    )

    def var_getattr(self: Any, tx: Any, name: str) -> Any:
        attributes.note_read(self, name)
        return reads(self, tx, name)

    def call_obj_hasattr(self: Any, tx: Any, name: str) -> Any:
        attributes.note_read(self, name)
        return looks(self, tx, name)

    def store_attr(self: Any, item: Any, name: str, value: Any, *rest: Any, **others: Any) -> Any:
        attributes.note_assigned(item, name, value)
        return assigns(self, item, name, value, *rest, **others)

    changes = SideEffects.mutation

    def mutation(self: Any, item: Any) -> None:
        attributes.note_entries_changed(item)
        changes(self, item)

    def reading(kind: Any, method: str) -> Any:
        original = getattr(kind, method)

        def read(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            if method != "call_method" or args[0] not in _ONLY_WRITE:
                attributes.note_entries_read(self)
            return original(self, tx, *args, **kwargs)

        return patch.object(kind, method, read)

    with contextlib.ExitStack() as stack:
        for kind, method in itertools.product((ListVariable, DequeVariable, ConstDictVariable), _READ):
            if hasattr(kind, method):
                stack.enter_context(reading(kind, method))
        stack.enter_context(patch.object(SideEffects, "mutation", mutation))
        stack.enter_context(patch.object(UserDefinedObjectVariable, "var_getattr", var_getattr))
        stack.enter_context(patch.object(UserDefinedObjectVariable, "call_obj_hasattr", call_obj_hasattr))
        stack.enter_context(patch.object(SideEffects, "store_attr", store_attr))
        yield

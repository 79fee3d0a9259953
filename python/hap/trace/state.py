"""Plain values that a forward changes: what counts on is refused, flags and caches settle.

Capture drops changes of Python state (``self.step += 1``), so that each step computes with the first value. Whether
that makes a difference shows when the forward is captured again with the values that it has left.
"""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.lists import BaseListVariable, TupleVariable
from torch._dynamo.variables.sets import SetVariable
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from hap.errors import TraceError
from hap.trace.containers import is_constant
from hap.trace.sources import source_of

_MISSING = object()


class _UnknownError(Exception):
    """A value of the capture is none that can be put into an attribute."""


@dataclass(frozen=True)
class Change:
    """A value that a forward leaves behind.

    Attributes:
        path: the user's path of it, ``layers.0.step``.
        holder: the object, Python module, class or cell whose attribute it is; a list, dict or set itself.
        name: of the attribute; empty for a list, dict or set, whose entries change.
        before: the value; of a list, dict or set a copy; ``_MISSING`` where there is none.
        after: the value that the forward leaves; fakes stand for tensors.
        read: whether the forward may read what it finds, before it changes it.
        made: the tensors in ``after`` that the forward has made, with the nodes that make them.
    """

    path: str
    holder: Any
    name: str
    before: Any
    after: Any
    read: bool = True
    made: Sequence[tuple[Tensor, Node]] = ()

    @property
    def is_plain(self) -> bool:
        """Whether more than tensors changes that is read: a number, a flag, how many entries there are."""
        if not self.read:
            return False
        if self.name and any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(self.after)):
            return False
        return bool(_signature(self.before) != _signature(self.after))

    def __str__(self) -> str:
        values = (
            f" (from {self.before} to {self.after})" if is_constant(self.before) and is_constant(self.after) else ""
        )
        return f'"{self.path}"{values}'


def attribute_change(path: str, item: Any, name: str, value: Any, scope: dict[str, Any], read: bool) -> Change | None:
    """What capture knows of an attribute that is assigned; ``None`` if that is not enough, or it is registered."""
    try:
        holder = _original(item, scope)
        if isinstance(holder, nn.Module) and name in {**holder._parameters, **holder._buffers, **holder._modules}:
            return None
        made: list[tuple[Tensor, Node]] = []
        return Change(path, holder, name, _get(holder, name), _value(value, scope, made), read, made)
    except Exception:  # outside of a capture, Dynamo's variables fail in many ways
        return None


def entries_change(path: str, container: Any, scope: dict[str, Any]) -> Change | None:
    """What capture knows of the entries of a list or dict; ``None`` if that is not enough."""
    try:
        holder = _original(container, scope)
        made: list[tuple[Tensor, Node]] = []
        return Change(path, holder, "", copy.copy(holder), _entries(container, scope, made), True, made)
    except Exception:  # as above
        return None


@dataclass(frozen=True)
class Captured:
    """A captured forward, and what it leaves behind.

    Attributes:
        forward: the graph.
        changes: what it leaves.
        read: the user's tensors that it computes with, by the placeholders that stand for them.
        is_constant: whether a node depends on nothing that differs between steps.
    """

    forward: GraphModule
    changes: Sequence[Change]
    read: Mapping[Node, Tensor]
    is_constant: Callable[[Node], bool]

    def computes_as(self, other: Captured) -> bool:
        """Whether the graphs are the same, to the numbers in them and the tensors that they read."""
        own, others = self._calls(), other._calls()
        return len(own) == len(others) and all(map(_same, own, others))

    def _calls(self) -> list[tuple[Any, ...]]:
        """By node what it does, with its operands by number: the names that capture gives to tensors may differ."""
        found: list[tuple[Any, ...]] = []
        for part in self.forward.modules():
            if isinstance(part, GraphModule):
                nodes = [node for node in part.graph.nodes if node.op != "placeholder" or node.users]
                number = {node: f"%{index}" for index, node in enumerate(nodes)}
                for node in nodes:
                    args = repr(map_arg((node.args, node.kwargs), number.__getitem__))
                    found.append((node.op, self.read.get(node, node.target), args))
        return found


def check_settled(first: Captured, again: Callable[[], Captured]) -> list[str]:
    """Refuses a forward that computes with a value that it has changed, or a tensor made, in the call before.

    Returns the paths of the flags that the next call finds set, and computes the same; none beside kept tensors, as the
    next call reads what this one computes.

    Args:
        first: the forward as it is.
        again: captures it once more.

    Raises:
        TraceError: with the values that the forward leaves it computes something else, each time or after the first.
    """
    changed = {change.path: change for change in first.changes if change.is_plain}
    kept = [
        (change.path, tensor, node)
        for change in first.changes
        if change.read
        for tensor, node in change.made
        if not first.is_constant(node)
    ]
    if not changed and not kept:
        return []
    with contextlib.suppress(_UnknownError), _applied(first.changes):
        second = _tried(again)
        for path, tensor, node in kept:
            if any(one is tensor for one in second.read.values()):
                raise TraceError(changed_state(path, source_of(node), "in which it keeps a tensor for the next call"))
        counting = {change.path: changed.get(change.path, change) for change in second.changes if change.is_plain}
        # A graph that computes what is kept is not the one that reads it.
        compared = not _holds_tensors(first.changes)
        if compared and not first.computes_as(second):
            raise TraceError(_message(counting or changed))
        if counting:
            with _applied(second.changes):
                if not second.computes_as(_tried(again)):
                    raise TraceError(_message(counting))
        return [path for path in changed if path not in counting] if compared else []
    return []


def changed_state(path: str, source: str = "", what: str = "a plain tensor, which would keep its first value") -> str:
    """The message for tensors that the forward changes."""
    where = f"{source}: " if source else ""
    return f'{where}the forward changes the attribute "{path}", {what}: register it as a buffer with `register_buffer`'


def _message(changes: Mapping[str, Change]) -> str:
    named = ", ".join(map(str, changes.values()))
    return (
        f"the forward changes Python state, {named}, by which its next call computes something else, but hap would "
        "train with what this call computes: keep numbers in a buffer (`register_buffer`), or change them outside of "
        "the forward and pass them as inputs"
    )


def _tried(again: Callable[[], Captured]) -> Captured:
    """Captured once more; where that fails nothing is known, and the warning about Python state remains."""
    try:
        return again()
    except Exception as error:
        raise _UnknownError from error


def _holds_tensors(changes: Sequence[Change]) -> bool:
    """Whether tensors are kept."""
    return any(isinstance(leaf, Tensor) for change in changes for leaf in pytree.tree_leaves(change.after))


def _same(call: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two calls are the same; tensors are told apart by identity."""
    (op, target, args), (other_op, other_target, other_args) = call, other
    return op == other_op and args == other_args and (target is other_target or _equal(target, other_target))


def _equal(target: Any, other: Any) -> bool:
    return not isinstance(target, Tensor) and not isinstance(other, Tensor) and bool(target == other)


def _signature(value: Any) -> Any:
    leaves, structure = pytree.tree_flatten(value)
    return [_mark(leaf) for leaf in leaves], structure


def _mark(leaf: Any) -> Any:
    """What two values have in common that are the same but for numbers in tensors."""
    if isinstance(leaf, (set, frozenset)):
        return sorted(map(repr, leaf))
    return Tensor if isinstance(leaf, Tensor) else (type(leaf), repr(leaf)) if is_constant(leaf) else id(leaf)


def _original(variable: Any, scope: dict[str, Any]) -> Any:
    """The user's object that a variable of the capture stands for."""
    try:
        return eval(variable.source.name, dict(scope))
    except Exception as error:
        raise _UnknownError from error


def _value(variable: VariableTracker, scope: dict[str, Any], made: list[tuple[Tensor, Node]]) -> Any:
    """The value that a variable of the capture stands for; adds the tensors in it that are results to ``made``."""
    if isinstance(variable, LazyVariableTracker) and not variable.is_realized():
        return _original(variable, scope)
    variable = variable.realize()
    holds_more = isinstance(variable, (BaseListVariable, ConstDictVariable, SetVariable))
    if variable.is_python_constant() and not (holds_more and variable.source):
        return variable.as_python_constant()
    if variable.source is not None:
        return _original(variable, scope)
    if holds_more:
        return _entries(variable, scope, made)
    node = getattr(getattr(variable, "proxy", None), "node", None)
    example = node.meta.get("example_value") if isinstance(node, Node) else None
    if not isinstance(node, Node) or not isinstance(example, Tensor):
        raise _UnknownError
    made.append((example.detach(), node))
    return made[-1][0]


def _entries(variable: Any, scope: dict[str, Any], made: list[tuple[Tensor, Node]]) -> Any:
    if isinstance(variable, ConstDictVariable):
        return {key.vt.as_python_constant(): _value(x, scope, made) for key, x in variable.items.items()}
    if isinstance(variable, SetVariable):
        return {key.vt.as_python_constant() for key in variable.items}
    entries = [_value(x, scope, made) for x in variable.items]
    return tuple(entries) if isinstance(variable, TupleVariable) else entries


def _get(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name)
    except (AttributeError, ValueError):  # the latter from an empty cell
        return _MISSING


def _put(holder: Any, name: str, value: Any) -> None:
    if not name:
        holder.clear()
        (holder.extend if hasattr(holder, "extend") else holder.update)(value)
    elif value is _MISSING:
        delattr(holder, name)
    elif isinstance(holder, (types.ModuleType, types.CellType, type)):
        setattr(holder, name, value)
    else:
        object.__setattr__(holder, name, value)


@contextlib.contextmanager
def _applied(changes: Sequence[Change]) -> Iterator[None]:
    """Within, the values are those that the forward leaves."""
    with contextlib.ExitStack() as stack:
        for change in changes:
            # A value of its class is no value of the object's own.
            own = getattr(change.holder, "__dict__", None)
            before = _MISSING if own is not None and change.name and change.name not in own else change.before
            stack.callback(_put, change.holder, change.name, before)
            _put(change.holder, change.name, change.after)
        yield

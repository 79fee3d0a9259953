"""Which calls of a captured forward write to which memory, by what their operators declare when they run on fakes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._dynamo import utils
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_STATISTICS = ("running_mean", "running_var")
"""Batch normalisation's; most of its operators write to them without declaring it."""


def memory(tensor: Tensor) -> int | None:
    """What tells apart the memory of tensors that live; ``None`` for those, such as sparse ones, without one."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def written(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that a call of an operator of ATen writes to, also those in lists."""
    schema = getattr(operator, "_schema", None)
    if schema is None:  # one that calls others, which are none of ATen
        return tensors((args, kwargs))
    given = {**dict(zip([argument.name for argument in schema.arguments], args, strict=False)), **kwargs}
    updates = given.get("training", given.get("train", True))
    return tensors(
        [
            given.get(argument.name)
            for argument in schema.arguments
            if (argument.alias_info is not None and argument.alias_info.is_write)
            or (argument.name in _STATISTICS and updates)
        ]
    )


def tensors(value: Any) -> list[Tensor]:
    """Those inside, at every depth."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


class Writes:
    """What the calls of one captured graph write to, noted as each is run on fakes."""

    def __init__(self) -> None:
        self._start(None)

    def _start(self, tracer: Any) -> None:
        self._tracer = tracer
        self._writers: dict[int, list[Node]] = {}
        self._seen: set[Node] = set()
        self._kept: list[Tensor] = []

    def note(self, node: Node, values: list[Tensor]) -> None:
        """A node writes to these."""
        for value in values:
            place = memory(value)
            if place is not None:
                self._writers.setdefault(place, []).append(node)
                self._kept.append(value)  # so that no other comes to lie there

    def of(self, node: Node) -> dict[int, list[Node]]:
        """The writers so far, by memory, in the graph of ``node`` or in parts of it.

        A call that has not been run may write to all that it is given.
        """
        for one in node.graph.nodes:
            if one not in self._seen and one.op not in ("placeholder", "get_attr", "output"):
                self._seen.add(one)
                self.note(one, tensors([other.meta.get("example_value") for other in one.all_input_nodes]))
        return self._writers

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Within, a capture's writes are noted."""
        original = utils.run_node

        def run_node(tracer: Any, node: Node, *rest: Any) -> Any:
            if tracer is not self._tracer:  # Dynamo starts anew at times
                self._start(tracer)
            with _Noting(self, node):
                result = original(tracer, node, *rest)
            self._seen.add(node)
            return result

        with patch.object(utils, "run_node", run_node):
            yield


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what is written to while a node is run."""

    supports_higher_order_operators = True

    def __init__(self, writes: Writes, node: Node) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.writes = writes
        self.node = node

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.writes.note(self.node, written(func, args, kwargs))
        return func(*args, **kwargs)

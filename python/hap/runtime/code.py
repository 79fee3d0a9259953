"""From the graph of a rank to what runs it: straight-line code that frees each value after its last use.

Operators are called without the wrapper that :mod:`torch.ops` puts around them, which takes a microsecond each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.fx.graph_module import _exec_with_source

_OPERATOR = re.compile(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)(?=\()")


Runs: TypeAlias = Callable[[list[Any]], list[Any]]
"""What runs: from a list of arguments, which it empties, to a list of results."""
Maker: TypeAlias = Callable[[fx.Graph, str], Runs]
"""From a graph, which is the ``forward`` or the ``backward``, to what runs it."""


class Code:
    """A graph as a function. It takes its arguments as one list, which it empties, and returns a list.

    Args:
        graph: with the code generator that takes arguments so.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        made = graph.python_code("self")
        found: dict[str, Any] = dict(made.globals)

        def bind(match: re.Match[str]) -> str:
            name = "__".join(match.groups())
            found[name] = getattr(getattr(getattr(torch.ops, match[1]), match[2]), match[3])._op
            return name

        self.source = made.src
        _exec_with_source(_OPERATOR.sub(bind, made.src), found)
        self._forward = found["forward"]

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Run it."""
        return self._forward(None, arguments)  # type: ignore[no-any-return]


def straight(graph: fx.Graph, _: str) -> Code:
    """The graph's own code."""
    return Code(graph)

"""``torch.compile`` of what a rank runs: each stretch of operators between two collectives is compiled by itself.

Collectives, and whatever else is no PyTorch operator, run between the stretches as they do without a compiler, so that
nothing is moved across them. Operators of hap's own are opaque to compilers: random numbers stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import getitem
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.fx.graph import _BoxedCodeGen
from torch.fx.graph_module import _exec_with_source

from hap.errors import HapError
from hap.runtime.code import Code, Maker

Options: TypeAlias = Mapping[str, Any]
"""Arguments of ``torch.compile``."""


def compiler(compile: bool | str | Options, device: torch.device) -> Maker | None:
    """What compiles as ``hap.parallelize`` is asked to; ``None`` where it is not.

    Raises:
        HapError: they are none, or the compiler cannot run here.
    """
    if compile is False or compile is None:
        return None
    options: dict[str, Any] = {}
    if isinstance(compile, str):
        options = {"backend": compile}
    elif isinstance(compile, Mapping):
        options = dict(compile)
    elif compile is not True:
        raise HapError(f"compile: expected True, the name of a backend or arguments of torch.compile, got {compile!r}")
    if _records_graphs(options) and device.type == "cuda":
        raise HapError(
            f"compile={compile!r} records CUDA graphs, whose results are overwritten by the next call, while gradients "
            'and what is saved for a backward must stay: give no mode, or mode="max-autotune-no-cudagraphs"'
        )
    try:
        torch.compile(torch.neg, **options)
        if options.get("backend", "inductor") == "inductor" and device.type == "cpu":
            from torch._inductor.cpp_builder import get_cpp_compiler

            get_cpp_compiler()
    except Exception as error:
        raise HapError(
            f"compile={compile!r} does not work here ({type(error).__name__}: {str(error).splitlines()[0]}): "
            "on CPUs the default backend needs a C++ compiler (g++ or clang++, or the path of one in CXX); "
            "torch.compiler.list_backends() tells the backends"
        ) from error
    return lambda graph, _: Code(in_stretches(graph, options))


def _records_graphs(options: Options) -> bool:
    """Whether ``torch.compile`` with these arguments records CUDA graphs."""
    chosen = options.get("options") or {}
    modes = ("reduce-overhead", "max-autotune")
    return (
        options.get("mode") in modes or options.get("backend") == "cudagraphs" or bool(chosen.get("triton.cudagraphs"))
    )


def in_stretches(graph: fx.Graph, options: Options) -> fx.Graph:
    """The same graph with each stretch of operators in one call, which compiles it when it first runs."""
    outer = fx.Graph()
    outer.set_codegen(_BoxedCodeGen())
    made: dict[fx.Node, fx.Node] = {}
    stretch: dict[fx.Node, None] = {}

    def finish() -> None:
        if any(_computes(node) for node in stretch):
            _call(outer, list(stretch), made, options)
        else:
            for node in stretch:
                made[node] = outer.node_copy(node, made.__getitem__)
        stretch.clear()

    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) or (node.target is getitem and node.args[0] in stretch):
            stretch[node] = None
            continue
        finish()
        made[node] = outer.node_copy(node, made.__getitem__)
    return outer


def _computes(node: fx.Node) -> bool:
    """Whether a node is more than a view."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and not any(result.alias_info is not None for result in schema.returns)


def _call(outer: fx.Graph, stretch: list[fx.Node], made: dict[fx.Node, fx.Node], options: Options) -> None:
    """Write one call of a stretch, and its results."""
    inner = fx.Graph()
    within = set(stretch)
    inputs = dict.fromkeys(one for node in stretch for one in node.all_input_nodes if one not in within)
    copies = {one: inner.placeholder(one.name) for one in inputs}
    for node in stretch:
        copies[node] = inner.node_copy(node, copies.__getitem__)
    results = [node for node in stretch if not within.issuperset(node.users)]
    inner.output(tuple(copies[node] for node in results))
    call = outer.call_function(_compiled(inner, options), tuple(made[one] for one in inputs))
    for position, node in enumerate(results):
        made[node] = outer.call_function(getitem, (call, position))


def _compiled(graph: fx.Graph, options: Options) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function of the graph of its own code, as the compiler's limit of variants counts by code."""
    code = graph.python_code("self")
    found = dict(code.globals)
    _exec_with_source(code.src, found)
    compiled = partial(torch.compile(found["forward"], fullgraph=True, **{"dynamic": False, **options}), None)

    def stretch(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return compiled(*arguments)  # type: ignore[no-any-return]

    return stretch

"""From a module and example inputs to its reference program: ``hap.trace``.

The route: a root module flattens inputs and outputs (:mod:`root`), fakes stand for parameters, buffers and inputs
(:mod:`fakes`), Dynamo and the joint export capture forward and backward (:mod:`capture`), the graph is cleaned up
(:mod:`cleanup`) and written as :class:`hap.graph.Graph` (:mod:`build`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from hap.graph import Graph

__all__ = ["trace"]


def trace(
    module: nn.Module,
    example_inputs: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    sharded_outputs: bool = False,
) -> Graph:
    """The joint forward and backward graph of one training step of ``module``.

    The module is traced as it is: its training flags, the surrounding autocast, frozen and tied parameters; it may be
    on the meta device. It is left as it was. Inputs that are no tensors are constants of the trace.

    Args:
        module: any module whose forward can be captured whole.
        example_inputs: positional arguments of a call; of tensors shapes, element types and devices matter, and those
            values that the forward inspects in Python (``if mask.all():``), which the graph is then the graph of.
        example_kwargs: keyword arguments of that call.
        sharded_outputs: as for :func:`hap.parallelize`.

    Raises:
        TraceError: the module cannot be captured; the message names the source line and what to do.
    """
    # torch and Dynamo take seconds to import: only those who trace pay for them.
    from hap.trace.route import trace_module

    return trace_module(module, example_inputs, example_kwargs, sharded_outputs=sharded_outputs)

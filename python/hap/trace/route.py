"""The route from a module to its graph, step by step."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hap.errors import TraceError
from hap.graph import Graph
from hap.trace.build import Signature, build
from hap.trace.capture import capture
from hap.trace.cleanup import clean
from hap.trace.compat import compatible
from hap.trace.fakes import tracing_device, twinned
from hap.trace.inputs import check_examples, flatten_inputs
from hap.trace.inspections import Inspector
from hap.trace.memory import layouts
from hap.trace.outputs import follow_tangents
from hap.trace.refusals import check_call, check_module, translated
from hap.trace.root import TENSOR, Root

logger = logging.getLogger("hap")


def trace_module(
    module: nn.Module,
    example_inputs: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None,
    *,
    values: bool = True,
    sharded_outputs: bool = False,
) -> Graph:
    """See :func:`hap.trace`. Without ``values`` those of the example inputs mean nothing, and none may be inspected."""
    if not isinstance(module, nn.Module):
        raise TraceError(f"expected a torch.nn.Module, got {type(module).__name__}")
    check_examples(example_inputs, example_kwargs)
    check_module(module)
    check_call(module, example_inputs, example_kwargs)
    flat, names, structure = flatten_inputs(example_inputs, example_kwargs)
    is_tensor = [isinstance(value, torch.Tensor) for value in flat]
    tensors = [value for value in flat if isinstance(value, torch.Tensor)]
    tensor_names = [name for name, one in zip(names, is_tensor, strict=True) if one]
    signature = Signature.of(module, tensor_names, tensors)
    device = tracing_device([*(x for _, x in signature.parameters), *(x for _, x in signature.buffers), *tensors])
    with twinned(module, device) as twins, compatible(module):
        fakes = [twins.input(x, name) for x, name in zip(tensors, tensor_names, strict=True)]
        given = [TENSOR if isinstance(x, torch.Tensor) else x for x in flat]
        root = Root(module, structure, given, every=sharded_outputs)
        inspector = Inspector(fakes, dict(zip(tensor_names, tensors, strict=True)), values)
        try:
            joint, plain = capture(root, fakes, inspector)
        except TraceError:
            raise
        except Exception as error:
            # PyTorch's own traceback would bury the message.
            logger.debug("capture failed", exc_info=error)
            raise translated(error, dict(zip(names, flat, strict=True))) from None
    rng = clean(joint.graph)
    graph = build(joint, signature, rng)
    graph.inspections = [*inspector.found, *layouts(graph, dict(zip(tensor_names, tensors, strict=True)))]
    graph.plain = plain
    if sharded_outputs:
        graph.sharded_outputs = True
        follow_tangents(graph)
    return graph

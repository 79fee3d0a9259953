"""The gradient of a cross-entropy goes straight to the logits, in the memory of the log-probabilities.

As traced, it is a tensor of zeros as large as the logits, a copy of it with an entry at each label, its product with
the weights, and the softmax's backward over that. As each row has one entry, g, the result is g at the label, minus g
times the probabilities: one pass through the memory of the log-probabilities, if nothing else needs them.
"""

# torch.ops is untyped.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from hap.runtime.passes.aliases import Aliases
from hap.runtime.passes.values import Known, arguments, erase_unused, hand_over, known

aten = torch.ops.aten

_WIDE = (torch.float32, torch.float64)


def gradient(
    logs: torch.Tensor, dim: int, labels: torch.Tensor, entry: float, weights: torch.Tensor, *, reuse: bool
) -> torch.Tensor:
    """The gradient of ``sum(entry * weights * log_softmax(x, dim)[labels])``.

    Args:
        logs: the log-probabilities; float32 or wider, so that no rounding between the steps shows.
        dim: their dimension.
        labels: one along ``dim``.
        entry: a factor of all weights.
        weights: of the shape of ``labels``, or one for all.
        reuse: whether to write the result to the memory of ``logs``.
    """
    entries = (weights * entry).expand(labels.shape)
    result = logs.exp_() if reuse else logs.exp()
    return result.mul_(-entries).scatter_add_(dim, labels, entries)


def fuse(graph: fx.Graph, find: Callable[[], Aliases]) -> int:
    """See the module."""
    count = 0
    for node in list(graph.nodes):
        called = arguments(node, aten._log_softmax_backward_data.default)
        if not called:
            continue
        given, logs, dim, _ = called
        result = known(node)
        found = None if result is None or known(logs) != result else _entries(given, dim, result)
        if found is None:
            continue
        reuse = find().free_after(logs, node)
        with graph.inserting_before(node):
            made = graph.call_function(gradient, (logs, dim, *found), {"reuse": reuse})
        hand_over(node, made)
        erase_unused(given)
        count += 1
    return count


def _entries(given: fx.Node, dim: int, result: Known) -> tuple[fx.Node, float, fx.Node] | None:
    """Labels, factor and weights, where a gradient is ``zeros.scatter(dim, labels, factor) * weights``."""
    axis = dim % len(result.shape)
    one_each = (*result.shape[:axis], 1, *result.shape[axis + 1 :])
    product = arguments(given, aten.mul.Tensor)
    if result.dtype not in _WIDE or known(given) != result or len(given.users) != 1:
        return None
    for scattered, weights in (product, product[::-1]) if product else ():
        called = arguments(scattered, aten.scatter.value)
        if not called or scattered.kwargs or len(scattered.users) != 1:
            continue
        zeros, along, labels, entry = called
        if arguments(zeros, aten.full.default)[1:] != (0,) or along % len(result.shape) != axis:
            continue
        rows, weight = known(labels), known(weights)
        if rows is None or weight is None or weight.dtype != result.dtype:
            continue
        if rows.shape == one_each and weight.shape in (one_each, ()):
            return labels, entry, weights
    return None

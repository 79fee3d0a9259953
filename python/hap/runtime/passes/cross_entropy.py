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

from hap.operators.matching import entries
from hap.runtime.passes.aliases import Aliases
from hap.runtime.passes.values import Nodes, arguments, erase_unused, hand_over, known

aten = torch.ops.aten


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
    given = (weights * entry).expand(labels.shape)
    result = logs.exp_() if reuse else logs.exp()
    return result.mul_(-given).scatter_add_(dim, labels, given)


def fuse(graph: fx.Graph, find: Callable[[], Aliases]) -> int:
    """See the module."""
    count = 0
    for node in list(graph.nodes):
        called = arguments(node, aten._log_softmax_backward_data.default)
        if not called:
            continue
        given, logs, dim, _ = called
        result = known(node)
        found = None if result is None or known(logs) != result else entries(Nodes(), given, dim, result)
        if found is None:
            continue
        reuse = find().free_after(logs, node)
        operands = (logs, dim, found.labels, found.factor, found.weights)
        with graph.inserting_before(node):
            made = graph.call_function(gradient, operands, {"reuse": reuse})
        hand_over(node, made)
        erase_unused(given)
        count += 1
    return count

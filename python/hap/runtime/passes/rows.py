"""The gradient of an embedding is added row by row to the gradient of a head that shares its weight.

As traced, it is a whole table of mostly zeros first.
"""

# torch.ops is untyped.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from hap.operators.matching import added_rows
from hap.runtime.passes.aliases import Aliases
from hap.runtime.passes.values import Nodes, arguments, erase_unused, hand_over, known

aten = torch.ops.aten


def add_rows_(table: torch.Tensor, rows: torch.Tensor, at: torch.Tensor, padding: int) -> torch.Tensor:
    """Add each of ``rows [*at, features]`` to the row of ``table [n, features]`` that ``at`` says, but ``padding``."""
    if table.device.type != "cpu":
        # Adding row by row is not deterministic there.
        return table.add_(aten.embedding_dense_backward(rows, at, table.shape[0], padding, False))
    rows, at = rows.reshape(-1, table.shape[1]), at.reshape(-1)
    if padding >= 0:
        rows = rows.masked_fill((at == padding).unsqueeze(1), 0)
    return table.index_add_(0, at, rows)


def add(graph: fx.Graph, find: Callable[[], Aliases]) -> int:
    """See the module."""
    count = 0
    for node in list(graph.nodes):
        operands, result = arguments(node, aten.add.Tensor), known(node)
        if not operands or result is None or node.kwargs or len(node.all_input_nodes) != 2:
            continue
        for found in added_rows(Nodes(), operands, result):
            if find().free_after(found.table, node):
                rows, at, _, padding, _ = found.call.args
                with graph.inserting_before(node):
                    made = graph.call_function(add_rows_, (found.table, rows, at, padding))
                hand_over(node, made)
                erase_unused(found.gradient)
                count += 1
                break
    return count

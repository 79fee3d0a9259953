"""Indexing along a dimension that is sharded: every rank serves the indices that fall into its share.

What is looked up elsewhere is zero here, so that the ranks' results sum to the whole one; what is written elsewhere
is left out. An index that is out of range on one device is out of range on every rank too.

Results are contiguous, as those of the operators are: kernels behind them may read nothing else.
"""

# torch.ops is untyped.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hap.operators.stretch import Stretch, elements

aten = torch.ops.aten


def local_index(index: Tensor, stretch: Stretch, elsewhere: int) -> tuple[Tensor, Tensor]:
    """Where each index from 0 stands in this rank's share, ``elsewhere`` for those of other ranks; a mask of these."""
    outer, size, inner, start, length = stretch
    if outer == inner == 1:
        unit, local = index, index - start
    else:
        unit = index.div(inner, rounding_mode="floor").remainder(size)
        block = index.div(size * inner, rounding_mode="floor")
        local = (block * length + unit - start) * inner + index.remainder(inner)
    valid = (index >= 0) & (index < outer * size * inner)
    others = ((unit < start) | (unit >= start + length)) & valid
    # The kernel refuses what is beyond the spare row.
    return local.masked_fill(others, elsewhere).masked_fill(~valid, elements(stretch) + 1), others


def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    stretch: Stretch,
) -> Tensor:
    """``aten.embedding`` of a table that is sharded along its rows."""
    local, others = local_index(indices, stretch, 0)
    return aten.embedding.default(weight, local).masked_fill_(others.unsqueeze(-1), 0)


def embedding_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool, *, stretch: Stretch
) -> Tensor:
    """``aten.embedding_dense_backward`` for the rows of this rank, ``num_weights`` of them."""
    local, _ = local_index(indices, stretch, num_weights)
    # The kernel leaves out the spare row as padding; so the rows of padding are indexed as spare.
    local = local.masked_fill(indices == padding_idx, num_weights)
    whole = aten.embedding_dense_backward.default(grad, local, num_weights + 1, num_weights, scale_grad_by_freq)
    return whole[:num_weights]


def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False, stretch: Stretch) -> Tensor:
    """``aten.gather`` along a sharded dimension."""
    local, others = local_index(index, stretch, 0)
    return aten.gather.default(x, dim, local).masked_fill_(others, 0)


def index_select(x: Tensor, dim: int, index: Tensor, *, stretch: Stretch) -> Tensor:
    """``aten.index_select`` along a sharded dimension."""
    local, others = local_index(index, stretch, 0)
    others = others.view(-1, *(1 for _ in range(x.dim() - dim % x.dim() - 1)))
    return aten.index_select.default(x, dim, local).masked_fill_(others, 0)


def _wrapped(index: Tensor, stretch: Stretch) -> Tensor:
    """Indices that count from the end as such that count from the start."""
    outer, size, inner, *_ = stretch
    return torch.where(index < 0, index + outer * size * inner, index)


def index(x: Tensor, indices: Sequence[Tensor | None], *, dim: int, stretch: Stretch) -> Tensor:
    """``aten.index`` by integers where the indexed dimension ``dim`` is sharded."""
    given = [n for n, one in enumerate(indices) if one is not None]
    rank = max(one.dim() for one in indices if one is not None)
    first = given[0] if given == list(range(given[0], given[-1] + 1)) else 0
    own = indices[dim]
    assert own is not None
    local, others = local_index(_wrapped(own, stretch), stretch, 0)
    found = aten.index.Tensor(x, [local if n == dim else one for n, one in enumerate(indices)])
    return found.masked_fill_(others.view(*others.shape, *(1 for _ in range(found.dim() - first - rank))), 0)


def _with_spare(x: Tensor, dim: int) -> Tensor:
    return torch.cat([x, x.new_zeros([1 if n == dim else size for n, size in enumerate(x.shape)])], dim)


def _written(x: Tensor, dim: int, index: Tensor, stretch: Stretch, write: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """``write(x, index)``, with only those indices along ``dim`` that fall into this rank's share.

    Those of other ranks write to the first row, which is then made anew, apart from the rest and with a spare row for
    them: so no copy of all rows with a spare one is needed.
    """
    local, others = local_index(index, stretch, 0)
    result = write(x, local)
    first = write(_with_spare(x.narrow(dim, 0, 1), dim), ((local != 0) | others).to(index.dtype))
    result.narrow(dim, 0, 1).copy_(first.narrow(dim, 0, 1))
    return result


def written(
    x: Tensor, dim: int, index: Tensor, *args: Any, target: Callable[..., Tensor], stretch: Stretch, **kwargs: Any
) -> Tensor:
    """``target(x, dim, index, ...)``, which scatters, adds, copies or fills by index, along a sharded dimension."""
    dim %= x.dim()
    return _written(x, dim, index, stretch, lambda rows, places: target(rows, dim, places, *args, **kwargs))


def filled(
    x: Tensor, dim: int, index: Tensor, value: Any, *, target: Callable[..., Tensor], stretch: Stretch
) -> Tensor:
    """``aten.index_fill``, whose indices may count from the end, along a sharded dimension."""
    return written(x, dim, _wrapped(index, stretch), value, target=target, stretch=stretch)


def index_put(
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    *,
    dim: int,
    stretch: Stretch,
) -> Tensor:
    """``aten.index_put`` by integers where the indexed dimension ``dim`` is sharded."""
    own = indices[dim]
    assert own is not None

    def write(rows: Tensor, places: Tensor) -> Tensor:
        every = [places if n == dim else one for n, one in enumerate(indices)]
        return aten.index_put.default(rows, every, values, accumulate)

    return _written(x, dim, _wrapped(own, stretch), stretch, write)


def take(x: Tensor, index: Tensor, *, stretch: Stretch) -> Tensor:
    """``aten.take`` where an axis of the flattened tensor is sharded."""
    local, others = local_index(_wrapped(index, stretch), stretch, 0)
    return aten.take.default(x, local).masked_fill_(others, 0)


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False, *, stretch: Stretch) -> Tensor:
    """``aten.put`` where an axis of the flattened tensor is sharded."""
    flat, places = x.reshape(-1), _wrapped(index, stretch)
    made = _written(flat, 0, places, stretch, lambda rows, local: aten.put.default(rows, local, source, accumulate))
    return made.view(x.shape)

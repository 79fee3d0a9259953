"""Reductions that are no sums, over a sharded dimension, and cumulative ones along it.

Each rank reduces what it has; the results of all ranks are gathered and reduced by the same operator, those of ranks
with no share left out. So ties, infinities and NaN fall as on one device. A cumulative sum adds the totals of the
ranks before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch

from hap.rules.binding import Bound
from hap.rules.choices import Composite, Inner
from hap.rules.composites.statistics import local_shape
from hap.rules.local import LocalCode, Stack, Value, Writer
from hap.rules.localise import Site, call_arguments

aten = torch.ops.aten


def _own(code: Writer, site: Site) -> Value:
    """The operator's first result on what this rank has; zeros where it has nothing."""
    result = site.call.results[0]
    assert result is not None
    if site.share == 0:
        return code.call(aten.new_zeros.default, Value(0), list(result.shape), dtype=result.dtype)
    args, kwargs = call_arguments(site.call, {}, [Value(0)])
    return code.call(site.call.operator.target, *args, **kwargs)


def _gathered(code: Writer, site: Site, value: Value) -> Value:
    """The values of all ranks with a share, as rows."""
    rows = code.call(Stack(), value)
    participants = [rank for rank, units in enumerate(site.units) if units]
    if len(participants) == len(site.units):
        return rows
    return code.call(_rows, rows, participants)


def _rows(tensor: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return tensor[rows]


def _reduce(site: Site, operator: Callable[..., Any]) -> LocalCode:
    code = Writer(1)
    return code.finish(code.call(operator, _gathered(code, site, _own(code, site)), 0))


def _first_extreme(site: Site, operator: Callable[..., Any]) -> LocalCode:
    """Of ``max.dim``, ``argmax`` and their like: the extreme value and its first position, of which some are asked."""
    call = site.call
    code = Writer(1)
    x, shape, dim = Value(0), local_shape(site, 0), call["dim"]
    if dim is None:  # the position in the flattened tensor
        x, shape, dim = code.call(aten.reshape.default, x, [prod(shape)]), (prod(shape),), 0
    dim %= len(shape)
    if site.share:
        value, index = code.add(operator, (x, dim, True), {}, 2, True)
        before = shape[dim] // site.share * site.offset
        index = code.call(aten.add.Scalar, index, before)
    else:
        kept = [1 if d == dim else size for d, size in enumerate(shape)]
        value = code.call(aten.new_zeros.default, x, kept)
        index = code.call(aten.new_zeros.default, x, kept, dtype=torch.int64)
    values, indices = _gathered(code, site, value), _gathered(code, site, index)
    best, at = code.add(operator, (values, 0, True), {}, 2, True)
    found = [best, code.call(aten.gather.default, indices, 0, at)]
    wanted = found if len(call.results) == 2 else found[1:]
    return code.finish(
        *(
            code.call(aten.reshape.default, value, list(tensor.shape))
            for value, tensor in zip(wanted, call.results, strict=True)
            if tensor is not None
        )
    )


def _cumulate(site: Site, operator: Callable[..., Any], combine: Callable[..., Any], nothing: float) -> LocalCode:
    """``operator`` reduces dimension 0, ``combine`` puts that in front; ``nothing`` is its identity."""
    result = site.call.results[0]
    assert result is not None
    code = Writer(1)
    shape, dim = site.result(0), site.call.dim()
    if site.share:
        args, kwargs = call_arguments(site.call, {}, [Value(0)])
        own = code.call(site.call.operator.target, *args, **kwargs)
        last = code.call(aten.narrow.default, own, dim, shape[dim] - 1, 1)
    else:
        own = code.call(aten.new_zeros.default, Value(0), list(shape), dtype=result.dtype)
        kept = [1 if d == dim else size for d, size in enumerate(shape)]
        last = code.call(aten.new_full.default, Value(0), kept, nothing, dtype=result.dtype)
    totals = code.call(Stack(), last)
    if site.rank == 0:
        return code.finish(own)
    before = code.call(operator, code.call(aten.narrow.default, totals, 0, 0, site.rank), 0)
    return code.finish(code.call(combine, own, before))


def _elements(bound: Bound) -> int:
    result = bound.call.first_result
    assert result is not None
    return prod(result.shape)


def _sent(bound: Bound, axis: int) -> tuple[Inner, ...]:
    """The result."""
    return (Inner("all_gather", float(_elements(bound) * _itemsize(bound))),)


def _itemsize(bound: Bound) -> int:
    """Bytes of an element of the result."""
    result = bound.call.first_result
    assert result is not None
    return result.dtype.itemsize


def _sent_extreme(bound: Bound, axis: int) -> tuple[Inner, ...]:
    """The values and their positions."""
    sizes = bound.call.operands[0].dtype.itemsize, torch.int64.itemsize
    return tuple(Inner("all_gather", float(_elements(bound) * size)) for size in sizes)


def _sent_totals(bound: Bound, axis: int) -> tuple[Inner, ...]:
    """The totals along the dimension."""
    size = bound.call.shape()[bound.call.dim()]
    return (Inner("all_gather", float(_elements(bound) // size * _itemsize(bound))),)


def _reduction(operator: Callable[..., Any]) -> Composite:
    return Composite(partial(_reduce, operator=operator), _sent, whole=frozenset({0}))


def _extreme(operator: Callable[..., Any]) -> Composite:
    code = partial(_first_extreme, operator=operator)
    return Composite(code, _sent_extreme, whole=frozenset({0, 1}), outermost=True)


def _cumulative(operator: Callable[..., Any], combine: Callable[..., Any], nothing: float) -> Composite:
    code = partial(_cumulate, operator=operator, combine=combine, nothing=nothing)
    return Composite(code, _sent_totals, outermost=True)


COMPOSITES = {
    "amax": _reduction(aten.amax.default),
    "amin": _reduction(aten.amin.default),
    "any": _reduction(aten.any.dim),
    "all": _reduction(aten.all.dim),
    "prod": _reduction(aten.prod.dim_int),
    "logsumexp": _reduction(aten.logsumexp.default),
    "argmax": _extreme(aten.max.dim),
    "argmin": _extreme(aten.min.dim),
    "cumsum": _cumulative(aten.sum.dim_IntList, aten.add.Tensor, 0.0),
    "logcumsumexp": _cumulative(aten.logsumexp.default, aten.logaddexp.default, -torch.inf),
    "cumprod": _cumulative(aten.prod.dim_int, aten.mul.Tensor, 1.0),
}

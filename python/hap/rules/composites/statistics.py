"""What composites over statistics share: sums and maxima over sharded dimensions, and their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from hap.operators.precision import wide
from hap.rules.binding import Bound
from hap.rules.call import Call
from hap.rules.choices import Inner
from hap.rules.local import AllReduce, Value, Writer
from hap.rules.localise import Site

aten = torch.ops.aten


def cast(code: Writer, value: Value, source: torch.dtype, target: torch.dtype) -> Value:
    """A value in another element type."""
    return value if source == target else code.call(aten.to.dtype, value, target)


def widened(code: Writer, site: Site, operand: int) -> Value:
    """An operand (by its place in the call's schema), in the type to sum in."""
    dtype = site.call.operands[operand].dtype
    return cast(code, value_of(site, operand), dtype, wide(dtype))


def value_of(site: Site, operand: int) -> Value:
    """An operand, by its place in the call's schema."""
    return Value(site.call.order.index(operand))


def local_shape(site: Site, operand: int) -> tuple[int, ...]:
    """Its shape on this rank."""
    return site.operand(site.call.order.index(operand))


def total(code: Writer, value: Value, dims: Sequence[int]) -> Value:
    """The sum over dimensions, which stay with size one, and over the ranks."""
    return code.call(AllReduce("sum"), code.call(aten.sum.dim_IntList, value, list(dims), True))


def largest(code: Writer, value: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
    """The largest over dimensions, which stay with size one, and over the ranks; ``shape`` is this rank's."""
    if all(shape[dim] for dim in dims):
        own = code.call(aten.amax.default, value, list(dims), True)
    else:  # a rank with no share
        kept = [1 if dim in dims else size for dim, size in enumerate(shape)]
        own = code.call(aten.new_full.default, value, kept, -torch.inf)
    return code.call(AllReduce("max"), own)


def reduced_bytes(call: Call, dims: Sequence[int], operand: int = 0) -> float:
    """Bytes of a statistic over some dimensions of an operand."""
    tensor = call.operands[operand]
    kept = prod(size for dim, size in enumerate(tensor.shape) if dim not in dims)
    return float(kept * wide(tensor.dtype).itemsize)


def all_reduces(count: int, size: float) -> tuple[Inner, ...]:
    """All-reduces of this many bytes each."""
    return (Inner("all_reduce", size),) * count


def along(bound: Bound, count: int) -> tuple[Inner, ...]:
    """All-reduces of a statistic over the argument ``dim``."""
    return all_reduces(count, reduced_bytes(bound.call, [bound.call.dim()]))

"""Layer and group norm whose statistics are over a sharded dimension, and their gradients.

The forward takes the mean first and then the squares of what is left, as a single pass of squares would cancel. The
gradient of the input is rstd (gy - (sum(gy) + xhat sum(gy xhat)) / count) with gy = g weight (Ba, Kiros and Hinton,
2016), its two sums reduced as one tensor.

A row that holds an infinity comes out as NaN, as on one device, with its inverse deviation and its gradients. Its mean
is infinite or NaN: in PyTorch's kernels that depends on where in the row the infinity stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from hap.operators.precision import wide
from hap.rules.binding import Bound
from hap.rules.choices import Composite, Inner
from hap.rules.composites.statistics import all_reduces, cast, local_shape, total, widened
from hap.rules.local import AllReduce, LocalCode, Value, Writer
from hap.rules.localise import Site

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Grid:
    """How a norm sees its input: the shape that this rank's is viewed in, and what is in it.

    Attributes:
        x: shape of this rank's input.
        weight: shape of its weight and bias, which broadcasts to ``x``.
        dims: dimensions of ``x`` that statistics are over.
        count: elements that each is over, on all ranks.
        shared: dimensions of ``x`` that the gradients of weight and bias are sums over.
    """

    x: tuple[int, ...]
    weight: tuple[int, ...]
    dims: tuple[int, ...]
    count: int
    shared: tuple[int, ...]


def _layer(site: Site, operand: int) -> _Grid:
    shape = local_shape(site, operand)
    normalized = site.call["normalized_shape"]
    first = len(shape) - len(normalized)
    return _Grid(shape, shape[first:], tuple(range(first, len(shape))), prod(normalized), tuple(range(first)))


def _group(site: Site, operand: int) -> _Grid:
    """Viewed as samples, groups, channels of a group, pixels."""
    n, channels, *pixels = local_shape(site, operand)
    groups = site.call["group"]
    own = channels // groups
    count = site.call["C"] // groups * site.call["HxW"]
    return _Grid((n, groups, own, prod(pixels)), (1, groups, own, 1), (2, 3), count, (0, 3))


class _Norm:
    """Writes the code of a norm on one rank."""

    def __init__(self, site: Site, operand: int) -> None:
        self.site = site
        self.grid = _layer(site, operand) if "normalized_shape" in site.call.arguments else _group(site, operand)
        self.code = Writer(len(site.call.operands))

    def view(self, value: Value, shape: Sequence[int]) -> Value:
        return self.code.call(aten.reshape.default, value, list(shape))

    def operand(self, name: str, shape: Sequence[int]) -> Value | None:
        """An operand, by its argument, viewed in a shape; ``None`` where it is absent."""
        if not self.site.call.has(name):
            return None
        return self.view(widened(self.code, self.site, self.site.call.names.index(name)), shape)

    def times(self, value: Value, factor: Value | None) -> Value:
        return value if factor is None else self.code.call(aten.mul.Tensor, value, factor)

    def finish(self, made: Sequence[Value | None]) -> LocalCode:
        """The results that exist, in their shapes and types; contiguous, as the kernels make them."""
        results = []
        accumulated = wide(self.site.call.operands[0].dtype)
        for index, (value, tensor) in enumerate(zip(made, self.site.call.results, strict=True)):
            if tensor is not None:
                assert value is not None
                shaped = self.view(value, self.site.result(index))
                shaped = cast(self.code, shaped, accumulated, tensor.dtype)
                results.append(self.code.call(aten.contiguous.default, shaped))
        return self.code.finish(*results)


def _forward(site: Site) -> LocalCode:
    norm = _Norm(site, 0)
    code, grid = norm.code, norm.grid
    x = norm.operand("input", grid.x)
    assert x is not None
    mean = code.call(aten.div.Scalar, total(code, x, grid.dims), grid.count)
    centred = code.call(aten.sub.Tensor, x, mean)
    squares = total(code, code.call(aten.mul.Tensor, centred, centred), grid.dims)
    variance = code.call(aten.div.Scalar, squares, grid.count)
    rstd = code.call(aten.rsqrt.default, code.call(aten.add.Scalar, variance, site.call["eps"]))
    out = norm.times(code.call(aten.mul.Tensor, centred, rstd), norm.operand("weight", grid.weight))
    bias = norm.operand("bias", grid.weight)
    return norm.finish((out if bias is None else code.call(aten.add.Tensor, out, bias), mean, rstd))


def _backward(site: Site) -> LocalCode:
    norm = _Norm(site, 1)
    code, grid = norm.code, norm.grid
    kept = [1 if dim in grid.dims else size for dim, size in enumerate(grid.x)]
    grad, x = norm.operand("grad_out", grid.x), norm.operand("input", grid.x)
    mean, rstd = norm.operand("mean", kept), norm.operand("rstd", kept)
    assert grad is not None
    assert x is not None
    normalised = norm.times(code.call(aten.sub.Tensor, x, mean), rstd)
    weighted = code.call(aten.mul.Tensor, grad, normalised)
    grads: list[Value | None] = [None, None, None]
    if site.call.results[0] is not None:
        weight = norm.operand("weight", grid.weight)
        gy = norm.times(grad, weight)
        own = [
            code.call(aten.sum.dim_IntList, value, list(grid.dims), True)
            for value in (gy, norm.times(weighted, weight))
        ]
        sums = code.call(AllReduce("sum"), code.call(aten.stack.default, own))
        plain, projected = (code.call(aten.select.int, sums, 0, index) for index in range(2))
        correction = code.call(aten.add.Tensor, plain, code.call(aten.mul.Tensor, normalised, projected))
        scaled = code.call(aten.div.Scalar, correction, grid.count)
        grads[0] = norm.times(code.call(aten.sub.Tensor, gy, scaled), rstd)
    for index, value in ((1, weighted), (2, grad)):
        if site.call.results[index] is not None:
            grads[index] = code.call(aten.sum.dim_IntList, value, list(grid.shared)) if grid.shared else value
    return norm.finish(grads)


def _statistic(bound: Bound) -> float:
    """Bytes of the mean of the call's samples."""
    call = bound.call
    x = call.operands[call.names.index("input")]
    groups = call["group"] * call["N"] if "group" in call.arguments else prod(x.shape) // prod(call["normalized_shape"])
    return float(groups * wide(x.dtype).itemsize)


def _sent_forward(bound: Bound, axis: int) -> tuple[Inner, ...]:
    return all_reduces(2, _statistic(bound))


def _sent_backward(bound: Bound, axis: int) -> tuple[Inner, ...]:
    return all_reduces(1, 2 * _statistic(bound)) if bound.call.results[0] is not None else ()


COMPOSITES = {
    # The mean and the inverse deviation are whole on every rank.
    "norm": Composite(_forward, _sent_forward, whole=frozenset({1, 2})),
    "norm_backward": Composite(_backward, _sent_backward),
}

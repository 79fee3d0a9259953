"""Softmax, log-softmax and their gradients along a sharded dimension.

The largest value and the sum of exponentials are all-reduced, as for vocabulary-parallel logits in Megatron-LM
(Shoeybi et al., 2019); each gradient needs one sum.
"""

from __future__ import annotations

from functools import partial

import torch

from hap.operators.precision import wide
from hap.rules.choices import Composite
from hap.rules.composites.statistics import along, cast, largest, local_shape, total, widened
from hap.rules.local import LocalCode, Value, Writer
from hap.rules.localise import Site

aten = torch.ops.aten


def _finish(code: Writer, site: Site, value: Value) -> LocalCode:
    """As the kernels, in the type of the result, and contiguous."""
    result = site.call.results[0]
    assert result is not None
    value = cast(code, value, wide(site.call.operands[0].dtype), result.dtype)
    return code.finish(code.call(aten.contiguous.default, value))


def _forward(site: Site, log: bool = False, safe: bool = False) -> LocalCode:
    """``safe``: zeros where everything is minus infinity."""
    code = Writer(1)
    dims = [site.call.dim()]
    x = widened(code, site, 0)
    most = largest(code, x, local_shape(site, 0), dims)
    shifted = code.call(aten.sub.Tensor, x, most)
    exponentials = code.call(aten.exp.default, shifted)
    sums = total(code, exponentials, dims)
    if log:
        return _finish(code, site, code.call(aten.sub.Tensor, shifted, code.call(aten.log.default, sums)))
    out = code.call(aten.div.Tensor, exponentials, sums)
    if safe:
        out = code.call(aten.masked_fill.Scalar, out, code.call(aten.eq.Scalar, most, -torch.inf), 0.0)
    return _finish(code, site, out)


def _backward(site: Site, log: bool) -> LocalCode:
    """Of log-softmax: g - exp(y) sum(g); of softmax: y (g - sum(g y))."""
    code = Writer(2)
    dims = [site.call.dim()]
    grad, out = widened(code, site, 0), widened(code, site, 1)
    if log:
        spread = code.call(aten.mul.Tensor, code.call(aten.exp.default, out), total(code, grad, dims))
        return _finish(code, site, code.call(aten.sub.Tensor, grad, spread))
    weighted = code.call(aten.mul.Tensor, grad, out)
    spread = code.call(aten.mul.Tensor, out, total(code, weighted, dims))
    return _finish(code, site, code.call(aten.sub.Tensor, weighted, spread))


COMPOSITES = {
    "softmax": Composite(_forward, lambda bound, axis: along(bound, 2)),
    "safe_softmax": Composite(partial(_forward, safe=True), lambda bound, axis: along(bound, 2)),
    "log_softmax": Composite(partial(_forward, log=True), lambda bound, axis: along(bound, 2)),
    "softmax_backward": Composite(partial(_backward, log=False), lambda bound, axis: along(bound, 1)),
    "log_softmax_backward": Composite(partial(_backward, log=True), lambda bound, axis: along(bound, 1)),
}

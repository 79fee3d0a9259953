"""Random operators taken apart, in the joint export, into ``rand``, ``randn``, ``randint`` and ``bernoulli``.

The formulas are the textbook's inverse distribution functions, as PyTorch's own kernels use them. A generator stays in
the call, so that it is refused with its source line (:mod:`hap.trace.random`).
"""

# torch.ops is untyped.
# mypy: disable-error-code="no-any-return, no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _rand(size: Sequence[int], x: Tensor, dtype: Any = None, device: Any = None, generator: Any = None) -> Tensor:
    """Uniform numbers of the type and device of ``x``."""
    return aten.rand.generator(list(size), generator=generator, dtype=dtype or x.dtype, device=device or x.device)


def _randn(size: Sequence[int], x: Tensor, dtype: Any = None, device: Any = None, generator: Any = None) -> Tensor:
    return aten.randn.generator(list(size), generator=generator, dtype=dtype or x.dtype, device=device or x.device)


def _rand_like(x: Tensor, *, generator: Any = None, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return _rand(x.shape, x, dtype, device, generator)


def _randn_like(x: Tensor, *, generator: Any = None, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return _randn(x.shape, x, dtype, device, generator)


def _bernoulli(x: Tensor, p: Tensor | None = None, *, generator: Any = None) -> Tensor:
    """Ones where a uniform number lies below the probabilities; half precision has too few digits for them."""
    p = x if p is None else p
    wide = torch.float64 if p.dtype == torch.float64 else torch.float32
    drawn = _rand(x.shape, x, wide, generator=generator)
    return aten._to_copy(aten.lt.Tensor(drawn, p.to(wide)), dtype=x.dtype)


def _uniform(x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Tensor:
    return aten.add.Tensor(aten.mul.Tensor(_rand(x.shape, x, generator=generator), high - low), low)


def _normal(x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    return aten.add.Tensor(aten.mul.Tensor(_randn(x.shape, x, generator=generator), std), mean)


def _normal_of(mean: Any, std: Any, *, generator: Any = None) -> Tensor:
    """Means or standard deviations by element."""
    tensors = [value for value in (mean, std) if isinstance(value, Tensor)]
    drawn = _randn(torch.broadcast_shapes(*(value.shape for value in tensors)), tensors[0], generator=generator)
    return aten.add.Tensor(aten.mul.Tensor(drawn, std), mean)


def _normal_filled(
    mean: float, std: float, size: Sequence[int], *, generator: Any = None, dtype: Any = None, device: Any = None,
    **_: Any
) -> Tensor:  # fmt: skip
    drawn = aten.randn.generator(size, generator=generator, dtype=dtype or torch.get_default_dtype(), device=device)
    return aten.add.Tensor(aten.mul.Tensor(drawn, std), mean)


def _log_uniform(x: Tensor, generator: Any) -> Tensor:
    """Logarithms of numbers in (0, 1), uniform. Never 0: some take the logarithm of them again."""
    wide = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
    drawn = aten.clamp_min(_rand(x.shape, x, wide, generator=generator), torch.finfo(wide).eps / 4)
    return aten.log1p(aten.neg(drawn))


def _exponential(x: Tensor, rate: float = 1.0, *, generator: Any = None) -> Tensor:
    return aten.mul.Tensor(_log_uniform(x, generator), -1 / rate)


def _geometric(x: Tensor, p: float, *, generator: Any = None) -> Tensor:
    """The number of the first success: where the distribution function 1 - (1 - p)**n reaches a uniform number."""
    if p == 1:
        return aten.full(list(x.shape), 1, dtype=x.dtype, device=x.device)
    trials = aten.ceil(aten.mul.Tensor(_log_uniform(x, generator), 1 / math.log1p(-p)))
    return aten._to_copy(trials, dtype=x.dtype)


def _cauchy(x: Tensor, median: float = 0.0, scale: float = 1.0, *, generator: Any = None) -> Tensor:
    drawn = _uniform(x, -math.pi / 2, math.pi / 2, generator=generator)
    return aten.add.Tensor(aten.mul.Tensor(aten.tan(drawn), scale), median)


def _log_normal(x: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> Tensor:
    return aten.exp(_normal(x, mean, std, generator=generator))


def _randint(
    low: int, high: int, size: Sequence[int], *, generator: Any = None, dtype: Any = None, device: Any = None, **_: Any
) -> Tensor:
    return aten.randint.low_generator(
        low, high, list(size), generator=generator, dtype=dtype or torch.int64, device=device
    )


def _randint_like(
    x: Tensor, low: int, high: int, *, generator: Any = None, dtype: Any = None, device: Any = None, **_: Any
) -> Tensor:
    return _randint(low, high, x.shape, generator=generator, dtype=dtype or x.dtype, device=device or x.device)


def _randperm(n: int, *, generator: Any = None, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """The order of random keys; of 63 bits, so that two of them are hardly ever equal."""
    keys = _randint(0, 2**63 - 1, [n], generator=generator, device=device)
    return aten._to_copy(aten.sort.stable(keys, stable=True, dim=0)[1], dtype=dtype or torch.int64)


def _multinomial(p: Tensor, count: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    """The categories of the smallest exponential numbers of rate p (Efraimidis and Spirakis 2006)."""
    if replacement:
        p = p.unsqueeze(-2).expand(*p.shape[:-1], count, p.shape[-1])
        return aten.argmax(aten.div.Tensor(p, _exponential(p, generator=generator)), -1)
    return aten.topk(aten.div.Tensor(p, _exponential(p, generator=generator)), count, -1)[1]


def _rrelu(
    x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> tuple[Tensor, Tensor]:
    """Randomised leaky ReLU: its slopes, which the backward reads, take the place of ``noise``."""
    if not training:
        return aten.leaky_relu(x, (lower + upper) / 2), noise
    slopes = _uniform(x, lower, upper, generator=generator)
    slopes = aten.where.self(aten.le.Scalar(x, 0), slopes, aten.full(list(x.shape), 1, dtype=x.dtype, device=x.device))
    return aten.mul.Tensor(x, slopes), slopes


def _rrelu_backward(
    grad: Tensor, x: Tensor, noise: Tensor, lower: float, upper: float, training: bool, is_result: bool
) -> Tensor:
    if training:
        return aten.mul.Tensor(grad, noise)
    return aten.leaky_relu_backward(grad, x, (lower + upper) / 2, is_result)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.rand_like.default: _rand_like,
    aten.rand_like.generator: _rand_like,
    aten.randn_like.default: _randn_like,
    aten.randn_like.generator: _randn_like,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.Tensor: _bernoulli,
    aten.uniform.default: _uniform,
    aten.normal_functional.default: _normal,
    aten.normal.Tensor_Tensor: _normal_of,
    aten.normal.Tensor_float: _normal_of,
    aten.normal.float_Tensor: _normal_of,
    aten.normal.float_float: _normal_filled,
    aten.exponential.default: _exponential,
    aten.geometric.default: _geometric,
    aten.cauchy.default: _cauchy,
    aten.log_normal.default: _log_normal,
    aten.randint.default: lambda high, size, **keywords: _randint(0, high, size, **keywords),
    aten.randint.generator: lambda high, size, **keywords: _randint(0, high, size, **keywords),
    aten.randint_like.default: lambda x, high, **keywords: _randint_like(x, 0, high, **keywords),
    aten.randint_like.generator: lambda x, high, **keywords: _randint_like(x, 0, high, **keywords),
    aten.randint_like.low_dtype: _randint_like,
    aten.randint_like.low_generator_dtype: _randint_like,
    aten.randperm.default: _randperm,
    aten.randperm.generator: _randperm,
    aten.multinomial.default: _multinomial,
    aten.rrelu_with_noise_functional.default: _rrelu,
    aten.rrelu_with_noise_backward.default: _rrelu_backward,
}

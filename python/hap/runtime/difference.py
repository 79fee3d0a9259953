"""How far a tensor is from the one that it should be, as one number."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def difference(given: torch.Tensor, expected: torch.Tensor | None, floor: float = 0.0) -> float:
    """The norm of the difference over the norm of ``expected``, or over ``floor`` where that is larger.

    NaN and infinities are no difference where both have the same in the same places, and infinite elsewhere; the real
    and the imaginary part of a complex number are two numbers. Other shapes and element types are infinitely far.
    Integers and truth values are not rounded: where they differ, this is the norm of the difference itself, at least 1.

    Args:
        given: what was computed.
        expected: what it should be; ``None`` for zeros.
        floor: the least norm to measure by.
    """
    if expected is None:
        expected = torch.zeros_like(given)
    if given.shape != expected.shape or given.dtype != expected.dtype:
        return float("inf")
    apart = ~same_places(given, expected)
    distances = (numbers(given) - numbers(expected))[apart].abs()
    if not distances.isfinite().all():
        return float("inf")
    if not is_rounded(given):
        # Large ones may be apart by less than float64 tells.
        return norm([distances.clamp(min=1.0)])
    distance, scale = norm([distances]), max(norm([expected]), floor)
    return distance / scale if scale else (0.0 if distance == 0.0 else float("inf"))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are of one shape and element type, with the same numbers; NaN is the same as NaN."""
    return one.shape == other.shape and one.dtype == other.dtype and bool(same_places(one, other).all())


def same_places(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Where two tensors of one shape and type have the same number, NaN counted as one; as :func:`numbers` lie."""
    if not is_rounded(one):
        return one == other
    one, other = numbers(one), numbers(other)
    return (one == other) | (one.isnan() & other.isnan())


def is_rounded(tensor: torch.Tensor) -> bool:
    """Whether computing rounds numbers of this element type."""
    return tensor.is_floating_point() or tensor.is_complex()


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float64, with a last dimension for real and imaginary part where it is complex."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.detach().to(torch.complex128).resolve_conj())
    return tensor.detach().to(torch.float64)


def finite(tensor: torch.Tensor) -> int:
    """How many of a tensor's numbers are neither NaN nor infinite."""
    return int(numbers(tensor).isfinite().sum())


def norm(tensors: Sequence[torch.Tensor | None]) -> float:
    """Norm of the finite numbers of several tensors together."""
    wide = [numbers(tensor) for tensor in tensors if tensor is not None]
    squares = [float(values[values.isfinite()].square().sum()) for values in wide]
    return float(sum(squares) ** 0.5)

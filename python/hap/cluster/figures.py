"""Checks of single figures, shared by devices, links and clusters."""

from __future__ import annotations

import math
import re
from numbers import Real

from hap.errors import ClusterError


def positive(value: object, field: str) -> float:
    """``value`` as a float. Raises :class:`ClusterError` unless it is a finite number above zero."""
    return _number(value, field, "above 0", zero=False)


def not_negative(value: object, field: str) -> float:
    """``value`` as a float. Raises :class:`ClusterError` unless it is a finite number of at least zero."""
    return _number(value, field, "of at least 0", zero=True)


def part(value: object, field: str) -> float:
    """``value`` as a float. Raises :class:`ClusterError` unless it is a number from 0 to 1."""
    number = not_negative(value, field)
    if number > 1:
        raise ClusterError(f"{field}: expected a number from 0 to 1, got {value!r}")
    return number


def digest(value: object, field: str) -> str:
    """``value`` as it is. Raises :class:`ClusterError` unless it is a SHA-256 in small hexadecimal digits."""
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return value
    raise ClusterError(f"{field}: expected a SHA-256 as 64 hexadecimal digits in small letters, got {value!r}")


def _number(value: object, field: str, expected: str, *, zero: bool) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number) and (number > 0 or (zero and number == 0)):
            return number
    raise ClusterError(f"{field}: expected a finite number {expected}, got {value!r}")

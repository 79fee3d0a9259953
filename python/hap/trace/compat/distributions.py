"""torch.distributions: its validation depends on values, and its choice of a divergence on a function of Python's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any
from unittest.mock import patch

from torch.distributions import Distribution, kl


def _min(values: Iterable[Any]) -> Any:
    """As Python's: capture does not follow that over a generator, by which the nearest classes are chosen."""
    least, *others = values
    for value in others:
        if value < least:
            least = value
    return least


def is_hidden_side_effect(source: str) -> bool:
    """The functions that were chosen are kept for the next call."""
    return "_KL_MEMOIZE" in source


@contextlib.contextmanager
def compatible() -> Iterator[None]:
    """Turns validation off by default meanwhile."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        with patch.object(kl, "min", _min, create=True):
            yield
    finally:
        Distribution.set_default_validate_args(before)

"""torch.distributions: the validation of arguments depends on their values, which capture does not know."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch.distributions import Distribution


@contextlib.contextmanager
def compatible() -> Iterator[None]:
    """Turns validation off by default meanwhile."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)

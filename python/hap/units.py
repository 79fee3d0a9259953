"""Bytes, seconds and lists as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def bytes_text(count: float) -> str:
    """``1536`` as ``1.50 KiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024.0:
            return f"{value:.0f} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024.0
    return f"{value:.2f} TiB"


def seconds_text(seconds: float) -> str:
    """``0.00123`` as ``1.23 ms``."""
    if abs(seconds) >= 1.0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) >= 1e-3 else f"{seconds * 1e6:.3g} us"


def listed(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    items = list(names)
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 1`` or ``ranks 0, 2``."""
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"

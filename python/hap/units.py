"""Bytes, seconds and lists as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby


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
    if abs(seconds) < 5e-13:
        # Times that add up to nothing leave such rests.
        return "0 us"
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) >= 1e-3 else f"{seconds * 1e6:.3g} us"


def listed(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    items = list(names)
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def counted(names: Iterable[str], text: str = "{} x {}") -> list[str]:
    """Runs of equal names as ``2 x V100``, or as ``text`` with the count and the name."""
    runs = ((name, sum(1 for _ in run)) for name, run in groupby(names))
    return [text.format(count, name) if count > 1 else name for name, count in runs]


def runs_text(ranks: Sequence[int]) -> str:
    """Ascending ranks as ``0-3, 8``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 1`` or ``ranks 0, 2``."""
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"

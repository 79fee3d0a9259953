"""Documents of which a program writes a part: what stands between two marks, each on a line of its own."""

from __future__ import annotations

from pathlib import Path

END = "<!-- to here -->"


def write_part(document: Path, begin: str, text: str) -> None:
    """Writes ``text``, which ends in a new line, between the mark ``begin`` and the first :data:`END` behind it."""
    before, mark, rest = document.read_text().partition(begin)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{document}: expected {begin} and, behind it, {END}")
    document.write_text(f"{before}{begin}\n{text}{END}{after}")

"""The code blocks of a page, and what comments before them say of how tests run them (tests/docs).

<!-- given: model -->         names that the block expects to be there
<!-- file: model.py -->       the block is this file, too
<!-- raises: PlanError -->    the block raises this error of hap
<!-- not run: why -->         nothing runs the block
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_MARK = re.compile(r"<!-- (given|file|raises|not run): (.+) -->")


class Block(NamedTuple):
    """A fenced block: its language, its text, the number of its first line in the page, and its marks by name."""

    language: str
    text: str
    line: int
    marks: dict[str, str]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page in order. Raises ``ValueError`` where a fence is not closed."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    for number, line in lines:
        mark = _MARK.fullmatch(line)
        if mark is not None:
            marks[mark[1]] = mark[2]
        elif line.startswith("```"):
            text = []
            for _, inner in lines:
                if inner == "```":
                    break
                text.append(inner)
            else:
                raise ValueError(f"{page}:{number}: the block is not closed")
            found.append(Block(line.removeprefix("```"), "\n".join(text) + "\n", number + 1, marks))
            marks = {}
        elif line:
            marks = {}
    return found


def file_in(page: Path, name: str) -> str:
    """The text of the block that is this file."""
    (text,) = (block.text for block in blocks(page) if block.marks.get("file") == name)
    return text

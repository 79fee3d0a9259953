"""The notation of rules: one line of axis letters for each operator, in the spirit of einsum.

::

    line    := operands '->' outputs ['when' GUARD] ['size' ARG=dims, ...] ['composite' LETTER=fn]
    operand := ['~' | '+'] dims      ~ linear in it with the others fixed;  + additive (jointly with every other +)
    output  := dims ['{' operands that it reads '}']          default: all
    dims    := dim ... | '.'         . a tensor without dimensions
    dim     := x | x! | *x | *x! | (x y) | (x | y) | ((x | y) z) | _ | [x] | ...

``!`` blocks a letter: nothing may be sharded along it. ``*x`` is a run of dimensions (``x0 x1 ...``), whose length
comes from the operator's arguments or from ranks. ``(x y)`` is an ordered product, ``_`` a dimension of size one.
``(x | y)`` is an ordered sum: a stretch of ``x`` units, then one of ``y``; its rule gives the sizes of its letters.
``[x]`` takes all dimensions of a tensor together as one index (views). ``...`` broadcasts into the first output.

A guard is ``ARG``, ``not ARG`` or ``ARG=LITERAL``, joined by ``and``. ``size groups=g`` says that the argument
``groups`` is the size of ``g``, so that it becomes a local size; for an argument that is a list each dim gives one
entry, and ``result`` stands for the shape of the first output.

``composite d=softmax`` says that the composite instruction of that name (:mod:`hap.rules.composites`) shards the
letter, or each letter of the run, ``d``, blocked or not; one letter may have several.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

Group = tuple[str, ...]
"""The letters of one dimension, outermost first; empty for a dimension of size one."""

Mark = Literal["", "~", "+"]


@dataclass(frozen=True, slots=True)
class Run:
    """``*x``: a run of dimensions."""

    name: str


@dataclass(frozen=True, slots=True)
class Flat:
    """``[x]``: all dimensions together as one index."""

    letter: str


@dataclass(frozen=True, slots=True)
class Broadcast:
    """``...``: dimensions that broadcast into the first output."""


Dim = Group | Run | Flat | Broadcast


@dataclass(frozen=True, slots=True)
class Pattern:
    """An operand or output. ``reads`` are the operands that an output reads; ``None`` means all."""

    dims: tuple[Dim, ...]
    mark: Mark = ""
    reads: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on an argument: it equals ``value`` (negated: not), or, for the type ``bool``, is true."""

    argument: str
    value: Any
    negated: bool

    def holds(self, arguments: dict[str, Any]) -> bool:
        """Whether the arguments of a call fulfil it."""
        actual = arguments[self.argument]
        fulfilled = bool(actual) if self.value is bool else bool(actual == self.value)
        return fulfilled is not self.negated


@dataclass(frozen=True, slots=True)
class Line:
    """A parsed line.

    Attributes:
        operands, outputs: their patterns.
        blocked: letters, and names of runs, that nothing may be sharded along.
        guards: conditions on arguments; all must hold.
        sizes: by argument, the dims whose sizes it gives, or ``None`` for the shape of the first output.
        composite: by letter, the name of the composite instruction that crosses it.
    """

    text: str
    operands: tuple[Pattern, ...]
    outputs: tuple[Pattern, ...]
    blocked: frozenset[str]
    guards: tuple[Guard, ...]
    sizes: tuple[tuple[str, tuple[Group, ...] | None], ...]
    composite: tuple[tuple[str, str], ...]


class NotationError(ValueError):
    """A line that does not follow the grammar. The message shows the line and where it goes wrong."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        super().__init__(f"{problem}\n  {text}\n  {' ' * position}^")


_TOKEN = re.compile(r"\s*(\.\.\.|[A-Za-z][A-Za-z0-9_]*|\d+|[~+,()\[\]{}*!_.=|])")
_CLAUSE = re.compile(r"\b(when|size|composite)\b(?!\s*=)")


class _Reader:
    """Reads the tokens of a stretch of the line."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self.text, self.position, self.end = text, start, end

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.position, self.end)
        if match is not None:
            return match.group(1)
        rest = self.text[self.position : self.end]
        if rest.strip():
            raise self.error(f"unexpected character {rest.strip()[0]!r}", len(rest) - len(rest.lstrip()))
        return ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if expected and token != expected:
            raise self.error(
                f"expected {expected!r}, found {token!r}" if token else f"expected {expected!r}, found the end"
            )
        match = _TOKEN.match(self.text, self.position, self.end)
        if match is not None:
            self.position = match.end()
        return token

    def letter(self) -> str:
        token = self.peek()
        if not token[:1].isalpha():
            raise self.error(f"expected a letter, found {token!r}" if token else "expected a letter, found the end")
        return self.take()

    def error(self, problem: str, ahead: int | None = None) -> NotationError:
        if ahead is None:
            rest = self.text[self.position : self.end]
            ahead = len(rest) - len(rest.lstrip())
        return NotationError(self.text, self.position + ahead, problem)


@cache
def parse(text: str) -> Line:
    """Parses a line.

    Raises:
        NotationError: it does not follow the grammar.
    """
    starts = list(_CLAUSE.finditer(text))
    body_end = starts[0].start() if starts else len(text)
    arrow = text.find("->")
    if not 0 <= arrow < body_end:
        raise NotationError(text, 0, "expected operands '->' outputs")
    blocked: set[str] = set()
    operands = _patterns(_Reader(text, 0, arrow), blocked, output=False)
    outputs = _patterns(_Reader(text, arrow + 2, body_end), blocked, output=True)
    for pattern in outputs:
        for index in pattern.reads or ():
            if index >= len(operands):
                raise NotationError(text, arrow, f"an output reads operand {index}, but there are only {len(operands)}")
    guards: list[Guard] = []
    sizes: list[tuple[str, tuple[Group, ...] | None]] = []
    composite: list[tuple[str, str]] = []
    ends = [match.start() for match in starts[1:]] + [len(text)] * bool(starts)
    for match, end in zip(starts, ends, strict=True):
        if match.group() == "when":
            guards += _guards(text, match.end(), end)
        elif match.group() == "size":
            sizes += _sizes(_Reader(text, match.end(), end), blocked)
        else:
            reader = _Reader(text, match.end(), end)
            while reader.peek():
                letter = reader.letter()
                reader.take("=")
                composite.append((letter, reader.letter()))
                if reader.peek():
                    reader.take(",")
    line = Line(text, operands, outputs, frozenset(blocked), tuple(guards), tuple(sizes), tuple(composite))
    _check_letters(line)
    return line


def _patterns(reader: _Reader, blocked: set[str], output: bool) -> tuple[Pattern, ...]:
    patterns: list[Pattern] = []
    if not reader.peek() and not output:
        return ()
    while True:
        patterns.append(_pattern(reader, blocked, output))
        if not reader.peek():
            return tuple(patterns)
        reader.take(",")


def _pattern(reader: _Reader, blocked: set[str], output: bool) -> Pattern:
    mark: Mark = ""
    if reader.peek() in ("~", "+"):
        if output:
            raise reader.error("an output takes no mark")
        mark = "~" if reader.take() == "~" else "+"
    dims: list[Dim] = []
    scalar = False
    while (token := reader.peek()) and token not in ",{":
        if token == ".":
            reader.take()
            scalar = True
        elif token == "...":
            if output:
                raise reader.error("an output cannot be a broadcast")
            reader.take()
            dims.append(Broadcast())
        elif token == "[":
            reader.take()
            dims.append(Flat(reader.letter()))
            reader.take("]")
        elif token == "*":
            reader.take()
            dims.append(Run(_blockable(reader, blocked)))
        else:
            dims.append(_group(reader, blocked))
    if (scalar and dims) or (len(dims) > 1 and any(isinstance(d, (Flat, Broadcast)) for d in dims)):
        raise reader.error("'.', '[x]' and '...' stand for all dimensions of a tensor, alone")
    if not dims and not scalar:
        raise reader.error("expected dims; a tensor without dimensions is written '.'")
    reads: tuple[int, ...] | None = None
    if reader.peek() == "{":
        if not output:
            raise reader.error("only an output names the operands that it reads")
        reader.take()
        numbers: list[int] = []
        while reader.peek() != "}":
            if not reader.peek().isdecimal():
                raise reader.error("expected the number of an operand")
            numbers.append(int(reader.take()))
        reader.take()
        reads = tuple(numbers)
    return Pattern(tuple(dims), mark, reads)


def _group(reader: _Reader, blocked: set[str]) -> Group:
    token = reader.peek()
    if token == "_":
        reader.take()
        return ()
    if token != "(":
        return (_blockable(reader, blocked),)
    reader.take()
    letters = [_factor(reader, blocked)]
    if reader.peek() == "|":
        letters = [_sum(reader, letters[0])]
    while reader.peek() != ")":
        letters.append(_factor(reader, blocked))
    reader.take()
    return tuple(letters)


def _factor(reader: _Reader, blocked: set[str]) -> str:
    """A letter of a product, or a sum in parentheses."""
    if reader.peek() != "(":
        return _blockable(reader, blocked)
    reader.take()
    name = _sum(reader, reader.letter())
    reader.take(")")
    return name


def _sum(reader: _Reader, first: str) -> str:
    """The letters of a sum behind its first one; its name."""
    letters = [first]
    while reader.peek() == "|":
        reader.take()
        letters.append(reader.letter())
    return "|".join(letters)


def blocks(letter: str) -> list[str]:
    """The letters that a letter is the sum of; none where it is no sum."""
    return letter.split("|") if "|" in letter else []


def _blockable(reader: _Reader, blocked: set[str]) -> str:
    letter = reader.letter()
    if reader.peek() == "!":
        reader.take()
        blocked.add(letter)
    return letter


def _guards(text: str, start: int, end: int) -> list[Guard]:
    guards = []
    for words in re.split(r"\band\b", text[start:end]):
        position = start + len(words) - len(words.lstrip())
        match = re.fullmatch(r"(not\s+)?([A-Za-z_]\w*)(?:\s*=\s*(.+))?", words.strip())
        if match is None:
            raise NotationError(text, position, "a condition is ARG, not ARG, or ARG=LITERAL")
        value: Any = bool
        if match.group(3) is not None:
            try:
                value = ast.literal_eval(match.group(3))
            except (ValueError, SyntaxError) as error:
                raise NotationError(text, position, f"{match.group(3)!r} is not a literal") from error
        guards.append(Guard(match.group(2), value, match.group(1) is not None))
        start += len(words) + len("and")
    return guards


def _sizes(reader: _Reader, blocked: set[str]) -> list[tuple[str, tuple[Group, ...] | None]]:
    sizes: list[tuple[str, tuple[Group, ...] | None]] = []
    while True:
        argument = reader.letter()
        reader.take("=")
        groups: list[Group] = []
        while (token := reader.peek()) and token != ",":
            groups.append(_group(reader, blocked))
        sizes.append((argument, None if groups == [("result",)] else tuple(groups)))
        if not reader.peek():
            return sizes
        reader.take(",")


def _check_letters(line: Line) -> None:
    """A name is a letter or a run, not both; no letter stands twice in one tensor; sizes name letters of the line."""
    runs: set[str] = set()
    letters: set[str] = set()
    for pattern in line.operands + line.outputs:
        own: list[str] = []
        for dim in pattern.dims:
            if isinstance(dim, Run):
                runs.add(dim.name)
                own.append(dim.name)
            elif isinstance(dim, Flat):
                letters.add(dim.letter)
            elif not isinstance(dim, Broadcast):
                letters.update(dim)
                own.extend(dim)
        twice = [name for name in own if own.count(name) > 1]
        if twice:
            raise NotationError(line.text, line.text.find(twice[0]), f"{twice[0]!r} stands twice in one tensor")
    for name in sorted(runs & letters):
        raise NotationError(line.text, line.text.find(name), f"{name!r} is both a letter and a run")
    for letter, name in line.composite:
        if letter not in runs | letters:
            raise NotationError(line.text, line.text.rfind(f"{letter}={name}"), f"a composite of an unknown {letter!r}")
    for argument, groups in line.sizes:
        for name in (letter for group in groups or () for letter in group):
            if name not in letters:
                raise NotationError(
                    line.text, line.text.find(argument), f"{argument!r} is the size of an unknown letter {name!r}"
                )

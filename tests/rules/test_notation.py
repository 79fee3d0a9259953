"""The parser of lines."""

from __future__ import annotations

import pytest

from hap.rules.families import RULES
from hap.rules.notation import Broadcast, Flat, NotationError, Pattern, Run, blocks, parse


def test_contraction() -> None:
    line = parse("~i k, ~k j -> i j")
    assert line.operands == (Pattern((("i",), ("k",)), "~"), Pattern((("k",), ("j",)), "~"))
    assert line.outputs == (Pattern((("i",), ("j",))),)
    assert line.blocked == frozenset()


def test_marks_runs_products_and_blocks() -> None:
    line = parse("+..., ~n (g c) *x!, . -> n (g o) _ *y!{0 2}, .{}")
    assert line.operands[0] == Pattern((Broadcast(),), "+")
    assert line.operands[1] == Pattern((("n",), ("g", "c"), Run("x")), "~")
    assert line.operands[2] == Pattern(())
    assert line.outputs[0] == Pattern((("n",), ("g", "o"), (), Run("y")), "", (0, 2))
    assert line.outputs[1] == Pattern((), "", ())
    assert line.blocked == {"x", "y"}


def test_generators_and_views() -> None:
    assert parse("-> *d").operands == ()
    assert parse("~[x] -> [x] size size=result").operands[0].dims == (Flat("x"),)
    assert parse("~[x] -> [x] size size=result").sizes == (("size", None),)


def test_clauses() -> None:
    line = parse("~a v! -> v! a when not flag and mode=2 size groups=v, shape=(a v) a composite v=embedding")
    assert [(g.argument, g.value, g.negated) for g in line.guards] == [("flag", bool, True), ("mode", 2, False)]
    assert line.sizes == (("groups", (("v",),)), ("shape", (("a", "v"), ("a",))))
    assert line.composite == (("v", "embedding"),)
    assert all(guard.holds({"flag": False, "mode": 2}) for guard in line.guards)
    assert not line.guards[0].holds({"flag": True, "mode": 2})
    assert not line.guards[1].holds({"flag": False, "mode": 1})


@pytest.mark.parametrize(
    ("text", "problem", "column"),
    [
        ("i k, k j", "expected operands '->' outputs", 0),
        ("i (k j -> i", "expected a letter, found the end", 7),
        ("~i k, k ? -> i", "unexpected character '?'", 8),
        ("i, -> i", "expected dims", 3),
        ("i j -> ~i", "an output takes no mark", 7),
        ("i{0} -> i", "only an output names the operands", 1),
        ("i j -> i{1}", "an output reads operand 1, but there are only 1", 4),
        ("i i -> i", "'i' stands twice in one tensor", 0),
        ("*i j -> i", "'i' is both a letter and a run", 1),
        ("i j -> ... ", "an output cannot be a broadcast", 7),
        ("[x] y -> x", "stand for all dimensions of a tensor, alone", 6),
        ("i -> i size n=z", "'n' is the size of an unknown letter 'z'", 12),
        ("i -> i when n==", "'=' is not a literal", 12),
        ("i -> i composite i", "expected '=', found the end", 18),
        ("i! j -> i! j composite i=one, k=two", "a composite of an unknown 'k'", 30),
    ],
)
def test_errors_show_where(text: str, problem: str, column: int) -> None:
    with pytest.raises(NotationError) as error:
        parse(text)
    message, line, pointer = str(error.value).split("\n")
    assert problem in message
    assert line == f"  {text}"
    assert pointer.index("^") - 2 == column


def test_fixed_lines_of_all_tables_parse() -> None:
    lines = [rule.line for rule in RULES.values() if isinstance(rule.line, str)]
    assert len(lines) > 100
    for line in lines:
        parse(line)


def test_sums() -> None:
    line = parse("~d0 ((a | o | b) in) -> d0 (o in), (a | b)")
    assert line.operands[0].dims == (("d0",), ("a|o|b", "in"))
    assert line.outputs[0].dims == (("d0",), ("o", "in"))
    assert line.outputs[1].dims == (("a|b",),)
    assert blocks("a|o|b") == ["a", "o", "b"]
    assert blocks("o") == []
    with pytest.raises(NotationError, match="expected a letter"):
        parse("~(a | ) -> a")

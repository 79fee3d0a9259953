"""Matrix products."""

from __future__ import annotations

from hap.rules.call import Rule, Table

RULES: Table = {
    "aten.mm.default": Rule("~i k, ~k j -> i j"),
    "aten.bmm.default": Rule("~b i k, ~b k j -> b i j"),
    "aten.addmm.default": Rule("+..., ~i k, ~k j -> i j"),
    "aten.baddbmm.default": Rule("+..., ~b i k, ~b k j -> b i j"),
    "aten.mv.default": Rule("~i k, ~k -> i"),
    "aten.dot.default": Rule("~k, ~k -> ."),
}

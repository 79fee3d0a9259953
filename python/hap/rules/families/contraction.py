"""Matrix products, and distances between rows."""

from __future__ import annotations

from hap.rules.call import Call, Rule, Table


def _trilinear(call: Call) -> str:
    """The product of three tensors, each repeated along its ``expand`` dimensions, summed over ``sumdim``."""
    rank = len(call.shape(0)) + len(call["expand1"])
    operands = [" ".join(f"d{i}" for i in range(rank) if i not in call[f"expand{operand}"]) for operand in (1, 2, 3)]
    result = " ".join(f"d{i}" for i in range(rank) if i not in call["sumdim"])
    return f"~{operands[0]}, ~{operands[1]}, ~{operands[2]} -> {result or '.'}"


def _distance(call: Call) -> str:
    """Of rows in batches alike. The distance for p = 1 is a sum over the features; others are not."""
    features = "m" if call["p"] == 1 else "m!"
    return f"*b i {features}, *b j {features} -> *b i j"


def _distance_of_pairs(call: Call) -> str:
    """Of all rows of one matrix, in one list of pairs."""
    return f"n! {'m' if call['p'] == 1 else 'm!'} -> pairs!"


RULES: Table = {
    "aten.mm.default": Rule("~i k, ~k j -> i j"),
    "aten.bmm.default": Rule("~b i k, ~b k j -> b i j"),
    "aten.addmm.default": Rule("+..., ~i k, ~k j -> i j"),
    "aten.baddbmm.default": Rule("+..., ~b i k, ~b k j -> b i j"),
    "aten.addbmm.default": Rule("+..., ~b i k, ~b k j -> i j"),
    "aten.mv.default": Rule("~i k, ~k -> i"),
    "aten.addmv.default": Rule("+..., ~i k, ~k -> i"),
    "aten.addr.default": Rule("+..., ~i, ~j -> i j"),
    "aten.dot.default": Rule("~k, ~k -> ."),
    "aten.vdot.default": Rule("~k, ~k -> ."),
    "aten._trilinear.default": Rule(_trilinear),
    "aten._pdist_forward.default": Rule(_distance_of_pairs, contiguous=True),
    "aten._pdist_backward.default": Rule("~pairs!, n! m, pairs! -> n! m", contiguous=True),
    "aten._cdist_forward.default": Rule(_distance),
    "aten._cdist_backward.default": Rule("~*b i j, *b i m, *b j m, *b i j -> *b i m"),
}

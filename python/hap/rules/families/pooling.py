"""Pooling over windows of positions. Letters: n what is pooled apart, x positions, y windows."""

from __future__ import annotations

from functools import partial

from hap.rules.call import Rule, Table
from hap.rules.families.reduction import averaged


def _letters(letter: str, count: int) -> str:
    return " ".join(f"{letter}{i}!" for i in range(count))


RULES: Table = {
    "aten.fractional_max_pool2d.default": Rule("n c x0! x1!, n c d! -> n c y0! y1!, n c y0! y1!"),
    "aten.fractional_max_pool3d.default": Rule("n c x0! x1! x2!, n c d! -> n c y0! y1! y2!, n c y0! y1! y2!"),
}
for _count in (2, 3):
    _in, _out = f"*n {_letters('x', _count)}", f"*n {_letters('y', _count)}"
    for _name in ("max_pool{}d_with_indices", "adaptive_max_pool{}d"):
        RULES[f"aten.{_name.format(_count)}.default"] = Rule(f"{_in} -> {_out}, {_out}")
    for _name in ("max_pool{}d_with_indices", "adaptive_max_pool{}d", "fractional_max_pool{}d"):
        RULES[f"aten.{_name.format(_count)}_backward.default"] = Rule(
            f"~{_out}, {_in}, {_out} -> {_in}", contiguous=_name != "max_pool{}d_with_indices"
        )
    for _name in ("avg_pool{}d", "_adaptive_avg_pool{}d"):
        RULES[f"aten.{_name.format(_count)}.default"] = Rule(partial(averaged, f"~{_in} -> {_out}"))
        RULES[f"aten.{_name.format(_count)}_backward.default"] = Rule(partial(averaged, f"~{_out}, {_in} -> {_in}"))
    RULES[f"aten.max_unpool{_count}d.default"] = Rule(f"~{_out}, {_out} -> {_in}")

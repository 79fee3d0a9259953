"""Interpolation, sampling on a grid, padding by neighbours, patches, and channels traded for positions.

Letters: n batch, c channels, h w x positions of the input, p q y positions of the output.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hap.rules.call import Call, Rule, Table
from hap.rules.families.reduction import averaged


def _positions(letter: str, count: int) -> str:
    return " ".join(f"{letter}{i}!" for i in range(count))


def _interpolation(count: int, nearest: bool) -> tuple[Rule, Rule]:
    """Forward and backward over ``count`` dimensions; ``nearest`` copies."""
    inside, outside = _positions("x", count), _positions("y", count)
    size = inside.replace("!", "")
    line = f"~n c {inside} -> n c {outside}"
    return (
        Rule(line if nearest else partial(averaged, line)),
        Rule(f"~n c {outside} -> n c {inside} size input_size=n c {size}"),
    )


_NEAREST = """
    upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
    _upsample_nearest_exact3d
"""
_BETWEEN = """
    upsample_linear1d upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
    _upsample_lanczos2d_aa upsample_trilinear3d
"""


def _by_dimensions(names: str, rules: Callable[[int], tuple[Rule, Rule]]) -> Table:
    """The rules of operators that have the number of dimensions in their name, and of their backwards."""
    table: Table = {}
    for name in names.split():
        count = next(i for i in (1, 2, 3) if f"{i}d" in name)
        table[f"aten.{name}.default"], table[f"aten.{name}_backward.default"] = rules(count)
    return table


def _pad(count: int, backward: bool, call: Call) -> str:
    """Reflection and replication: dimensions that nothing is added to are free."""
    pad = call["padding"]
    rank = len(call.shape())
    inside, outside = [f"n{i}" for i in range(rank)], [f"n{i}" for i in range(rank)]
    for i in range(count):
        if pad[2 * i] or pad[2 * i + 1]:
            inside[rank - 1 - i], outside[rank - 1 - i] = f"x{i}!", f"y{i}!"
    small, large = " ".join(inside), " ".join(outside)
    return f"~{large}, {small} -> {small}" if backward else f"~{small} -> {large}"


def _padding(count: int) -> tuple[Rule, Rule]:
    return Rule(partial(_pad, count, False)), Rule(partial(_pad, count, True))


def _grid(count: int) -> tuple[Rule, Rule]:
    """Each output position reads its own place of the grid and all of the input."""
    inside, outside = _positions("x", count), _positions("y", count).replace("!", "")
    return (
        Rule(f"~n c {inside}, n {outside} d! -> n c {outside}"),
        Rule(f"~n c {outside}, n c {inside}, n {outside} d! -> n c {inside}{{0 2}}, n {outside} d!"),
    )


def _shuffled(back: bool, call: Call) -> tuple[str, dict[str, int]]:
    """``pixel_shuffle``: blocks of r x r channels become positions; and back."""
    factor = call["downscale_factor" if back else "upscale_factor"]
    channels, positions = "*n (c r! s!) h w", "*n c (h r!) (w s!)"
    line = f"~{positions} -> {channels}" if back else f"~{channels} -> {positions}"
    return line, {"r": factor, "s": factor}


RULES: Table = {
    **_by_dimensions(_NEAREST, partial(_interpolation, nearest=True)),
    **_by_dimensions(_BETWEEN, partial(_interpolation, nearest=False)),
    **_by_dimensions("reflection_pad1d reflection_pad2d reflection_pad3d", _padding),
    **_by_dimensions("replication_pad1d replication_pad2d replication_pad3d", _padding),
    **_by_dimensions("grid_sampler_2d grid_sampler_3d", _grid),
    "aten.im2col.default": Rule("~*n c h! w! -> *n (c k!) y!"),
    "aten.col2im.default": Rule("~*n (c k!) y! -> *n c h! w!"),
    "aten.pixel_shuffle.default": Rule(partial(_shuffled, False)),
    "aten.pixel_unshuffle.default": Rule(partial(_shuffled, True)),
    "aten.channel_shuffle.default": Rule("~n (g c) *x -> n (c g) *x size groups=g"),
}

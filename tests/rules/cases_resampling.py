"""Cases of convolution and pooling in one and three dimensions, interpolation, grids, padding and patches."""

from __future__ import annotations

from typing import Any

import torch

from hap.graph import Ref
from tests.rules.sketch import Sketch, add, case, cases

aten = torch.ops.aten

# ---- convolutions of one and three dimensions, with stride, dilation and many groups


def _convolution(s: Sketch, space: int, groups: int, transposed: bool, backward: bool) -> None:
    n, c, o = s.sizes(3)
    channels, filters = (groups, 1 if groups > 2 else c), (groups, o)
    places = [(7,), (5,), (4,)][:space]
    x = s.product((n,), channels, *places)
    weight = (
        s.product(channels, (o,), *[(2,)] * space)
        if transposed
        else s.product(filters, (channels[1],), *[(2,)] * space)
    )
    rest = [2] * space, [1] * space, [2] * space, transposed, [1 if transposed else 0] * space, groups
    out = s.call(aten.convolution.default, x, weight, s.tensor(groups * o), *rest)
    if backward:
        shape = s.shape(out)
        grad = s.product((n,), filters, *((size,) for size in shape[2:]))
        s.call(aten.convolution_backward.default, grad, x, weight, [groups * o], *rest, [True, True, True])


for _space in (1, 3):
    add(
        "aten.convolution.default", "S0 R R -> S0, S1 S1 P -> P, R S0 S0 -> S1, P R P -> P, R P P -> P",
        lambda s, space=_space: _convolution(s, space, 1, False, False),
    )  # fmt: skip
    add(
        "aten.convolution.default", "S0 R R -> S0, S1 S0 P -> P, R S1 S0 -> S1, P R P -> P, R P P -> P",
        lambda s, space=_space: _convolution(s, space, 1, True, False),
    )  # fmt: skip
    add(
        "aten.convolution_backward.default",
        "S0 S0 R -> S0 P P, R S1 S1 -> S1 S1 R, S1 R S0 -> P S0 S0, P R R -> P P P",
        lambda s, space=_space: _convolution(s, space, 1, False, True),
    )
# depthwise: channels are shared through the groups; each has filters of its own, which can be shared too
add(
    "aten.convolution.default", "S0 R R -> S0, S1 S0 S0 -> S1, R S1 S1 -> S2, P R P -> P, R P P -> P",
    lambda s: _convolution(s, 2, 3, False, False),
)  # fmt: skip
add(
    "aten.convolution_backward.default",
    "S0 S0 R -> S0 P P, S1 S1 S0 -> S1 S0 S0, S2 R S1 -> P S1 S1, P R R -> P P P",
    lambda s: _convolution(s, 2, 3, False, True),
)

# ---- pooling


def _pooled(s: Sketch, space: int) -> tuple[Ref, Ref]:
    """An input of pooling by halves, and a tensor of the size of its result."""
    n, c = s.sizes(2)
    return s.tensor(n, c, *[4, 6, 4][:space]), s.tensor(n, c, *[2, 3, 2][:space])


_AVERAGE = ([2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None)


@cases({"avg_pool3d": _AVERAGE, "_adaptive_avg_pool3d": ([2, 3, 2],)}, "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch, target: Any, *arguments: Any) -> None:
    s.call(target, _pooled(s, 3)[0], *arguments)


@cases({"avg_pool3d_backward": _AVERAGE, "_adaptive_avg_pool3d_backward": ()}, "S0 S0 -> S0, S1 S1 -> S1, P R -> P")
def _(s: Sketch, target: Any, *arguments: Any) -> None:
    x, pooled = _pooled(s, 3)
    s.call(target, pooled, x, *arguments)


@cases(
    {"max_pool3d_with_indices": ([2, 2, 2],), "adaptive_max_pool2d": ([2, 3],), "adaptive_max_pool3d": ([2, 3, 2],)},
    "S0 -> S0 S0, S1 -> S1 S1",
)
def _(s: Sketch, target: Any, *arguments: Any) -> None:
    s.call(target, _pooled(s, 2 if "2d" in str(target) else 3)[0], *arguments)


@cases("fractional_max_pool2d fractional_max_pool3d", "S0 S0 -> S0 S0, S1 S1 -> S1 S1")
def _(s: Sketch, target: Any) -> None:
    space = 2 if "2d" in str(target) else 3
    x, pooled = _pooled(s, space)
    n, c, *size = s.shape(pooled)
    s.call(target, x, [2] * space, size, s.positive(n, c, space))


@cases(
    {
        "max_pool3d_with_indices_backward": ([2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], False),
        "adaptive_max_pool2d_backward": (), "adaptive_max_pool3d_backward": (),
        "fractional_max_pool2d_backward": ([2, 2], [2, 3]), "fractional_max_pool3d_backward": ([2, 2, 2], [2, 3, 2]),
    },
    "S0 S0 S0 -> S0, S1 S1 S1 -> S1, P R R -> P",
)  # fmt: skip
def _(s: Sketch, target: Any, *arguments: Any) -> None:
    space = 2 if "2d" in str(target) else 3
    x, pooled = _pooled(s, space)
    forward = getattr(aten, f"adaptive_max_pool{space}d").default
    _, indices = s.call(forward, x, list(s.shape(pooled)[2:]))
    s.call(target, pooled, x, *arguments, indices)


@cases(
    {"max_unpool2d": ([4, 6],), "max_unpool3d": ([4, 6, 4], [2, 2, 2], [0, 0, 0])}, "S0 S0 -> S0, S1 S1 -> S1, P R -> P"
)
def _(s: Sketch, target: Any, *arguments: Any) -> None:
    space = 2 if "2d" in str(target) else 3
    x, pooled = _pooled(s, space)
    _, indices = s.call(getattr(aten, f"adaptive_max_pool{space}d").default, x, list(s.shape(pooled)[2:]))
    s.call(target, pooled, indices, *arguments)


# ---- interpolation

_SIZES = ([5, 3, 4], [3, 6, 2])


def _interpolate(s: Sketch, target: Any, backward: bool, dtype: torch.dtype | None = None) -> None:
    name = str(target)
    space = next(i for i in (1, 2, 3) if f"{i}d" in name)
    n, c = s.sizes(2)
    small, large = _SIZES[0][:space], _SIZES[1][:space]
    corners = [] if "nearest" in name else [False]
    if backward:
        s.call(target, s.tensor(n, c, *large), large, [n, c, *small], *corners)
    else:
        s.call(target, s.tensor(n, c, *small, dtype=dtype), large, *corners)


_INTERPOLATIONS = """
    upsample_nearest1d upsample_linear1d _upsample_nearest_exact1d upsample_nearest2d upsample_bilinear2d
    upsample_bicubic2d _upsample_nearest_exact2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa
    upsample_nearest3d upsample_trilinear3d _upsample_nearest_exact3d
"""
for _name in _INTERPOLATIONS.split():
    for _ending in ("", "_backward"):
        _target = getattr(aten, _name + _ending).default
        add(
            str(_target), "S0 -> S0, S1 -> S1, P -> P",
            lambda s, target=_target, backward=bool(_ending): _interpolate(s, target, backward),
        )  # fmt: skip


@cases("upsample_nearest2d _upsample_nearest_exact2d", "S0 -> S0, S1 -> S1, P -> P")  # copies
@cases("upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa", "S0 -> S0, S1 -> S1")  # rounded
def _(s: Sketch, target: Any) -> None:
    _interpolate(s, target, False, torch.uint8)


# ---- grids


def _grid(s: Sketch, space: int, backward: bool) -> None:
    n, c, p, q = s.sizes(4)
    places = [p, q, 3][:space]
    x, grid = s.tensor(n, c, *[4, 3, 5][:space]), s.positive(n, *places, space, above=-1.2, below=1.2)
    if backward:
        target = getattr(aten, f"grid_sampler_{space}d_backward").default
        s.call(target, s.tensor(n, c, *places), x, grid, 0, 0, False, [True, True])
    else:
        s.call(getattr(aten, f"grid_sampler_{space}d").default, x, grid, 0, 0, False)


add(
    "aten.grid_sampler_2d.default",
    "S0 S0 -> S0, S1 R -> S1, R S1 -> S2, R S2 -> S3, P R -> P",
    lambda s: _grid(s, 2, False),
)
add(
    "aten.grid_sampler_3d.default", "S0 S0 -> S0, S1 R -> S1, R S1 -> S2, R S2 -> S3, R S3 -> S4, P R -> P",
    lambda s: _grid(s, 3, False),
)  # fmt: skip
add(
    "aten.grid_sampler_2d_backward.default",
    "S0 S0 S0 -> S0 S0, S1 S1 R -> S1 P, S2 R S1 -> P S1, S3 R S2 -> P S2, P R R -> P P",
    lambda s: _grid(s, 2, True),
)
add(
    "aten.grid_sampler_3d_backward.default",
    "S0 S0 S0 -> S0 S0, S1 S1 R -> S1 P, S2 R S1 -> P S1, S3 R S2 -> P S2, S4 R S3 -> P S3, P R R -> P P",
    lambda s: _grid(s, 3, True),
)

# ---- padding by neighbours


def _pad(s: Sketch, kind: str, space: int, backward: bool) -> None:
    n, c, w = s.sizes(3)
    # nothing is added to the second dimension of two: it stays free
    size = [[4], [w + 1, 4], [4, 3, 4]][space - 1]
    padding = [1, 2, *([0, 0] if space == 2 else [1, 0, 1, 1])][: 2 * space]
    x = s.tensor(n, c, *size)
    target = getattr(aten, f"{kind}_pad{space}d")
    if backward:
        padded = s.call(target.default, x, padding)
        grad = s.tensor(*s.shape(padded))
        s.call(getattr(aten, f"{kind}_pad{space}d_backward").default, grad, x, padding)
    else:
        s.call(target.default, x, padding)


for _kind in ("reflection", "replication"):
    for _space in (1, 2, 3):
        _free = range(3 if _space == 2 else 2)
        _alike = [f"S{i} S{i} -> S{i}" for i in _free]
        add(
            f"aten.{_kind}_pad{_space}d.default", ", ".join([f"S{i} -> S{i}" for i in _free] + ["P -> P"]),
            lambda s, kind=_kind, space=_space: _pad(s, kind, space, False),
        )  # fmt: skip
        add(
            f"aten.{_kind}_pad{_space}d_backward.default", ", ".join([*_alike, "P R -> P"]),
            lambda s, kind=_kind, space=_space: _pad(s, kind, space, True),
        )  # fmt: skip


# ---- patches, and channels traded for positions


@case("aten.im2col.default", "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.im2col.default, s.tensor(*s.sizes(2), 4, 5), [2, 2], [1, 1], [1, 0], [1, 2])


@case("aten.col2im.default", "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch) -> None:
    n, c = s.sizes(2)
    s.call(aten.col2im.default, s.product((n,), (c, 4), (12,)), [4, 5], [2, 2], [1, 1], [0, 0], [1, 1])


@case("aten.pixel_shuffle.default", "S0 -> S0, S1 -> S1, S4 -> S2, S5 -> S4, P -> P")
def _(s: Sketch) -> None:
    n, c, h, w = s.sizes(4)
    s.call(aten.pixel_shuffle.default, s.product((n,), (c, 2, 2), (h,), (w,)), 2)


@case("aten.pixel_unshuffle.default", "S0 -> S0, S1 -> S1, S2 -> S4, S4 -> S5, P -> P")
def _(s: Sketch) -> None:
    n, c, h, w = s.sizes(4)
    s.call(aten.pixel_unshuffle.default, s.product((n,), (c,), (h, 2), (w, 2)), 2)


@case("aten.channel_shuffle.default", "S0 -> S0, S1 -> S2, S2 -> S1, S3 -> S3, P -> P")
def _(s: Sketch) -> None:
    n, g, c, x = s.sizes(4)
    s.call(aten.channel_shuffle.default, s.product((n,), (g, c), (x,)), g)

"""Cases of order statistics, scans and counts, and of contractions and distances beyond matrix products."""

from __future__ import annotations

from typing import Any

import torch

from tests.rules.sketch import Sketch, add, case, cases

aten = torch.ops.aten


@case("aten.nansum.default", "S0 -> S0, S1 -> P")  # of a sum that is not a number nothing is known
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    values = torch.randn(a, b, generator=s.generator, dtype=torch.float64)
    values[0, 0] = float("nan")
    s.call(aten.nansum.default, s.constant(values), [1])


@case("aten.count_nonzero.default", "S0 -> P, S1 -> P")
def _(s: Sketch) -> None:
    s.call(aten.count_nonzero.default, s.integers(2, *s.sizes(2)))


@case("aten.count_nonzero.dim_IntList", "S0 -> P, S1 -> S0")
def _(s: Sketch) -> None:
    s.call(aten.count_nonzero.dim_IntList, s.tensor(*s.sizes(2), dtype=torch.bool), [0])


@case("aten.count_nonzero.dim_IntList", "S0 -> P, S1 -> S0")  # of a sum it is not the sum
def _(s: Sketch) -> None:
    s.call(aten.count_nonzero.dim_IntList, s.call(aten.relu.default, s.tensor(*s.sizes(2))), [0])


@case("aten.aminmax.default", "S1 -> S0 S0")
def _(s: Sketch) -> None:
    s.call(aten.aminmax.default, s.tensor(*s.sizes(2)), dim=0)


@cases("aminmax median nanmedian", "")
def _(s: Sketch, target: Any) -> None:
    s.call(target, s.tensor(*s.sizes(2)))


@cases({"median.dim": (0,), "nanmedian.dim": (0,), "mode": (0,), "kthvalue": (2, -2)}, "S1 -> S0 S0")
def _(s: Sketch, target: Any, *arguments: Any) -> None:
    a, b = s.sizes(2)
    s.call(target, s.tensor(a + 1, b), *arguments)


@cases("cummax cummin", "S0 -> S0 S0, S2 -> S2 S2")
@cases("logcumsumexp", "S0 -> S0, S2 -> S2, S1 -> S1 logcumsumexp")
def _(s: Sketch, target: Any) -> None:
    s.call(target, s.tensor(*s.sizes(3)), -2)


@case("aten.renorm.default", "S1 -> S1")
def _(s: Sketch) -> None:
    s.call(aten.renorm.default, s.tensor(*s.sizes(3)), 2, 1, 0.5)


@case("aten.linalg_cross.default", "S0 S0 -> S0, S2 S2 -> S2, P R -> P, R P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.linalg_cross.default, s.tensor(a, 3, b), s.tensor(a, 3, b), dim=1)


@case("aten.isin.Tensor_Tensor", "S0 R -> S0, S1 R -> S1")
def _(s: Sketch) -> None:
    s.call(aten.isin.Tensor_Tensor, s.integers(4, *s.sizes(2)), s.integers(4, 3))


@case("aten.isin.Tensor_Scalar", "S0 -> S0, S1 -> S1")
def _(s: Sketch) -> None:
    s.call(aten.isin.Tensor_Scalar, s.integers(4, *s.sizes(2)), 2)


@case("aten.histc.default", "S0 -> P, S1 -> P")
def _(s: Sketch) -> None:
    s.call(aten.histc.default, s.tensor(*s.sizes(2)), 5, -1.0, 1.0)


@case("aten.histc.default", "")  # between the least and the largest value
def _(s: Sketch) -> None:
    s.call(aten.histc.default, s.tensor(*s.sizes(2)), 5)


def _segments(s: Sketch, reduce: str, offsets: bool = False, backward: bool = False, **options: float) -> None:
    a, b = s.sizes(2)
    ends = torch.tensor([0, 2, 2, 5]).expand(a, -1)  # the second segment is empty
    where = {"offsets" if offsets else "lengths": s.constant((ends if offsets else ends.diff()).contiguous())}
    data = s.positive(a, 5, b, above=0.5, below=2.0)
    made = s.call(aten.segment_reduce.default, data, reduce, **where, axis=1, unsafe=True, **options)
    if backward:
        s.call(aten._segment_reduce_backward.default, s.tensor(a, 3, b), made, data, reduce, **where, axis=1, **options)


for _kind in ("sum", "mean"):
    add("aten.segment_reduce.default", "S0 S0 -> S0, S2 R -> S2, P R -> P", lambda s, kind=_kind: _segments(s, kind))
for _kind in ("max", "min", "prod"):
    add("aten.segment_reduce.default", "S0 S0 -> S0, S2 R -> S2", lambda s, kind=_kind: _segments(s, kind, True))
add("aten.segment_reduce.default", "S0 S0 -> S0, S2 R -> S2", lambda s: _segments(s, "sum", initial=1.0))
for _kind in ("sum", "mean", "max", "min", "prod"):
    add(
        "aten._segment_reduce_backward.default", "S0 S0 S0 S0 -> S0, S2 S2 S2 R -> S2, P R R R -> P",
        lambda s, kind=_kind: _segments(s, kind, backward=True),
    )  # fmt: skip


@case("aten.dist.default", "")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.dist.default, s.tensor(a, b), s.tensor(a, b), 2)


# ---- contractions


@case("aten.addbmm.default", "P S0 S0 -> P, S0 S1 R -> S0, P S2 S1 -> P, R R S2 -> S1, P P R -> P, P R P -> P")
def _(s: Sketch) -> None:
    b, i, k, j = s.sizes(4)
    s.call(aten.addbmm.default, s.tensor(i, 1), s.tensor(b, i, k), s.tensor(b, k, j), beta=0.5)


@case("aten.addmv.default", "S0 S0 R -> S0, P S1 S0 -> P, P P R -> P, P R P -> P")
def _(s: Sketch) -> None:
    i, k = s.sizes(2)
    s.call(aten.addmv.default, s.tensor(i), s.tensor(i, k), s.tensor(k), alpha=2)


@case("aten.addr.default", "S0 S0 R -> S0, S1 R S0 -> S1, P P R -> P, P R P -> P")
def _(s: Sketch) -> None:
    i, j = s.sizes(2)
    s.call(aten.addr.default, s.tensor(i, j), s.tensor(i), s.tensor(j))


@case("aten.vdot.default", "S0 S0 -> P, P R -> P, R P -> P")
def _(s: Sketch) -> None:
    (k,) = s.sizes(1)
    s.call(aten.vdot.default, s.tensor(k), s.tensor(k))


@case(
    "aten._trilinear.default",
    "S0 R S0 -> S0, R S0 R -> S1, S1 S1 R -> P, R S2 S1 -> P, P R R -> P, R P R -> P, R R P -> P",
)
def _(s: Sketch) -> None:
    # as in nn.Bilinear: [n, i] with [o, i, j] with [n, j]
    n, o, i, j = s.sizes(4)
    s.call(aten._trilinear.default, s.tensor(n, i), s.tensor(o, i, j), s.tensor(n, j), [1, 3], [0], [1, 2], [2, 3])


@case("aten._cdist_forward.default", "S0 S0 -> S0, S1 R -> S1, R S1 -> S2")
def _(s: Sketch) -> None:
    b, i, j, m = s.sizes(4)
    s.call(aten._cdist_forward.default, s.tensor(b, i, m), s.tensor(b, j, m), 2.0, None)


@case("aten._cdist_forward.default", "S0 R -> S0, R S0 -> S1, S1 S1 -> P")  # for p = 1 the distance is a sum
def _(s: Sketch) -> None:
    i, j, m = s.sizes(3)
    s.call(aten._cdist_forward.default, s.tensor(i, m), s.tensor(j, m), 1.0, None)


@case("aten._pdist_forward.default", "")
def _(s: Sketch) -> None:
    s.call(aten._pdist_forward.default, s.tensor(*s.sizes(2)), 2.0)


@case("aten._pdist_forward.default", "S1 -> P")  # for p = 1 a sum
def _(s: Sketch) -> None:
    s.call(aten._pdist_forward.default, s.tensor(*s.sizes(2)), 1.0)


@case("aten._pdist_backward.default", "R S1 R -> S1, P R R -> P")
def _(s: Sketch) -> None:
    n, m = s.sizes(2)
    p = s.rng.choice([1.0, 2.0, 3.0])
    x = s.tensor(n, m)
    distance = s.call(aten._pdist_forward.default, x, p)
    s.call(aten._pdist_backward.default, s.tensor(*s.shape(distance)), x, p, distance)


@case(
    "aten._cdist_backward.default",
    "S0 S0 S0 S0 -> S0, S1 S1 R S1 -> S1, S2 R S1 S2 -> P, R S2 S2 R -> S2, P R R R -> P",
)
def _(s: Sketch) -> None:
    b, i, j, m = s.sizes(4)
    p = s.rng.choice([1.0, 2.0, 3.0])
    x, y = s.tensor(b, i, m), s.tensor(b, j, m)
    distance = s.call(aten._cdist_forward.default, x, y, p, None)
    s.call(aten._cdist_backward.default, s.tensor(b, i, j), x, y, p, distance)

"""Cases of views, indexing, and creation."""

from __future__ import annotations

from typing import Any

import torch

from tests.rules.sketch import Sketch, case, cases

aten = torch.ops.aten
I64 = torch.int64

# ---- views


@cases("view _unsafe_view reshape", "S0 -> S0, S1 -> S1, S2 -> S2, P -> P")
def _(s: Sketch, target: Any) -> None:
    a, b, c = s.sizes(3)
    s.call(target, s.tensor(a, b, c), [a * b, c])


@cases("view _unsafe_view reshape", "S0 -> S0, S1 -> S1, S2 -> S2, P -> P")
def _(s: Sketch, target: Any) -> None:
    a, b, c = s.sizes(3)
    s.call(target, s.tensor(a, b * c), [a, b, 1, c])


@case("aten.view.default", "S0 -> S0, S3 -> S3, P -> P")
def _(s: Sketch) -> None:
    # 2 x 3 against 3 x 2 in the middle: only that is cut
    a, b = s.sizes(2)
    s.call(aten.view.default, s.tensor(a, 2, 3, b), [a, 3, 2, b])


@case("aten.permute.default", "S0 -> S1, S1 -> S2, S2 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.permute.default, s.tensor(*s.sizes(3)), [2, 0, -2])


@case("aten.permute.default", "S0 -> S2, S1 -> S0, S2 -> S1, P -> P")
def _(s: Sketch) -> None:
    a, b, c = s.sizes(3)
    s.call(aten.permute.default, s.product((a,), (b, c)), [1, 0])


@case("aten.transpose.int", "S0 -> S1, S1 -> S0, S2 -> S2, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.transpose.int, s.tensor(*s.sizes(3)), -2, 0)


@case("aten.t.default", "S0 -> S1, S1 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.t.default, s.tensor(*s.sizes(2)))


@case("aten.t.default", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.t.default, s.tensor(*s.sizes(1)))


@case("aten.squeeze.default", "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.squeeze.default, s.tensor(a, 1, b, 1))


@case("aten.squeeze.dim", "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.squeeze.dim, s.tensor(a, 1, b, 1), -3)


@case("aten.squeeze.dim", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    # a dimension that is longer than one stays, even where a rank holds one unit of it
    s.call(aten.squeeze.dim, s.tensor(*s.sizes(1)), 0)


@case("aten.squeeze.dims", "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.squeeze.dims, s.tensor(a, 1, b, 1), [0, 1, 3])


@case("aten.unsqueeze.default", "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.unsqueeze.default, s.tensor(*s.sizes(2)), -2)


@case("aten.unsqueeze.default", "P -> P")
def _(s: Sketch) -> None:
    s.call(aten.unsqueeze.default, s.tensor(), 0)


@case("aten.expand.default", "R -> S0, S0 -> S1, R -> S2, P -> P")
def _(s: Sketch) -> None:
    # a dimension of size one is not sharded for free: its operand is whole
    a, b, c = s.sizes(3)
    s.call(aten.expand.default, s.tensor(b, 1), [a, -1, c])


@case("aten.repeat.default", "R -> S0, R -> S1, S0 -> S2, S1 -> S3, P -> P")
def _(s: Sketch) -> None:
    a, b, c, d = s.sizes(4)
    s.call(aten.repeat.default, s.tensor(a, b), [c, d, 1])


@case("aten.flip.default", "S1 -> S1, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.flip.default, s.tensor(*s.sizes(2)), [0])


@case("aten.roll.default", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.roll.default, s.tensor(*s.sizes(2)), [1], [-1])


@case("aten.roll.default", "P -> P")  # over the flattened tensor
def _(s: Sketch) -> None:
    s.call(aten.roll.default, s.tensor(*s.sizes(2)), [1])


@cases({"full": (0.5,), "zeros": (), "ones": ()}, "-> S0, -> S1")
def _(s: Sketch, target: Any, *arguments: Any) -> None:
    s.call(target, s.sizes(2), *arguments, dtype=torch.float64)


@case("aten.scalar_tensor.default", "")
def _(s: Sketch) -> None:
    s.call(aten.scalar_tensor.default, 2.5, dtype=torch.float64)


@cases(
    {"arange": (5,), "arange.start": (2, 7), "arange.start_step": (1, 9, 2), "linspace": (0.0, 1.0, 5)}, "-> S0"
)  # fmt: skip
def _(s: Sketch, target: Any, *arguments: Any) -> None:
    s.call(target, *arguments, dtype=torch.float64)


@case("aten.arange.default", "-> S0, -> S1")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten.view.default, s.call(aten.arange.default, a * b), [a, b])


@case("aten.eye.default", "-> S0, -> S1")
def _(s: Sketch) -> None:
    s.call(aten.eye.default, *s.sizes(1))


@case("aten.eye.m", "-> S0, -> S1")
def _(s: Sketch) -> None:
    s.call(aten.eye.m, *s.sizes(2))


@cases("tril_indices triu_indices", "-> S0, -> S1")
def _(s: Sketch, target: Any) -> None:
    s.call(target, 3, 4)


@cases({"full_like": (0.5,), "zeros_like": (), "ones_like": ()}, "S0 -> S0, S1 -> S1")
def _(s: Sketch, target: Any, *arguments: Any) -> None:
    s.call(target, s.tensor(*s.sizes(2)), *arguments)


@cases({"new_full": (0.5,), "new_zeros": (), "new_ones": ()}, "R -> S0, R -> S1")
def _(s: Sketch, target: Any, *arguments: Any) -> None:
    s.call(target, s.tensor(*s.sizes(1)), s.sizes(2), *arguments)


@case("aten.fill.Scalar", "S0 -> S0")
def _(s: Sketch) -> None:
    s.call(aten.fill.Scalar, s.tensor(*s.sizes(1)), 0.5)


@case("aten.fill.Tensor", "S0 R -> S0, R P -> P")
def _(s: Sketch) -> None:
    s.call(aten.fill.Tensor, s.tensor(*s.sizes(1)), s.tensor())

"""Cases of operators that composites carry across a dimension: softmax, statistics, reductions that are no sums."""

from __future__ import annotations

import torch

from tests.rules.sketch import Sketch, case

aten = torch.ops.aten

# ---- softmax


@case("aten._softmax.default", "S0 -> S0, S2 -> S2, S1 -> S1 softmax")
def _(s: Sketch) -> None:
    s.call(aten._softmax.default, s.tensor(*s.sizes(3)), 1, False)


@case("aten._softmax.default", "S0 -> S0, S1 -> S1 softmax, S2 -> S2 softmax")
def _(s: Sketch) -> None:
    # masked scores, of which some ranks hold nothing but masked ones; any part of the dimension
    a, b, c = s.sizes(3)
    mask = s.constant(torch.triu(torch.full((a, b * c), -torch.inf, dtype=torch.float64), 1))
    s.call(aten._softmax.default, s.call(aten.add.Tensor, s.product((a,), (b, c)), mask), -1, False)


@case("aten._log_softmax.default", "S0 -> S0, S2 -> S2, S1 -> S1 log_softmax")
def _(s: Sketch) -> None:
    s.call(aten._log_softmax.default, s.tensor(*s.sizes(3)), 1, False)


@case("aten._log_softmax.default", "S1 -> S1, S0 -> S0 log_softmax")
def _(s: Sketch) -> None:
    s.call(aten._log_softmax.default, s.tensor(*s.sizes(2), dtype=torch.bfloat16), 0, False)


@case("aten._softmax_backward_data.default", "S0 S0 -> S0, P R -> P, S1 S1 -> S1 softmax_backward")
def _(s: Sketch) -> None:
    a, d = s.sizes(2)
    s.call(aten._softmax_backward_data.default, s.tensor(a, d), s.positive(a, d), 1, torch.float64)


@case("aten._log_softmax_backward_data.default", "S0 S0 -> S0, P R -> P, S1 S1 -> S1 log_softmax_backward")
def _(s: Sketch) -> None:
    a, d = s.sizes(2)
    s.call(aten._log_softmax_backward_data.default, s.tensor(a, d), s.tensor(a, d), 1, torch.float64)

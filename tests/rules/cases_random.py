"""hap's own random operators: what is drawn for a part is that part of what is drawn for the whole."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import hap.operators  # noqa: F401
from tests.rules.cases_attention import state
from tests.rules.sketch import Sketch, add, case

aten = torch.ops.aten
own = torch.ops.hap


@case("hap.dropout.default", "S0 R -> S0, S1 R -> S1, S2 R -> S2, P R -> P")
def _(s: Sketch) -> None:
    a, b, c = s.sizes(3)
    s.call(own.dropout.default, s.product((a,), (b, c)), state(s), 0.4, 5)


@case("hap.dropout.default", "S0 R -> S0, S1 R -> S1, P R -> P")
def _(s: Sketch) -> None:
    s.call(own.dropout.default, s.tensor(*s.sizes(2), dtype=torch.bfloat16), state(s), 0.4, 5)


FILLS = {own.rand: (), own.randn: (), own.bernoulli: (0.3,), own.randint: (-2, 7)}


def fill(s: Sketch, operator: Any, parameters: tuple[Any, ...], dtype: torch.dtype) -> None:
    a, b, c = s.sizes(3)
    target = operator.default
    drawn = s.call(target, state(s), [a, b * c], *parameters, 3, dtype, torch.device("cpu"))
    s.call(aten.view.default, drawn, [a, b, c])


for operator, parameters in FILLS.items():
    for dtype in (torch.float64, torch.float32):
        add(
            str(operator.default),
            "R -> S0, R -> S1, R -> S2",
            partial(fill, operator=operator, parameters=parameters, dtype=dtype),
        )

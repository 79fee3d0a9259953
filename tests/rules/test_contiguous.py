"""Kernels that take their operands for contiguous get them so, in whatever order they arrive."""

from __future__ import annotations

import random

import pytest
import torch

from hap.rules import annotate
from hap.rules.families import RULES
from hap.rules.local import run
from tests.rules.cases import CASES
from tests.rules.sketch import Case, Sketch

TRUSTING = [case for case in CASES if RULES.get(case.rule) is not None and RULES[case.rule].contiguous]


def test_there_are_such_kernels() -> None:
    assert "aten.native_group_norm_backward.default" in {case.rule for case in TRUSTING}


@pytest.mark.parametrize("case", TRUSTING, ids=lambda case: case.label)
def test_results_do_not_depend_on_the_order_in_memory(case: Case) -> None:
    sketch = Sketch(random.Random(0), 2)
    case.build(sketch)
    axes = annotate(sketch.graph)
    operator = case.operator(sketch.graph)
    values = [sketch.values[tensor] for tensor in sketch.graph.operators[operator].operands]
    turned = [value.mT.contiguous().mT if value.dim() > 1 else value for value in values]
    assert any(not value.is_contiguous() for value in turned)
    splits = {axis.name: [axis.size] for axis in axes.axes}
    code = axes.local_code(operator, axes.choices[operator][0], splits, 0)
    for result, expected in zip(run([code], [turned])[0], run([code], [values])[0], strict=True):
        assert torch.equal(result, expected)

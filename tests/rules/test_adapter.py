"""Lines made from PyTorch's sharding strategies: a frozen sample, what is left out, and the numeric proof of each."""

from __future__ import annotations

import logging
import random
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from hap.rules import adapter, annotate
from hap.rules.call import bind_arguments
from hap.rules.families import RULES, rule_of
from tests.rules.cases import CASES
from tests.rules.sketch import Case, Sketch, beside_replicated, faults

aten, prims = torch.ops.aten, torch.ops.prims


def adapted_line(case: Case) -> str | None:
    """The adapter's line for the operator of a case."""
    sketch = Sketch(random.Random(0))
    case.build(sketch)
    operator = sketch.graph.operators[case.operator(sketch.graph)]
    rule = adapter.adapted(operator.target)
    return None if rule is None else rule.line(bind_arguments(sketch.graph, operator))  # type: ignore[operator]


LINES = {case.label: adapted_line(case) for case in CASES}
FROZEN = {
    "aten.exp.default-0": "l0 l1 l2 -> l0 l1 l2",
    "aten.atan2.default-0": "l0 l1 l2, l1 b0! -> l0 l1 l2",
    "aten.frexp.Tensor-0": "l0 l1 l2 -> l0 l1 l2, l0 l1 l2",
    "aten.neg.default-0": "~l0 l1 -> l0 l1",
    "aten.add.Tensor-0": "l0 l1 -> l0 l1",
    "aten.add.Tensor-1": "+l0 l1, +l1 -> l0 l1",
    "aten.add.Tensor-2": "+l0, +. -> l0",
    "aten.mul.Tensor-0": "~l0 l1, ~l1 -> l0 l1",
    "aten.div.Tensor-0": "~l0 l1, l1 -> l0 l1",
    "aten.div.Tensor_mode-0": "l0, l0 -> l0",
    "aten.where.self-0": "l0 b0!, l0 l1, l1 -> l0 l1",
    # uneven pieces are not declared as allowed
    "aten.mm.default-0": None,
    "aten.linalg_inv_ex.default-0": None,
    # size arguments
    "aten.view.default-0": None,
    "aten.full.default-0": None,
}
"""By case; a new version of PyTorch that changes them is to be looked at."""

PROVEN = [c for i, c in enumerate(c for c in CASES if LINES[c.label] is not None) if c.rule in RULES or i % 12 == 0]


@pytest.fixture
def only_adapted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotation asks the adapter first."""
    module = sys.modules["hap.rules.annotate"]
    monkeypatch.setattr(module, "rule_of", lambda target: adapter.adapted(target) or rule_of(target))


def test_a_frozen_sample() -> None:
    assert {label: LINES[label] for label in FROZEN} == FROZEN


@pytest.mark.parametrize("case", PROVEN, ids=lambda case: case.label)
def test_adapted_choices_are_right(case: Case, only_adapted: None) -> None:
    for seed in range(3):
        rng = random.Random(seed)
        sketch = Sketch(rng, smallest=1 + seed % 2)
        case.build(sketch)
        axes = annotate(sketch.graph)
        index = case.operator(sketch.graph)
        assert axes.bound[index] is not None
        assert axes.bound[index].rule.outermost  # type: ignore[union-attr]
        assert faults(sketch, axes, [index], rng.randint(1, 4), rng) == []


@pytest.mark.parametrize(
    ("target", "count"), [(prims.erfcx.default, 1), (prims.bessel_j0.default, 1), (prims.hypot.default, 2)]
)
def test_operators_without_a_line_are_sharded(target: Any, count: int) -> None:
    """End to end, without any rule of hap's: every dimension, and of a product of axes only the outermost."""
    rng = random.Random(2)
    sketch = Sketch(rng)
    operands = [sketch.product((2, 3), (4,)) for _ in range(count)]
    sketch.call(target, *operands)
    axes = annotate(sketch.graph)
    index = len(sketch.graph.operators) - 1
    assert axes.replicated == ()
    sides = [(" ".join([f"S{i}"] * count), f"S{i}") for i in (0, 2)]
    assert beside_replicated(axes, index) == {f"{left} -> {right}" for left, right in sides}
    for _ in range(4):
        assert faults(sketch, axes, [index], rng.randint(2, 4), rng) == []


def test_what_a_line_cannot_say_is_left_out() -> None:
    sketch = Sketch(random.Random(0))
    sketch.call(aten.addmm.default, sketch.tensor(4), sketch.tensor(3, 2), sketch.tensor(2, 4))
    call = bind_arguments(sketch.graph, sketch.graph.operators[0])

    def line(*rows: tuple[Any, ...]) -> str | None:
        return adapter.line_of(rows, call)

    assert line((0, "R", 0, "R")) == "b1!, l0 b2!, b3! b4! -> l0 b0!"
    assert line(("P", "R", 1, 0)) == "b2!, b3! l0, l0 b4! -> b0! b1!"
    assert line((1, 0, "R", 1), ("P", "R", "P", "R")) == "l0, ~b1! b2!, b3! l0 -> b0! l0"
    assert line(("P", "P", "P", "P")) == "+b2!, +b3! b4!, +b5! b6! -> b0! b1!"
    for refused in [
        ("R", "R", 1, 0),  # whole from pieces
        ("P", "P", 1, 0),  # a partial operand beside sharded ones
        ("other", "R", 0, "R"),  # another reduction than a sum
        (0, "R", 1, "R"),  # sizes that differ
        ("R", "R", "R", "R"),
        ("R", "R", "P", "R"),
    ]:
        assert line(refused) is None
    # one letter to a dimension: the first strategy counts
    assert line((0, "R", 0, "R"), ("P", "R", 0, "R")) == line((0, "R", 0, "R"))


def test_operators_that_are_no_functions_of_pieces_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Size arguments, lists of tensors, random numbers, changed arguments, and pieces that must be even."""
    info = adapter._registry()[aten.exp.default]
    refused = [aten.view.default, aten.cat.default, aten.bernoulli.default, aten.exp_.default, aten.exp.out]
    monkeypatch.setattr(adapter, "_registry", lambda: dict.fromkeys([*refused, aten.sin.default], info))
    adapter.adapted.cache_clear()
    assert adapter.adapted(aten.sin.default) is not None
    assert [adapter.adapted(target) for target in refused] == [None] * len(refused)
    adapter.adapted.cache_clear()
    monkeypatch.setattr(adapter, "_registry", lambda: {aten.sin.default: replace(info, allow_uneven_sharding=False)})
    assert adapter.adapted(aten.sin.default) is None
    adapter.adapted.cache_clear()


def test_another_version_of_pytorch_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from torch.distributed.tensor import DTensor

    monkeypatch.setattr(DTensor, "_op_dispatcher", object())
    caches = (adapter._registry, adapter.adapted)
    for cached in caches:
        cached.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, logger="hap"):
            assert adapter.adapted(prims.erfcx.default) is None
            assert adapter.adapted(prims.hypot.default) is None
        assert len(caplog.records) == 1
        assert "does not have the sharding strategies" in caplog.text
    finally:
        for cached in caches:
            cached.cache_clear()

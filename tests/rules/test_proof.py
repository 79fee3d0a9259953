"""Every choice of every rule, on random small tensors with random uneven splits, equals the operator on one device."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hap.rules import annotate
from hap.rules.families import every_rule
from tests.rules.cases import CASES
from tests.rules.sketch import Case, Sketch, beside_replicated, faults

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)


def test_every_rule_has_a_case() -> None:
    """A rule without a proof fails here."""
    rules = every_rule().keys()
    assert sorted(rules - {case.rule for case in CASES}) == []
    assert sorted({case.rule for case in CASES} - rules) == []


@every_case
def test_choices(case: Case) -> None:
    """The exact set of choices, so that a rule that only replicates does not pass."""
    for seed in range(2):
        sketch = Sketch(random.Random(seed))
        case.build(sketch)
        axes = annotate(sketch.graph)
        assert axes.replicated == ()
        assert beside_replicated(axes, case.operator(sketch.graph)) == case.expected


@every_case
@settings(max_examples=6, deadline=None, database=None)
@given(
    seed=st.integers(0, 1 << 20), devices=st.integers(1, 4), smallest=st.sampled_from([1, 2]), reordered=st.booleans()
)
def test_proof(case: Case, seed: int, devices: int, smallest: int, reordered: bool) -> None:
    """Random shapes (sizes of one too), splits with zero and one-unit shares, true partials, orders in memory."""
    torch.set_num_threads(1)
    rng = random.Random(seed)
    sketch = Sketch(rng, smallest)
    case.build(sketch)
    axes = annotate(sketch.graph)
    assert faults(sketch, axes, list(range(len(sketch.graph.operators))), devices, rng, reordered) == []


OTHER_TYPES = (torch.int64, torch.uint8, torch.bool)


def _of_type(case: Case, dtype: torch.dtype, rng: random.Random, smallest: int = 2) -> Sketch | None:
    """A case with tensors of another type than float64; ``None`` where its operators are not defined for it."""
    sketch = Sketch(rng, smallest, dtype)
    try:
        case.build(sketch)
    except RuntimeError:
        return None
    return sketch if sketch.typed else None


@every_case
@settings(max_examples=2, deadline=None, database=None)
@given(seed=st.integers(0, 1 << 20), devices=st.integers(2, 4), smallest=st.sampled_from([1, 2]))
def test_proof_of_other_types(case: Case, seed: int, devices: int, smallest: int) -> None:
    torch.set_num_threads(1)
    for dtype in OTHER_TYPES:
        rng = random.Random(seed)
        sketch = _of_type(case, dtype, rng, smallest)
        if sketch is not None:
            axes = annotate(sketch.graph)
            assert faults(sketch, axes, list(range(len(sketch.graph.operators))), devices, rng) == [], dtype


@pytest.mark.parametrize("dtype", OTHER_TYPES, ids=str)
def test_other_types_are_tried(dtype: torch.dtype) -> None:
    """Refusals of kernels and types that cases ask for leave enough."""
    tried = {case.rule.split(".")[1] for case in CASES if _of_type(case, dtype, random.Random(0)) is not None}
    assert len(tried) > 100
    assert {"sum", "cumsum", "index_put", "scatter_add", "constant_pad_nd", "cat", "where", "mul"} < tried

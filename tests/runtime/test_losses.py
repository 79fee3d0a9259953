"""Losses on uneven shares equal the loss of the whole batch: sums and counts are global."""

from __future__ import annotations

import functools
import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from hap import interpret
from hap.program import Program, Splits
from hap.rules import BATCH, AxisGraph, annotate
from hap.runtime.emulate import emulate
from hap.trace import trace
from tests.runtime.losses import GROUPS, IGNORED, SAMPLES, Losses, build, normal
from tests.runtime.programs import random_program, random_splits
from tests.trace.comparison import assert_equal_to_eager

pytestmark = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
every_group = pytest.mark.parametrize("group", GROUPS)


Reference = dict[tuple[str, str], torch.Tensor | None]


@functools.cache
def traced(group: str) -> tuple[AxisGraph, dict[int, torch.Tensor], Reference]:
    module, args, kwargs = build(group)
    graph = assert_equal_to_eager((module, args, kwargs), 1e-11)
    values = interpret.bind(graph, module, args, kwargs)
    return annotate(graph), values, interpret.run(graph, values)


def assert_equal_to_one_device(
    axes: AxisGraph,
    values: dict[int, torch.Tensor],
    expected: Reference,
    program: Program,
    splits: Splits,
    ranks: int,
) -> None:
    for output in emulate(axes, program, splits, ranks, values):
        whole = expected[output.kind, output.name]
        assert whole is not None
        for copy in output.copies:
            torch.testing.assert_close(
                copy, whole, rtol=1e-9, atol=1e-11, equal_nan=True, msg=lambda m, o=output: f"{o.kind} {o.name}: {m}"
            )


def by_samples(axes: AxisGraph, seed: int) -> Program:
    """A random program that shares the batch and nothing else, wherever it can."""
    others = tuple(axis.name for axis in axes.axes if axis.name != BATCH)
    return random_program(axes, random.Random(seed), forbidden_axes=others, sharded=1.0, detours=0.0)


@every_group
def test_every_operator_has_a_rule_and_shares_the_batch(group: str) -> None:
    axes, _, _ = traced(group)
    assert [str(axes.graph.operators[i].target) for i in axes.replicated] == []
    batch = next(i for i, axis in enumerate(axes.axes) if axis.name == BATCH)
    assert axes.axes[batch].size == SAMPLES
    whole = [
        f"{operator.name} at {operator.source}"
        for operator, choices in zip(axes.graph.operators, axes.choices, strict=True)
        if any(o.axis == batch for t in operator.operands for o in axes.occurrences[t])
        and not any(choice.axis == batch for choice in choices)
    ]
    assert group == "coupled" or whole == []


@every_group
@pytest.mark.parametrize("shares", [[1, 1, 1, 1, 1, 1], [0, 4, 2], [1, 0, 5]])
def test_shared_samples_give_the_loss_of_the_batch(group: str, shares: list[int]) -> None:
    """With one sample each, some ranks have nothing but ignored labels, or no other sample to compare with."""
    axes, values, expected = traced(group)
    splits = {**random_splits(axes, len(shares), random.Random(0)), BATCH: shares}
    assert_equal_to_one_device(axes, values, expected, by_samples(axes, sum(shares[:2])), splits, len(shares))


@every_group
@settings(max_examples=2)
@given(seed=st.integers(0, 1 << 20))
def test_random_programs_equal_one_device(group: str, seed: int) -> None:
    axes, values, expected = traced(group)
    generator = random.Random(seed)
    ranks = generator.randint(2, 4)
    forbidden = (BATCH,) if generator.random() < 0.5 else ()
    program = random_program(axes, generator, forbidden_axes=forbidden)
    assert_equal_to_one_device(axes, values, expected, program, random_splits(axes, ranks, generator), ranks)


@pytest.mark.parametrize("shares", [[2, 4], [6, 0]])
def test_nothing_but_ignored_labels_is_nan_as_on_one_device(shares: list[int]) -> None:
    """A mean over no label; a sum over none is zero."""
    module = Losses({"mean": F.cross_entropy, "sum": lambda z, y: F.cross_entropy(z, y, reduction="sum")})
    args = (normal(SAMPLES, 3), torch.full((SAMPLES,), IGNORED))
    axes = annotate(trace(module, args))
    values = interpret.bind(axes.graph, module, args, {})
    expected = interpret.run(axes.graph, values)
    mean, total = expected["output", "mean"], expected["output", "sum"]
    assert mean is not None
    assert mean.isnan()
    assert total == 0
    splits = {**random_splits(axes, 2, random.Random(0)), BATCH: shares}
    assert_equal_to_one_device(axes, values, expected, by_samples(axes, 1), splits, 2)

"""Ordinary models of PyTorch's own layers: all is shared, and every program gives what one device gives."""

from __future__ import annotations

import functools
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.one_device import Step, step
from tests.runtime.ordinary import MODELS, made
from tests.runtime.programs import random_program, random_splits
from tests.trace.comparison import assert_equal_to_eager
from tests.zoo.plans import RANKS, best_plan, sharded

PROGRAMS = settings(max_examples=max(1, int(os.environ.get("HAP_TEST_EXAMPLES", "10")) // 10))

# What less than 95% of the FLOPs is shared where the batch may not be split.
WITHOUT_BATCH = {"speech": 0.8}  # the LSTM goes through a sequence step by step, with all that it remembers

# One process traces a model, for all of its tests.
every_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(f"ordinary {name}")) for name in MODELS]
)
batch_allowed_or_not = pytest.mark.parametrize(
    "forbidden", [pytest.param((), id="all axes"), pytest.param(("batch",), id="without batch")]
)


@functools.cache
def traced(name: str) -> Step:
    return step(*made(name))


@every_model
def test_one_device_equals_eager(name: str) -> None:
    module, args, kwargs = made(name)
    assert_equal_to_eager((module.eval(), args, kwargs), 1e-10)


@every_model
def test_every_operator_has_a_rule(name: str) -> None:
    axes = traced(name).axes
    assert [axes.graph.operators[i].target for i in axes.replicated] == []
    assert [axes.graph.operators[i].name for i in axes.cuts] == []


@every_model
@batch_allowed_or_not
@PROGRAMS
@given(seed=st.integers(0, 2**32))
def test_random_program_equals_one_device(name: str, forbidden: tuple[str, ...], seed: int) -> None:
    whole = traced(name)
    generator = random.Random(f"{name} {seed}")
    ranks = generator.randint(2, 4)
    splits = random_splits(whole.axes, ranks, generator)
    whole.check(random_program(whole.axes, generator, forbidden_axes=forbidden), splits, ranks, 1e-10)


@every_model
@batch_allowed_or_not
def test_best_plan_shards_the_model(name: str, forbidden: tuple[str, ...]) -> None:
    whole = traced(name)
    program, splits = best_plan(whole.axes, forbidden)
    shares = sharded(whole.axes, program, splits)
    assert sum(shares.values()) >= (WITHOUT_BATCH.get(name, 0.95) if forbidden else 0.95), shares
    assert not set(forbidden) & set(shares)
    whole.check(program, splits, RANKS, 1e-10)

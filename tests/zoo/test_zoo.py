"""Whole models as people use them: nothing is left whole, and every program gives what one device gives."""

from __future__ import annotations

import functools
import json
import os
import random
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.runtime.one_device import Step, step
from tests.runtime.programs import random_program, random_splits
from tests.trace.comparison import assert_equal_to_eager
from tests.zoo.entry import SHARDED
from tests.zoo.models import ZOO
from tests.zoo.plans import RANKS, best_plan, sharded

# The operators of each model, written by docs/coverage.py.
COVERAGE = Path(__file__).parents[2] / "docs" / "coverage.json"

# One random program of each model, and a tenth of the usual number in a full run: these are whole steps.
PROGRAMS = settings(max_examples=max(1, int(os.environ.get("HAP_TEST_EXAMPLES", "10")) // 10))

# One process traces a model, for all of its tests.
every_model = pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ZOO])
batch_allowed_or_not = pytest.mark.parametrize(
    "forbidden", [pytest.param((), id="all axes"), pytest.param(("batch",), id="without batch")]
)
pytestmark = pytest.mark.timeout(900)


@functools.cache
def traced(name: str) -> Step:
    return step(*ZOO[name].build())


@every_model
def test_every_operator_has_a_rule(name: str) -> None:
    axes = traced(name).axes
    assert [axes.graph.operators[i].target for i in axes.replicated] == []
    assert [axes.graph.operators[i].name for i in axes.cuts] == []


@pytest.mark.skipif("HAP_TEST_EXAMPLES" not in os.environ, reason="a second trace of every model: for `make test-full`")
@every_model
def test_one_device_equals_eager(name: str) -> None:
    """With dropout off; the running statistics of batch norm are updated all the same."""
    module, args, kwargs = ZOO[name].build()
    module.eval()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.train()
    assert_equal_to_eager((module, args, kwargs), ZOO[name].tolerance)


@every_model
def test_the_coverage_page_lists_its_operators(name: str) -> None:
    listed = json.loads(COVERAGE.read_text()).get(name)
    used = sorted({str(operator.target) for operator in traced(name).axes.graph.operators})
    assert listed == used, "run `make coverage`"


@every_model
def test_dropout_is_on(name: str) -> None:
    graph = traced(name).axes.graph
    state = {value.tensor for value in graph.inputs if value.kind == "rng"}
    assert any(state & set(operator.operands) for operator in graph.operators) == ZOO[name].random


@every_model
@batch_allowed_or_not
@PROGRAMS
@given(seed=st.integers(0, 2**32))
def test_random_program_equals_one_device(name: str, forbidden: tuple[str, ...], seed: int) -> None:
    whole = traced(name)
    generator = random.Random(f"{name} {seed}")
    ranks = generator.randint(2, 4)
    splits = random_splits(whole.axes, ranks, generator)
    program = random_program(whole.axes, generator, forbidden_axes=forbidden)
    whole.check(program, splits, ranks, ZOO[name].tolerance)


@every_model
@batch_allowed_or_not
def test_best_plan_shards_the_model(name: str, forbidden: tuple[str, ...]) -> None:
    whole, entry = traced(name), ZOO[name]
    program, splits = best_plan(whole.axes, forbidden)
    shares = sharded(whole.axes, program, splits)
    assert sum(shares.values()) >= (entry.share_without_batch if forbidden else SHARDED), shares
    assert not set(forbidden) & set(shares)
    stated = entry.without_batch if forbidden else entry.sharded
    assert stated
    for pattern, least in stated.items():
        found = sum(share for axis, share in shares.items() if fnmatchcase(axis, pattern))
        assert found >= least, f"{pattern}: {found:.3f} of the FLOPs, less than {least}; all: {shares}"
    whole.check(program, splits, RANKS, entry.tolerance)

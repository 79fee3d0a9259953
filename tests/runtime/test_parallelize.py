"""``hap.parallelize`` over gloo processes against one device."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.runtime import classes, jobs, pinned
from tests.runtime.launch import Launcher

# Three processes also have a rank between two others.
FULL = pytest.mark.skipif(
    "HAP_TEST_EXAMPLES" not in os.environ, reason="two processes beside three: for `make test-full`"
)


@pytest.fixture(scope="module", params=[pytest.param(2, marks=FULL), 3])
def launcher(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    with Launcher(request.param) as started:
        yield started


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["vgg19", "gpt2"])
def test_training_equals_one_device(launcher: Launcher, name: str) -> None:
    # Planned at once or by the first call: each model both ways, with another number of ranks.
    with_examples = (name == "vgg19") == (launcher.size == 2)
    for errors in launcher.run(jobs.train, launcher.size, name, with_examples, limit=300):
        assert errors["loss"] < 1e-5
        assert errors["parameters"] < 1e-5


@pytest.mark.timeout(400)
def test_random_programs_equal_one_device(launcher: Launcher) -> None:
    for errors in launcher.run(jobs.random_programs, launcher.size, [1, 2, 3], limit=300):
        assert max(errors) < 1e-10


@pytest.mark.timeout(400)
def test_a_program_that_shards_the_sequence_equals_one_device(launcher: Launcher) -> None:
    way = {2: "keys", 3: "ring"}[launcher.size]
    assert max(launcher.run(jobs.sequence_program, launcher.size, way, limit=300)) < 1e-10


@pytest.mark.timeout(400)
def test_outputs_shapes_and_shares(launcher: Launcher) -> None:
    results = launcher.run(jobs.outputs, launcher.size, limit=300)
    assert sum(found.pop("samples") for found in results) == 14
    for found in results:
        # The loss of GPT-2 is taken in float32.
        assert found.pop("another shape") < 1e-6
        assert max(found.values()) < 1e-10, found


@pytest.mark.timeout(400)
def test_constraints_hold_in_every_call(launcher: Launcher) -> None:
    planned = launcher.size == 2
    assert max(launcher.run(pinned.train, launcher.size, planned, limit=300)) < 1e-10


@pytest.mark.timeout(400)
def test_further_split_classes_hold_in_every_call(launcher: Launcher) -> None:
    assert max(launcher.run(classes.train, launcher.size, [1, 2, 3], limit=300)) < 1e-10


def test_one_process() -> None:
    errors = jobs.train(0, 1, "vgg19", True, scale=4.0)
    assert errors["loss"] < 1e-6
    assert errors["parameters"] < 1e-5

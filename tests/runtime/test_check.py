"""``hap.check`` on synthesised programs: small errors where all is right, large ones where something is wrong."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hap
from hap.errors import HapError
from hap.runtime import collectives
from tests import models
from tests.runtime import jobs

FEW = settings(max_examples=int(os.environ.get("HAP_TEST_EXAMPLES", "2")))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["mlp", "vgg19", "gpt2", "bert", "llama"])
@FEW
@given(ranks=st.integers(1, 5), seed=st.integers(0, 2**32), with_batch=st.booleans())
def test_random_programs(name: str, ranks: int, seed: int, with_batch: bool) -> None:
    module, args, kwargs = getattr(models, name)()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    result = hap.check(
        module,
        devices=jobs.cluster(ranks),
        example_inputs=args,
        example_kwargs=kwargs,
        seed=seed,
        count=2,
        splits="random",
        forbidden_axes=() if with_batch else ("batch",),
    )
    # Hugging Face's causal language models compute partly in float32 whatever their element type.
    assert result.error < (1e-5 if name in ("gpt2", "llama") else 1e-10), result.errors
    assert result.programs == 2
    assert result.replicated == ()
    names = {key for key, _ in module.named_parameters()}
    assert names < set(result.errors)
    assert "loss" in result.errors or "" in result.errors
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("options", [{"dropout": 0.3}, {"batch_norm": True}])
def test_optimal_program(options: dict[str, Any]) -> None:
    module, args, kwargs = models.vgg19(**options)
    result = hap.check(module, devices=jobs.cluster(3), example_inputs=args, example_kwargs=kwargs, programs="optimal")
    assert result.error < 1e-10
    assert result.sharded_flops > 0.5
    if "batch_norm" in options:
        assert "features.1.running_var" in result.errors


def test_a_wrong_collective_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = collectives.STEPS[collectives.all_reduce]

    def wrong(tensor: torch.Tensor, *, rank: int) -> collectives.Steps:
        total = yield from right(tensor, rank=rank)
        return total * 1.001

    monkeypatch.setitem(collectives.STEPS, collectives.all_reduce, wrong)
    module, args, kwargs = models.mlp()
    result = hap.check(module, devices=jobs.cluster(3), example_inputs=args, example_kwargs=kwargs, count=5)
    assert result.error > 1e-4


def test_wrong_arguments() -> None:
    module, args, _ = models.mlp()
    with pytest.raises(HapError, match=r'no axis "bach"; it has: .*batch'):
        hap.check(module, devices=jobs.cluster(2), example_inputs=args, forbidden_axes=("bach",))
    with pytest.raises(HapError, match='expected "random" or "optimal"'):
        hap.check(module, devices=jobs.cluster(2), example_inputs=args, programs="best")  # type: ignore[arg-type]
    with pytest.raises(HapError, match=r"expected a torch\.nn\.Module"):
        hap.check(None, devices=jobs.cluster(2), example_inputs=args)  # type: ignore[arg-type]

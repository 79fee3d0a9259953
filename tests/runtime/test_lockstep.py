"""All ranks in lock-step against one device, in float64, under random programs that no synthesiser would make."""

from __future__ import annotations

import functools
import os
import random
from dataclasses import replace

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hap._core import Graph
from hap.program import SplitClass
from hap.rules import AxisGraph, divided
from hap.rules.classes import class_name
from tests import models
from tests.runtime.one_device import Step, step
from tests.runtime.programs import random_program, random_splits

FEW = settings(max_examples=int(os.environ.get("HAP_TEST_EXAMPLES", "4")))


def tolerance(axes: AxisGraph) -> float:
    """Hugging Face's causal language models compute partly in float32 whatever their element type."""
    return 1e-5 if any(tensor.dtype == torch.float32 for tensor in axes.graph.tensors) else 1e-10


@functools.cache
def traced(name: str) -> Step:
    options = {"attention": "eager"} if name == "bert_eager" else {}
    options |= {"batch_norm": True, "dropout": 0.3} if name == "vgg19_batch_norm" else {}
    options |= {"dropout": 0.3, "layers": 1} if name == "gpt2_dropout" else {}
    build = getattr(models, {"bert_eager": "bert", "vgg19_batch_norm": "vgg19", "gpt2_dropout": "gpt2"}.get(name, name))
    return step(*build(**options))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", ["mlp", "noisy", "vgg19", "vgg19_batch_norm", "gpt2", "gpt2_dropout", "bert", "bert_eager", "llama"]
)
@FEW
@given(seed=st.integers(0, 2**32))
def test_random_program_equals_one_device(name: str, seed: int) -> None:
    whole = traced(name)
    axes = whole.axes
    generator = random.Random(seed)
    ranks = generator.randint(1, 5)
    splits = random_splits(axes, ranks, generator)
    forbidden = ("batch",) if generator.random() < 0.5 else ()
    whole.check(random_program(axes, generator, forbidden_axes=forbidden), splits, ranks, tolerance(axes))


@pytest.mark.parametrize("name", ["mlp", "vgg19_batch_norm", "gpt2_dropout", "bert_eager"])
@FEW
@given(seed=st.integers(0, 2**32))
def test_split_classes_change_nothing(name: str, seed: int) -> None:
    """Two axes are split otherwise in random stretches of the model, one more where it is stored."""
    whole = traced(name)
    generator = random.Random(seed)
    chosen = generator.choices([axis.name for axis in whole.axes.axes], k=3)
    pairs = zip(chosen, ("compute", "compute", "storage"), strict=True)
    classes = {class_name(axis, role): SplitClass(axis, role) for axis, role in pairs}
    axes = divided(whole.axes, classes)
    ranks = generator.randint(2, 4)
    splits = random_splits(axes, ranks, generator)
    program = random_program(axes, generator, forbidden_axes=())
    Graph(axes.to_json()).validate(msgspec.json.encode(program).decode())
    replace(whole, axes=axes).check(program, splits, ranks, tolerance(axes))

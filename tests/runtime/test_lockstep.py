"""All ranks in lock-step against one device, in float64, under random programs that no synthesiser would make."""

from __future__ import annotations

import functools
import os
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hap import interpret
from hap.rules import AxisGraph, annotate
from hap.runtime.emulate import emulate
from hap.trace import trace
from tests import models
from tests.runtime.programs import random_program, random_splits

FEW = settings(max_examples=int(os.environ.get("HAP_TEST_EXAMPLES", "4")))


def tolerance(axes: AxisGraph) -> float:
    """Hugging Face's causal language models compute partly in float32 whatever their element type."""
    return 1e-5 if any(tensor.dtype == torch.float32 for tensor in axes.graph.tensors) else 1e-10


Reference = dict[tuple[str, str], torch.Tensor | None]


@functools.cache
def traced(name: str) -> tuple[AxisGraph, dict[int, torch.Tensor], Reference]:
    options = {"attention": "eager"} if name == "bert_eager" else {}
    options |= {"batch_norm": True, "dropout": 0.3} if name == "vgg19_batch_norm" else {}
    build = getattr(models, {"bert_eager": "bert", "vgg19_batch_norm": "vgg19"}.get(name, name))
    module, args, kwargs = build(**options)
    axes = annotate(trace(module, args, kwargs))
    values = interpret.bind(axes.graph, module, args, kwargs, rng=(3, 1))
    return axes, values, interpret.run(axes.graph, values)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["mlp", "vgg19", "vgg19_batch_norm", "gpt2", "bert", "bert_eager", "llama"])
@FEW
@given(seed=st.integers(0, 2**32))
def test_random_program_equals_one_device(name: str, seed: int) -> None:
    axes, values, reference = traced(name)
    before = {tensor: value.clone() for tensor, value in values.items()}
    generator = random.Random(seed)
    ranks = generator.randint(1, 5)
    splits = random_splits(axes, ranks, generator)
    forbidden = ("batch",) if generator.random() < 0.5 else ()
    program = random_program(axes, generator, forbidden_axes=forbidden)
    outputs = emulate(axes, program, splits, ranks, values)

    gradients = [g for (kind, _), g in reference.items() if kind == "gradient" and g is not None]
    floor = 1e-3 * float(torch.stack([g.double().norm() for g in gradients]).norm())
    assert len(outputs) == sum(output.tensor is not None for output in axes.graph.outputs)
    for output in outputs:
        expected = reference[output.kind, output.name]
        assert expected is not None
        for copy in output.copies:
            difference = float((copy.double() - expected.double()).norm())
            limit = tolerance(axes) * max(float(expected.double().norm()), floor)
            assert difference <= limit, f"{output.kind} {output.name}: {difference} over {limit}"
    for tensor, value in before.items():
        assert torch.equal(value, values[tensor]), "the run wrote to its inputs"

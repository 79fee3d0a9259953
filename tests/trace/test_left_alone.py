"""What a trace leaves alone, what it is a function of, and element types other than float64."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

import hap
from hap import interpret
from hap.rules import annotate
from hap.runtime.emulate import emulate
from hap.trace.fingerprint import fingerprint
from tests.runtime.programs import random_program, random_splits
from tests.trace.comparison import assert_equal_to_eager
from tests.trace.test_written_models import ENTRIES
from tests.trace.written import Call, assert_left_as_it_was, floats, made

REPEATED = ("nested containers out", "containers", "an encoding in")


def fingerprints() -> list[str]:
    """Of some entries, traced in this process."""
    calls = [made(ENTRIES[name]) for name in REPEATED]
    return [fingerprint(hap.trace(call.module, call.args, call.kwargs)) for call in calls]


@pytest.mark.timeout(300)
def test_two_processes_and_two_traces_give_the_same_graphs() -> None:
    code = "from tests.trace.test_left_alone import fingerprints; print(*fingerprints())"
    other = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    here = fingerprints()
    assert here == fingerprints()
    assert other.stdout.split() == here


def test_compiled_functions_of_the_user_stay_compiled() -> None:
    compiled = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        compiled.append(graph)
        return graph.forward

    module, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), floats(5, 4)
    function = torch.compile(lambda x: module(x).sum(), backend=backend)
    expected = function(x)
    settings = torch._dynamo.config.shallow_copy_dict()  # type: ignore[attr-defined]
    graph = assert_left_as_it_was(Call(module, (x,)), lambda: hap.trace(module, (x,)))
    assert graph.operators
    assert torch._dynamo.config.shallow_copy_dict() == settings  # type: ignore[attr-defined]
    assert torch.equal(function(x), expected)
    assert len(compiled) == 1


def sequence(dtype: torch.dtype) -> Call:
    body = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 3), nn.Softmax(-1))
    return Call(Squared(body).to(dtype), (floats(5, 4).to(dtype),))


class Squared(nn.Module):
    """The mean of the squares, in float32."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).abs().float().square().mean()


class Complex(nn.Module):
    """A filter among frequencies with a complex weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x) * self.weight


@pytest.mark.parametrize(
    ("make", "tolerance"),
    [
        (lambda: sequence(torch.float16), 5e-3),
        (lambda: sequence(torch.bfloat16), 5e-2),
        (lambda: Call(Squared(Complex()), (floats(5, 4),)), 1e-5),
    ],
    ids=["float16", "bfloat16", "complex64"],
)
def test_element_types(make: Callable[[], Call], tolerance: float) -> None:
    call = made(make)
    graph = assert_equal_to_eager((call.module, call.args, {}), tolerance)
    axes = annotate(graph)
    values = interpret.bind(graph, call.module, call.args)
    expected = interpret.run(graph, values)
    for seed in range(3):
        generator = random.Random(seed)
        program = random_program(axes, generator)
        for output in emulate(axes, program, random_splits(axes, 3, generator), 3, values):
            reference = expected[output.kind, output.name]
            assert reference is not None
            for copy in output.copies:
                assert copy.dtype == reference.dtype
                error = (copy - reference).abs().max().item()
                assert error <= tolerance * max(reference.abs().max().item(), 1e-3), output.name

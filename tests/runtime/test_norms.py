"""Norms and losses whose statistics are over what is sharded: equal to one device, running buffers too."""

from __future__ import annotations

import functools
import os
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from hap.program import Compute
from tests.runtime.one_device import Step, step
from tests.runtime.programs import random_program, random_splits

FEW = settings(max_examples=int(os.environ.get("HAP_TEST_EXAMPLES", "4")), deadline=None)


class Norms(nn.Module):
    """Every norm on one image, then reductions that are no sums."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = nn.BatchNorm2d(6, momentum=0.3)
        self.instance = nn.InstanceNorm2d(6, affine=True, track_running_stats=True)
        self.group = nn.GroupNorm(3, 6)
        self.layer = nn.LayerNorm((4, 3))
        self.rms = nn.RMSNorm(3)
        self.vector = nn.BatchNorm1d(12)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.group(F.gelu(self.instance(self.batch(x))))
        x = self.rms(F.gelu(self.layer(x)))
        scores = self.vector(x.amax(1).flatten(1))
        weights = torch.softmax(scores.cumsum(1), 1)
        return F.cross_entropy(scores * weights, labels, ignore_index=0) + 1e-3 * torch.logsumexp(x, (1, 2)).sum()


@functools.cache
def traced() -> Step:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Norms().double()
        for parameter in module.parameters():
            nn.init.uniform_(parameter, 0.5, 1.5)
        return step(module, (torch.randn(5, 6, 4, 3, dtype=torch.float64), torch.tensor([0, 3, 7, 0, 11])), {})


@FEW
@given(seed=st.integers(0, 2**32))
def test_random_program_equals_one_device(seed: int) -> None:
    """Also with a batch smaller than the number of devices, ignored labels, and the batch whole."""
    whole = traced()
    generator = random.Random(seed)
    ranks = generator.randint(2, 6)
    splits = random_splits(whole.axes, ranks, generator)
    forbidden = ("batch",) if generator.random() < 0.5 else ()
    whole.check(random_program(whole.axes, generator, forbidden_axes=forbidden), splits, ranks, 1e-10)


@pytest.mark.parametrize("units", [[3, 2], [1, 0, 4], [1, 1, 1, 1, 1], [0, 5]])
def test_batch_statistics_are_exact_over_a_sharded_batch(units: list[int]) -> None:
    """All that can be shared is shared along the batch alone: loss, gradients and running buffers as on one device."""
    whole = traced()
    generator = random.Random(sum(units) * len(units))
    others = tuple(axis.name for axis in whole.axes.axes if axis.name != "batch")
    program = random_program(whole.axes, generator, forbidden_axes=others, sharded=1.0, detours=0.0)
    splits = random_splits(whole.axes, len(units), generator) | {"batch": units}
    whole.check(program, splits, len(units), 1e-10)
    buffers = {name for kind, name in whole.outputs if kind == "buffer"}
    assert {"batch.running_mean", "batch.running_var", "instance.running_var", "vector.running_var"} <= buffers
    sums = [
        instruction
        for instruction in program.instructions
        if isinstance(instruction, Compute) and instruction.axis == "batch" and "sum" in instruction.target
    ]
    assert sums


def test_random_programs_take_composites() -> None:
    """So that they are proven here as well, through lowering and the runtime's collectives."""
    taken: set[str] = set()
    for seed in range(12):
        program = random_program(traced().axes, random.Random(seed), forbidden_axes=("batch",), sharded=1.0)
        taken |= {i.composite for i in program.instructions if isinstance(i, Compute) and i.composite is not None}
    assert {"norm", "norm_backward", "softmax", "log_softmax", "amax", "cumsum", "logsumexp"} <= taken

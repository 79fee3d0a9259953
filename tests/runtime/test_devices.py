"""Lowered graphs on another device than they were traced on: on one that is pretended, which refuses to mix devices."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from hap.operators.attention import _sdpa, _sdpa_backward
from hap.operators.random import _dropout, _rand, _randint, _randn
from hap.runtime import along, collectives, group, lockstep
from hap.runtime.lower import lower
from hap.runtime.placing import Layout, layout
from hap.runtime.requests import Broadcasts, Reduces
from hap.runtime.schedule import Property, arrange
from tests.runtime.launch import Launcher
from tests.runtime.programs import random_program, random_splits
from tests.runtime.test_lockstep import traced


def pretended(rank: int) -> None:
    """All ranks in lock-step on tensors that have no values, under a random program; and kernels of hap's own."""
    _setup_privateuseone_for_python_backend("pretended")
    device = torch.device("pretended:0")

    def fake(like: torch.Tensor) -> torch.Tensor:
        return torch.empty(like.shape, dtype=like.dtype, device=device)

    def crossing(*arguments: Any) -> tuple[Any, ...]:
        with unset_fake_temporarily():  # it asks for values
            found = along.crossing(*arguments[:-1], torch.device("cpu"))
        return tuple(tuple(map(fake, order)) for order in found)

    patches = (
        mock.patch.object(lockstep, "_buffers_of", return_value=[]),  # they are compared
        mock.patch.object(collectives, "crossing", crossing),
    )
    with patches[0], patches[1], torch.no_grad():
        run("noisy", random.Random(0), device, fake)
        with FakeTensorMode():
            rng, x = torch.zeros(2, dtype=torch.int64, device=device), torch.empty(2, 4, 6, 8, device=device)
            made = [_dropout(x, rng, 0.5, 0), _rand(rng, (3, 4), 0, torch.float32, device)]
            made += [_randn(rng, (3, 4), 0, torch.float64, device), _randint(rng, (3,), 0, 9, 0, torch.int64, device)]
            window = ([2, 4, 6, 9], [0, 0, 0, 1], [2, 4, 6, 6])
            out, lse = _sdpa(x, x, x, None, rng, 0.5, True, 1.0, False, 0, *window)
            gradients = _sdpa_backward(out, x, x, x, out, lse, None, rng, 0.5, True, 1.0, False, 0, False, *window)
            assert {one.device for one in (*made, out, lse, *gradients[:3])} == {device}


def run(name: str, generator: random.Random, device: torch.device, fake: Any) -> None:
    axes, values = traced(name).axes, traced(name).values
    ranks = generator.randint(2, 4)
    splits, program = random_splits(axes, ranks, generator), random_program(axes, generator)
    schedule = arrange(axes, program)
    programs = [lower(axes, program, splits, at, ranks=ranks, schedule=schedule, device=device) for at in range(ranks)]
    here = [lockstep.Here(at, ranks) for at in range(ranks)]

    def placed(prop: Property) -> Layout:
        return layout(axes, splits, prop.tensor, prop.placements, ranks)

    with FakeTensorMode():
        whole = {tensor: fake(value) for tensor, value in values.items()}

        def pieces(given: Any, at: int) -> list[torch.Tensor]:
            return [placed(one.gains).share(whole[one.gains.tensor], at) for one in given]

        forward = lockstep.run([
            lockstep.interpret(one.forward_graph, [*pieces(one.inputs, at), here[at]], at)
            for at, one in enumerate(programs)
        ])  # fmt: skip
        saved = [results[len(schedule.outputs) :] for results in forward]
        backward = lockstep.run([
            lockstep.interpret(one.backward_graph, [*saved[at], *pieces(one.tangents, at), here[at]], at)  # type: ignore[arg-type]
            for at, one in enumerate(programs)
        ])  # fmt: skip
    for results, asked in ((forward, schedule.outputs), (backward, schedule.gradients)):
        for at, found in enumerate(results):
            assert {one.device for one in found} <= {device}
            for one, wanted in zip(found, asked, strict=False):
                assert tuple(one.shape) == placed(wanted.needs).shapes[at]


@pytest.mark.timeout(200)
def test_nothing_is_made_on_the_device_that_traced() -> None:
    with Launcher(1) as launcher:  # a process of its own: a device is pretended for good
        launcher.run(pretended)


def test_what_a_backend_begins_together() -> None:
    """As NCCL does, by a backend that moves nothing."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        ranks = group.Group(dist.group.WORLD)
        buffers = tuple(enumerate(torch.ones(2, 3)))
        for request in (Broadcasts(buffers), Reduces(buffers)):
            assert len(ranks.issue(request, asynchronous=True)[1]) == 2
            with mock.patch.object(group, "_GROUPING", {"fake"}):
                _, (together,) = ranks.issue(request, asynchronous=True)
            group.wait([together])
    finally:
        dist.destroy_process_group()

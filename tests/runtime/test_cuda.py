"""On a GPU: one process, several that share it over gloo, and NCCL. Skipped without one."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import hap
from hap.operators.philox import words
from hap.runtime import collectives
from hap.runtime.group import Group, wait
from hap.runtime.requests import AllGather, AllReduce, AllToAll, Broadcasts, Reduces, ReduceScatter, in_place
from tests.runtime import training
from tests.runtime.conversions import COLLECTIVES, LOCAL, case
from tests.runtime.launch import Launcher, free_port

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.timeout(300),
]
CUDA = "cuda:0"


def devices(ranks: int) -> hap.Cluster:
    """Unequal ones, slow enough to all work, with a part of the GPU's memory each."""
    boards = [
        hap.Device(flops=1e9 * (rank + 1), memory_bandwidth=1e9, memory=2e9, reserve=0.0) for rank in range(ranks)
    ]
    return hap.Cluster(boards, link=hap.Link(bandwidth=1e9, latency=1e-6))


def trained(rank: int, ranks: int, device: str, **options: Any) -> None:
    """Loops of training beside one device; masks of dropout do not depend on the device."""
    batch = [value.to(device) for value in training.batches(30, 1)[0]]
    alone = training.classifier().to(device)
    several = hap.parallelize(training.classifier().to(device), devices(ranks), batch, active=range(ranks), **options)
    assert all(parameter.device == torch.device(device) for parameter in several.parameters())
    optimisers = [torch.optim.AdamW(one.parameters(), lr=3e-3, fused=True) for one in (alone, several)]
    for step, values in enumerate(training.batches(30, 6)):
        x, y = (value.to(device) for value in values)
        losses = []
        for one, optimiser in zip((alone, several), optimisers, strict=True):
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=step > 3):
                loss = one(x, y)
            loss.backward()
            losses.append(loss.item())
            training.clip(one, 0.5, 2.0)
            optimiser.step()
            optimiser.zero_grad()
        assert losses[1] == pytest.approx(losses[0], rel=1e-4 if step < 4 else 0.03)
    parts = [(x[:10], y[:10]), (x[10:], y[10:])]
    with several.no_sync():
        several(*parts[0]).backward()
    several(*parts[1]).backward()
    for part in parts:
        alone(*part).backward()
    for name, parameter in alone.named_parameters():
        found = several._hap_session.whole(name, dict(several.named_parameters())[name].grad)
        torch.testing.assert_close(found, parameter.grad, rtol=0.05, atol=1e-3)
    noisy = [training.classifier(dropout=0.3).to(place) for place in ("cpu", device)]
    losses = []
    for one, place in zip(noisy, ("cpu", device), strict=True):
        torch.manual_seed(5)
        model = hap.parallelize(one, devices(ranks), active=range(ranks))
        losses.append([model(x.to(place), y.to(place)).item() for _ in range(2)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def converted(rank: int, ranks: int, device: str, seeds: int) -> None:
    """Every conversion in every implementation, on tensors of the device."""
    group = Group(dist.group.WORLD)
    for kind in (*COLLECTIVES, *LOCAL):
        for seed in range(seeds):
            made = case(kind, ranks, seed)
            one, arguments = made.inputs[rank].to(device), made.arguments[rank]
            if kind in COLLECTIVES:
                found = getattr(collectives, kind)(one, name="x", group=group, **arguments)
                begun = [collectives.start(kind, one, name="x", group=group, **arguments) for _ in range(3)]
                busy = torch.ones(256, 256, device=device)
                for _ in range(10):
                    busy = busy @ busy / 256  # beside what is under way
                for again in begun:
                    torch.testing.assert_close(again.wait(), found)
            else:
                found = getattr(collectives, kind)(one, **arguments)
            assert found.device == one.device
            if kind != "pad" and kind != "keep_one":
                torch.testing.assert_close(found.cpu(), made.expected[rank])


def on_nccl(device: str, backend: str) -> None:
    """One rank of NCCL: all that a group asks of it, several at once as a group."""
    with_address = f"tcp://127.0.0.1:{free_port()}"
    dist.init_process_group(backend, init_method=with_address, rank=0, world_size=1)
    try:
        group = Group(dist.group.WORLD)
        x = torch.arange(6.0, device=device)
        for dtype in (torch.float32, torch.bfloat16, torch.int16, torch.bool, torch.int64, torch.complex64):
            value = x.to(dtype)
            gathered, works = group.issue(AllGather(value), asynchronous=True)
            wait(works)
            torch.testing.assert_close(gathered, value)
            received, works = group.issue(AllToAll(value, (6,), (6,)), asynchronous=True)
            wait(works)
            torch.testing.assert_close(received, value)
            buffers = [value.clone() for _ in range(3)]
            wait(group.issue(Broadcasts(tuple((0, one) for one in buffers)), asynchronous=True)[1])
            if dtype not in (torch.bool, torch.int16):
                wait(group.issue(Reduces(tuple((0, one) for one in buffers)), asynchronous=True)[1])
                part, works = group.issue(ReduceScatter(value), asynchronous=True)
                wait(works)
                torch.testing.assert_close(part, value)
                total = group.run("sum", in_place(AllReduce(value.clone()), value))
                torch.testing.assert_close(total, value)
            for one in buffers:
                torch.testing.assert_close(one, value)
        trained(0, 1, device)
    finally:
        dist.destroy_process_group()


def test_one_process_is_as_eager() -> None:
    trained(0, 1, CUDA)


def test_processes_that_share_a_gpu() -> None:
    with Launcher(2) as launcher:
        launcher.run(trained, 2, CUDA, limit=200)
        launcher.run(converted, 2, CUDA, 20, limit=200)


def test_nccl() -> None:
    on_nccl(CUDA, "nccl")


def test_random_words_are_those_of_the_cpu() -> None:
    rng = torch.tensor([3, 7])
    generator = random.Random(0)
    for _ in range(20):
        sizes = [generator.randint(1, 9) for _ in range(3)]
        starts = [generator.randrange(size) for size in sizes]
        lengths = [size - start for size, start in zip(sizes, starts, strict=True)]
        on_gpu = words(rng.to(CUDA), 1, sizes, starts, lengths)
        assert torch.equal(on_gpu.cpu(), words(rng, 1, sizes, starts, lengths))


def test_profile() -> None:
    (device,) = hap.profile(device=CUDA, dtypes=[torch.float32], quick=True).devices
    assert device.memory <= torch.cuda.get_device_properties(0).total_memory
    assert "matmul/float32" in device.measured


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW])
def test_memory_is_what_is_predicted(optimiser: Any) -> None:
    layers = [part for _ in range(4) for part in (nn.Linear(2048, 2048), nn.GELU())]
    x = torch.randn(4096, 2048, device=CUDA)
    module = training.Classifier(0.0)
    module.layers = nn.Sequential(*layers)
    y = torch.zeros(4096, dtype=torch.int64, device=CUDA)
    module.to(CUDA)
    free = hap.Cluster([hap.Device(flops=1e12, memory_bandwidth=1e12, memory=8e9, reserve=0.0)])
    model = hap.parallelize(module, free, (x, y), optimiser=optimiser)
    made = optimiser(model.parameters(), lr=1e-3)
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        model(x, y).backward()
        made.step()
        made.zero_grad()
    measured = torch.cuda.max_memory_allocated()
    assert measured == pytest.approx(model.plan.predicted_memory[0], rel=0.2)

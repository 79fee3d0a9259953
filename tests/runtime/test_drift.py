"""What all ranks hold whole is rank 0's again after so many steps, and the drift until then is measured."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

import hap
from hap.errors import HapError
from hap.rules import annotate
from hap.runtime import drift, lockstep
from tests.runtime import jobs, test_finite
from tests.runtime.launch import Launcher
from tests.runtime.training import Classifier, batches, classifier

STEPS, INTERVAL = 200, 20
PINS = {"layers.6.weight": Shard(1)} | {f"layers.{part}": Replicate() for part in (0, 1, 4)}


@dataclass
class Run:
    """What a rank saw: hashes of all that is whole after each step, what was reported by step, and the losses."""

    hashes: list[str]
    drifts: dict[int, drift.Drift]
    losses: list[float]


class Blocked(TorchDispatchMode):
    """Multiplies matrices in two blocks."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.ops.aten.mm.default:
            return function(*args, **(kwargs or {}))
        left, right = args
        half = left.shape[1] // 2
        return left[:, :half] @ right[:half] + left[:, half:] @ right[half:]


def _bits(model: Any, optimiser: torch.optim.Optimizer) -> str:
    """A hash of the parameters and buffers of the layers that are whole, and of the optimiser's state for them."""
    digest = hashlib.sha256()
    for part in (0, 1, 4):
        for value in (*model.layers[part].parameters(), *model.layers[part].buffers()):
            kept = [value, *optimiser.state.get(value, {}).values()]
            for one in kept:
                digest.update(one.detach().numpy().tobytes())
    return digest.hexdigest()


def far(ranks: int) -> hap.Cluster:
    """Devices so far from each other that each does what it can alone."""
    device = hap.Device(flops=1e9, memory_bandwidth=1e9, memory=1e9)
    return hap.Cluster([device] * ranks, link=hap.Link(bandwidth=1e6, latency=1.0))


def _train(rank: int) -> Run:
    """With other kernels on each rank, which computes all but the last layer alone."""
    torch.backends.mkldnn.set_flags(rank != 1)
    data = batches(30, 40)
    options: dict[str, Any] = {"forbidden_axes": ["batch"], "pin": PINS, "drift_interval": INTERVAL, "active": range(3)}
    model = hap.parallelize(classifier(), far(3), data[0], **options)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    found = Run([], {}, [])
    for step in range(1, STEPS + 1):
        before = model.drift
        with Blocked() if rank == 2 else contextlib.nullcontext():
            loss = model(*data[step % 40])
            loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        found.hashes.append(_bits(model, optimiser))
        found.losses.append(loss.item())
        if model.drift is not before:
            found.drifts[step] = model.drift
    return found


@pytest.mark.timeout(200)
def test_three_ranks() -> None:
    with Launcher(3, timeout=60.0) as launcher:
        launcher.run(test_finite.several)
        runs: list[Run] = launcher.run(_train)
    first = runs[0]
    assert list(first.drifts) == list(range(INTERVAL, STEPS + 1, INTERVAL))
    equal = [len({run.hashes[step - 1] for run in runs}) == 1 for step in range(1, STEPS + 1)]
    assert all(equal[step - 1] for step in first.drifts)
    # It is the broadcasts that make them so.
    assert all(len({run.hashes[step - 2] for run in runs}) == 3 for step in first.drifts)
    for report in first.drifts.values():
        assert 0.0 < report.absolute < 1e-3
        assert 0.0 < report.relative < 1e-1
        differing, of = report.tensors
        assert 0 < differing <= of
    assert all(run.drifts == first.drifts for run in runs)
    # The same training as on one device.
    alone, data = classifier(), batches(30, 40)
    optimiser = torch.optim.Adam(alone.parameters(), lr=1e-3)
    for step in range(1, STEPS + 1):
        loss = alone(*data[step % 40])
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        assert loss.item() == pytest.approx(first.losses[step - 1], rel=1e-2)
    assert first.losses[-1] < first.losses[0] / 4


def test_what_may_drift() -> None:
    module, examples = classifier(), batches(30, 1)[0]
    axes = annotate(hap.trace(Classifier(0.0), examples))
    parameters = {name for name, _ in module.named_parameters()}
    statistics = {"layers.1.running_mean", "layers.1.running_var"}
    board = hap.Device(flops=1e9, memory_bandwidth=1e9, memory=1e9)
    near = hap.Cluster([board] * 2, link=hap.Link(bandwidth=1e9, latency=1e-6))
    shared = hap.plan(module, devices=near, example_inputs=examples, required_axis="batch", pin={"": Replicate()})
    alone = hap.plan(module, devices=far(2), example_inputs=examples, forbidden_axes=["batch"], pin={"": Replicate()})

    def found(plan: hap.Plan, *, alike: bool) -> set[str]:
        names = drift.drifting(axes, plan.program, alike=alike)
        assert len(set(names)) == len(names)
        return set(names) - {"layers.1.num_batches_tracked"}

    # Gradients are sums over the ranks, so that like devices hold the same bits.
    assert found(shared, alike=True) == statistics
    assert found(shared, alike=False) == parameters | statistics
    assert found(alone, alike=True) == parameters | statistics


def test_largest_difference() -> None:
    nan, inf = float("nan"), float("inf")
    values = [
        [torch.tensor([1.0, -4.0, nan, inf]), torch.zeros(2, 0), torch.ones(3, dtype=torch.float64), torch.zeros(2)],
        [torch.tensor([1.5, -4.0, nan, inf]), torch.zeros(2, 0), torch.ones(3, dtype=torch.float64), torch.ones(2)],
        [torch.tensor([1.0, -4.0, nan, 0.0]), torch.zeros(2, 0), torch.ones(3, dtype=torch.float64), torch.zeros(2)],
    ]
    absolute, relative = lockstep.run([drift.equalise_steps(one) for one in values])[1].tolist()
    assert absolute == [inf, 0.0, 0.0, 1.0]
    assert relative == [inf, 0.0, 0.0, inf]
    for one in values[1:]:
        for value, root in zip(one, values[0], strict=True):
            assert torch.equal(value.nan_to_num(7.0), root.nan_to_num(7.0))
    bits = [torch.tensor([True, False]), torch.tensor([True, True])]
    for kind in (torch.bool, torch.uint8):
        for pair in (bits, bits[::-1]):
            given = [one.to(kind, copy=True) for one in pair]
            found = lockstep.run([drift.equalise_steps([one]) for one in given])[0]
            assert found[:, 0].tolist() == [1.0, 1.0]
            assert torch.equal(*given)
            assert given[0].tolist() == pair[0].to(kind).tolist()
    (absolute, relative), _ = (
        one.tolist() for one in lockstep.run([drift.equalise_steps([torch.tensor([x, 2.0])]) for x in (1.0, 1.5)])
    )
    assert (absolute, relative) == ([0.5], [0.25])


def test_interval_that_is_none() -> None:
    for interval in (0, -1, True, 1.5):
        with pytest.raises(HapError, match="drift_interval: expected a number of steps"):
            hap.parallelize(classifier(), jobs.cluster(1), drift_interval=interval)  # type: ignore[arg-type]

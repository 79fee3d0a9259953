"""``hap.save`` and ``hap.load``: training goes on under other plans as if it had not been interrupted."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hap
from hap.errors import CheckpointError
from tests import models
from tests.checkpoint import jobs
from tests.runtime.launch import Launcher, RankError

DEVICES = [hap.Device(flops=1e9, memory_bandwidth=1e9, memory=1e9)]


@pytest.fixture(scope="module")
def uninterrupted() -> list[float]:
    """The losses of one process."""
    model, batch = jobs.parallel([1], seed=1)
    return jobs.steps(jobs.training(model), batch, 6)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, uninterrupted: list[float]) -> Path:
    """A checkpoint that three ranks have saved, after three steps."""
    folder = tmp_path_factory.mktemp("run") / "checkpoint"
    with Launcher(3) as launcher:
        for losses in launcher.run(jobs.train_and_save, [7, 4, 1], str(folder), True):
            assert losses == pytest.approx(uninterrupted, rel=1e-12)
    assert sorted(entry.name for entry in folder.iterdir()) == ["checkpoint.json", "data-2"]
    return folder


@pytest.mark.timeout(200)
@pytest.mark.parametrize("shares", [[3, 9], [5, 5, 0, 2]], ids=str)
def test_training_goes_on_under_another_plan(saved: Path, uninterrupted: list[float], shares: list[int]) -> None:
    with Launcher(len(shares)) as launcher:
        found = launcher.run(jobs.load_and_train, shares, str(saved))
        with pytest.raises(RankError) as raised:
            launcher.run(jobs.disagree, shares, str(saved))
    assert "rank 0: RuntimeMismatchError" in str(raised.value)
    assert 'holds no "else", only "model", "optimizer", "scheduler", "step"' in str(raised.value)
    for rank, result in enumerate(found):
        assert result["losses"] == pytest.approx(uninterrupted[3:], rel=1e-12)
        assert result["rest"] == {"step": 3}
        assert result["rng"] == (1, 6)
        assert bool(result["whole"]) == (rank == 0)
    plain, _ = jobs.tied()
    plain.load_state_dict(found[0]["whole"], strict=True)
    by_one, _ = jobs.parallel([1], seed=3)
    hap.load(saved, {"model": by_one})
    expected = hap.full_state_dict(by_one)
    assert all(torch.equal(value, expected[name]) for name, value in plain.state_dict().items())
    # Tied weights are one tensor, in the state and on the disk.
    assert found[0]["whole"]["head.weight"] is found[0]["whole"]["embedding.weight"]
    files = sorted((saved.parent / "whole").glob("*.safetensors"))
    exported = {name: value for file in files for name, value in load_file(file).items()}
    assert len(files) > 2
    assert expected.keys() - exported.keys() == {"head.weight"}
    assert all(torch.equal(value, expected[name]) for name, value in exported.items())


def test_an_ordinary_module_takes_a_checkpoint(saved: Path) -> None:
    module, _ = jobs.tied()
    run = jobs.training(module)
    assert hap.load(saved, run) == {"step": 3}
    by_one, _ = jobs.parallel([1], seed=3)
    hap.load(saved, {"model": by_one})
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), by_one.parameters(), strict=True))
    state = run["optimizer"].state[module.embedding.weight]
    assert state["exp_avg"].shape == module.embedding.weight.shape
    assert state["step"] == 3
    assert run["scheduler"].last_epoch == 3


def test_a_module_without_a_plan_takes_a_checkpoint(saved: Path, uninterrupted: list[float]) -> None:
    module, batch = jobs.tied()
    run = jobs.training(hap.parallelize(module, DEVICES))
    hap.load(saved, run)
    assert jobs.steps(run, batch, 3) == pytest.approx(uninterrupted[3:], rel=1e-12)


@pytest.mark.timeout(100)
def test_a_save_that_is_killed_leaves_the_one_before(tmp_path: Path) -> None:
    generator = random.Random(0)
    for number in range(int(os.environ.get("HAP_TEST_EXAMPLES", "20"))):
        folder = tmp_path / str(number % 2)  # each save finds what the one before was killed at
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                jobs.save_for_ever(str(folder), writes)
            finally:
                os._exit(1)
        assert os.read(reads, 1) == b"."
        time.sleep(generator.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        os.close(reads)
        os.close(writes)
        module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        rest = hap.load(folder, {"model": module})
        assert rest["number"] >= 1
        assert all(bool((parameter == rest["number"]).all()) for parameter in module.parameters())


def mlp() -> Any:
    module, args, _ = models.mlp()
    return hap.parallelize(module, DEVICES, args)


def test_wrong_use(tmp_path: Path) -> None:
    model = mlp()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    folder = tmp_path / "checkpoint"
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        hap.load(folder, {"model": model})
    with pytest.raises(CheckpointError, match='optimiser "optimizer" holds a parameter of shape'):
        hap.save(folder, {"optimizer": optimiser})
    lazy = hap.parallelize(models.mlp()[0], DEVICES)
    with pytest.raises(CheckpointError, match='"model" has no plan yet'):
        hap.save(folder, {"model": lazy})
    hap.save(folder, {"model": model, "optimizer": optimiser, "epoch": 7})
    with pytest.raises(CheckpointError, match='"epoch": expected a module'):
        hap.load(folder, {"epoch": 3})
    with pytest.raises(CheckpointError, match=r"is of the shape \(8, 8\) there, and of the shape \(4, 4\)"):
        hap.load(folder, {"model": models.mlp(hidden=4)[0]})
    deeper = models.mlp(layers=3)[0]
    with pytest.raises(CheckpointError, match=r'it lacks ".*2.*", and holds nothing that'):
        hap.load(folder, {"model": deeper})
    hap.load(folder, {"model": deeper}, strict=False)
    groups = torch.optim.SGD([{"params": [parameter]} for parameter in model.parameters()], lr=0.1)
    with pytest.raises(CheckpointError, match='does not fit the optimiser "optimizer"'):
        hap.load(folder, {"model": model, "optimizer": groups})
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"holds 'notes.txt', which is no part"):
        hap.save(folder, {"model": model})
    (folder / "notes.txt").unlink()
    (folder / "checkpoint.json").write_text('{"format": "hap-checkpoint-9"}')
    with pytest.raises(CheckpointError, match="expected the format 'hap-checkpoint-1'"):
        hap.load(folder, {"model": model})
    for text in ("{", '{"format": "hap-checkpoint-1"}', '{"format": "hap-checkpoint-1", "data": "../elsewhere"}'):
        (folder / "checkpoint.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"checkpoint.json"):
            hap.load(folder, {"model": model})
    with pytest.raises(CheckpointError, match=r"expected a module from hap\.parallelize, got MLP"):
        hap.full_state_dict(deeper)
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(CheckpointError, match="cannot hold a checkpoint"):
        hap.save(blocked, {"model": model})
    with pytest.raises(CheckpointError, match="cannot be written"):
        hap.export_safetensors(model, blocked)


class WithExtraState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.calls: dict[int, str] = {}

    def get_extra_state(self) -> Any:
        return self.calls

    def set_extra_state(self, state: Any) -> None:
        self.calls = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sum()


def test_extra_state_and_odd_values(tmp_path: Path) -> None:
    module = WithExtraState()
    module.calls = {3: "three"}
    values = {"nothing": None, "nested": {1: [torch.ones(2)]}, "empty": {}}
    hap.save(tmp_path / "c", {"model": nn.Sequential(module), **values})
    module.calls = {}
    rest = hap.load(tmp_path / "c", {"model": nn.Sequential(module)})
    assert module.calls == {3: "three"}
    assert rest["nothing"] is None
    assert rest["empty"] == {}
    assert torch.equal(rest["nested"][1][0], torch.ones(2))


def test_an_asynchronous_save_holds_what_was_there_when_it_began(tmp_path: Path) -> None:
    model = mlp()
    before = hap.full_state_dict(model)
    saving = hap.save(tmp_path / "c", {"model": model}, asynchronous=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert saving is not None
    saving.result(60)
    hap.load(tmp_path / "c", {"model": model})
    assert all(torch.equal(value, before[name]) for name, value in hap.full_state_dict(model).items())

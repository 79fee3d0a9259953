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
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

import hap
from hap.checkpoint import full
from hap.errors import CheckpointError
from hap.runtime.weights import Weights
from tests import models
from tests.checkpoint import jobs
from tests.runtime.launch import Launcher, RankError

POINTER = '{"format": "hap-checkpoint-2", "data": "data-1", "token": "", "modules": {}, "optimisers": {}}'
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
        launcher.run(jobs.refused, shares, str(saved))
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
        ranks = 1 + number // 2 % 2
        folder = tmp_path / str(number % 2)  # each save finds what the one before was killed at
        (tmp_path / f"{number % 2}.store").unlink(missing_ok=True)
        reads, writes = os.pipe()
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                try:
                    jobs.save_for_ever(str(folder), writes, rank, ranks)
                finally:
                    os._exit(1)
            children.append(child)
        assert os.read(reads, 1) == b"."
        time.sleep(generator.uniform(0.0, 0.05))
        generator.shuffle(children)
        for place, child in enumerate(children):
            os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            assert (
                os.WTERMSIG(status) == signal.SIGKILL or place
            )  # the other rank may have failed for want of the first
            time.sleep(generator.uniform(0.0, 0.02))
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
    with pytest.raises(CheckpointError, match=r'optimiser "optimizer": its groups hold .* there, and'):
        hap.load(folder, {"model": model, "optimizer": groups})
    for contents, text in (
        ({"optimizer": model}, '"optimizer" is an optimiser in .*, and ParallelMLP here'),
        ({"model": optimiser}, '"model" is a module in .*, and SGD here'),
        ({"epoch": optimiser}, '"epoch" is neither module nor optimiser in .*, and SGD here'),
    ):
        with pytest.raises(CheckpointError, match=text):
            hap.load(folder, contents)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"holds 'notes.txt', which is no part"):
        hap.save(folder, {"model": model})
    (folder / "notes.txt").unlink()
    (folder / "checkpoint.json").write_text('{"format": "hap-checkpoint-9"}')
    with pytest.raises(CheckpointError, match="expected the format 'hap-checkpoint-2'"):
        hap.load(folder, {"model": model})
    for text in (
        "{",
        '{"format": "hap-checkpoint-2"}',
        POINTER.replace("data-1", "../data-1"),
        POINTER.replace("data-1", "data-7"),
    ):
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


def test_an_optimiser_is_loaded_whatever_was_saved_beside_it(tmp_path: Path) -> None:
    def made(*names: str) -> dict[str, Any]:
        modules = {name: nn.Linear(2, 2) for name in names}
        return modules | {f"of {name}": torch.optim.Adam(one.parameters(), lr=0.1) for name, one in modules.items()}

    both, one = made("G", "D"), made("G")
    for run in (both, one):
        run["G"](torch.ones(1, 2)).sum().backward()
        run["of G"].step()
    hap.save(tmp_path / "both", {**both, "activation": nn.ReLU()})
    hap.save(tmp_path / "one", one)
    for folder, source, target in (("both", both, made("G")), ("one", one, made("D", "G"))):
        hap.load(tmp_path / folder, {name: target[name] for name in ("G", "of G")})
        average = source["of G"].state[source["G"].weight]["exp_avg"]
        assert average.any()
        assert torch.equal(target["of G"].state[target["G"].weight]["exp_avg"], average)
    with pytest.raises(CheckpointError, match='the optimiser "of G" holds a parameter of shape'):
        hap.load(tmp_path / "both", {"D": both["D"], "of G": both["of G"]})
    with pytest.raises(CheckpointError, match=r'does not fit the optimiser "of D".*"D\.bias", "D\.weight".*"G\.bias"'):
        hap.load(tmp_path / "both", {"G": both["G"], "of D": both["of G"]})
    hap.load(tmp_path / "both", {"activation": nn.ReLU()})
    with pytest.raises(CheckpointError, match='"G" is a module in'):
        hap.load(tmp_path / "one", {"G": one["of G"]})


def test_a_load_that_fails_changes_nothing(tmp_path: Path) -> None:
    module = nn.Linear(2, 2)
    run = {"model": module, "optimizer": torch.optim.Adam(module.parameters())}
    hap.save(tmp_path / "c", run)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for wrong in (
        torch.optim.Adam([{"params": [one]} for one in module.parameters()]),
        torch.optim.Adam([module.weight]),
        torch.optim.SGD(module.parameters(), lr=0.1),
    ):
        with pytest.raises(CheckpointError, match='does not fit the optimiser "optimizer"'):
            hap.load(tmp_path / "c", run | {"optimizer": wrong})
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
        assert not wrong.state
    hap.load(tmp_path / "c", run | {"optimizer": torch.optim.AdamW(module.parameters())})
    assert not torch.equal(module.weight, before["weight"])


def test_an_export_takes_the_place_of_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, folder = mlp(), tmp_path / "exported"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for size in (200, 10**9, 100, 200):
        with torch.no_grad():
            next(model.parameters()).add_(1.0)
        hap.export_safetensors(model, folder, shard_size=size)
        found = Weights(folder)
        held = {entry.name for entry in folder.iterdir()} - {"config.json", "model.safetensors.index.json"}
        assert held == {file.name for file in found._files.values()}
        state = {name: torch.empty(shape, dtype=torch.float64) for name, shape in found.shapes.items()}
        found.read({name: (value, None) for name, value in state.items()}, 0)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())

    def failing(*_: Any, **__: Any) -> None:
        raise SafetensorError("the disk is full")

    kept = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    monkeypatch.setattr(full, "save_file", failing)
    with pytest.raises(CheckpointError, match=r"model-00001-of-\d+\.safetensors cannot be written: the disk is full"):
        hap.export_safetensors(model, folder, shard_size=200)
    assert {entry.name: entry.read_bytes() for entry in folder.iterdir()} == kept
    (folder / "adapter.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds adapter\.safetensors\.index\.json, which readers would take"):
        hap.export_safetensors(model, folder)


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


def test_contents_without_names(tmp_path):
    for function in (hap.save, hap.load):
        with pytest.raises(CheckpointError, match=r'by name, such as {"model": model}, got a Linear'):
            function(tmp_path, nn.Linear(2, 2))

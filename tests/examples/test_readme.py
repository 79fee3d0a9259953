"""The README's examples, run as they stand."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import hap
from hap.cli import app
from hap.profiling.__main__ import main as profile_as_command

README = (Path(__file__).parents[2] / "README.md").read_text()
TRAINING, CLUSTERS, ACCUMULATION, OUTSIDE, PLANNING, CONSTRAINTS, MEMORY, CHECKING, CHECKPOINTS, BIG = re.findall(
    r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL
)

COMMANDS = re.search(r"^```bash\n(.*?)^```", README, re.MULTILINE | re.DOTALL).group(1)


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x, y):
        return (self.layers(x).squeeze(1) - y).square().mean()


@pytest.fixture
def names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Measurements for a moment only, and none kept.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("hap.profiling.run.OPERATORS", 0.02)
    monkeypatch.setattr("hap.profiling.run.QUICK_OPERATORS", 0.02)
    torch.manual_seed(0)
    model = Regression()
    cluster = hap.Cluster(["V100", "P100"], link=hap.Link(bandwidth=1.25e9, latency=5e-5))
    cluster.save("cluster.json")
    return {
        "hap": hap,
        "torch": torch,
        "model": model,
        "cluster": cluster,
        "x": torch.randn(12, 8),
        "y": torch.randn(12),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }


def test_the_command_that_measures(names, monkeypatch):
    (arguments,) = re.findall(r"`torchrun --nproc-per-node 2 -m hap\.profiling ([^`]*)`", README)
    for quick in ([], ["--quick"]):
        monkeypatch.setattr("sys.argv", ["hap.profiling", *quick, *arguments.split()])
        profile_as_command()
        (device,) = hap.Cluster.load("cluster.json").devices
        assert "matmul/float32" in device.measured


def test_commands(names):
    Path("model.py").write_text(
        "import torch\nfrom tests.examples.test_readme import Regression\n\n"
        "def build():\n    return Regression(), (torch.randn(12, 8), torch.randn(12))\n"
    )
    # Of one device less; its first linear layer is the operator that the example asks about.
    other = hap.plan(Regression(), devices=["V100", "P100"], example_inputs=(names["x"], names["y"]))
    other.save("other.json")
    lines = COMMANDS.splitlines()
    assert len(lines) >= 5
    for line in lines:
        name, *arguments = shlex.split(line, comments=True)
        assert name == "hap"
        found = CliRunner().invoke(app, arguments)
        assert found.exit_code == 0, (line, found.output)
    assert hap.simulate(hap.Plan.load("plan.json"), Regression(), example_inputs=(names["x"], names["y"])).seconds > 0.0
    assert Path("step.json").exists()


@pytest.mark.parametrize("kept", range(3), ids=["measured", "planned at the first call", "example inputs"])
def test_training(names, kept):
    lines = [line for line in TRAINING.splitlines() if "hap.parallelize" in line]
    assert len(lines) == 3
    text = TRAINING
    for line in lines[:kept] + lines[kept + 1 :]:
        text = text.replace(f"{line}\n", "")
    names |= {"cluster": ["V100"], "loader": [(names["x"], names["y"])] * 5}
    before = names["model"](names["x"], names["y"]).item()
    exec(text, names)
    assert names["loss"].item() < before


def test_clusters(names):
    exec(CLUSTERS, names)
    assert [device.name for device in names["cluster"].devices] == ["V100", "P100"]


def test_accumulation(names):
    x, y = names["x"], names["y"]
    optimizer = names["optimizer"]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    names |= {"cluster": ["V100"], "accumulated": [[(x[:6], y[:6]), (x[6:], y[6:])]] * 5, "scheduler": scheduler}
    before = names["model"](x, y).item()
    exec(ACCUMULATION, names)
    assert names["model"](x, y).item() < before


def test_loss_outside(names):
    names |= {"cluster": ["V100"], "model": nn.Linear(8, 3), "y": torch.arange(12) % 3, "F": nn.functional}
    weight = names["model"].weight
    (expected,) = torch.autograd.grad(nn.functional.cross_entropy(names["model"](names["x"]), names["y"]), weight)
    exec(OUTSIDE, names)
    torch.testing.assert_close(weight.grad, expected)


def test_planning(names, capsys):
    exec(PLANNING, names)
    assert "all_reduce" in capsys.readouterr().out or "batch" in names["plan"].splits
    assert hap.Plan.load("plan.json").splits == names["plan"].splits


def test_constraints(names, capsys):
    exec(CONSTRAINTS, names)
    stored = dict(re.findall(r"^%(layers\S+): (\w+) = input", capsys.readouterr().out, re.MULTILINE))
    assert stored == {"layers.0.weight": "S0", "layers.0.bias": "R", "layers.2.weight": "R", "layers.2.bias": "R"}
    options = {"devices": names["cluster"], "example_inputs": (names["x"], names["y"])}
    assert hap.check(names["model"], **options, pin={"layers.0.weight": names["Shard"](0)}).error < 1e-10


def test_memory(names):
    exec(MEMORY, names)
    assert names["plan"].optimiser_tensors == 0


def test_checking(names):
    exec(CHECKING, names)
    assert names["result"].error < 1e-10


def test_checkpoints(names):
    example = (names["x"], names["y"])
    plain = Regression()
    names["model"] = hap.parallelize(names["model"], ["V100"], example)
    names["scheduler"] = torch.optim.lr_scheduler.StepLR(names["optimizer"], 10)
    exec(CHECKPOINTS, names)
    assert names["rest"] == {"step": 100}
    plain.load_state_dict(names["state"])
    assert plain(*example) == names["model"](*example)
    assert Path("exported/model.safetensors").exists()


def test_big_models(names):
    example = (names["x"], names["y"])
    hap.export_safetensors(hap.parallelize(Regression(), ["V100"], example), "exported")
    names |= {"build": Regression, "cluster": ["V100"]}
    exec(BIG, names)
    names["model"](*example).backward()

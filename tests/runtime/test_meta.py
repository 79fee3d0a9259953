"""Modules on the meta device, made shard by shard: from their own initialisation, and from safetensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn
from torch.nn import functional as F

import hap
from hap.errors import HapError
from tests import models
from tests.runtime.jobs import cluster, loss_of
from tests.runtime.launch import Launcher


class Scale(nn.Module):
    """A parameter and a buffer of its own; both have values of their own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.register_buffer("shift", torch.empty(size, dtype=torch.int64), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight)
        self.shift.copy_(torch.arange(len(self.shift)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.shift


class Deep(nn.Module):
    """Tied weights, nested parts, parameters of its own."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(24, 12)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 12)) for _ in range(layers)
        )
        self.norm = nn.BatchNorm1d(12)
        self.scale = Scale(12)
        self.head = nn.Linear(12, 24, bias=False)
        self.head.weight = self.embedding.weight
        self.bias = nn.Parameter(torch.zeros(24))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return F.cross_entropy(self.head(self.scale(self.norm(hidden))) + self.bias, tokens)


TOKENS = torch.arange(24).repeat(2)


def deep() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return Deep(), (TOKENS,), {}


def gpt2() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return models.gpt2(torch.float32, batch=4)


BUILD: dict[str, Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]] = {"deep": deep, "gpt2": gpt2}


def on_meta(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The module without values; what is tied is tied."""
    module, args, kwargs = BUILD[name]()
    with torch.device("meta"):
        return (type(module)(module.config) if name == "gpt2" else Deep()), args, kwargs


def initialised(name: str) -> Any:
    """The module as one device initialises it."""
    module, _, _ = BUILD[name]()
    for part in [*module.modules(), *module.parameters()]:
        vars(part).pop("_is_hf_initialized", None)
    torch.manual_seed(7)
    if name == "gpt2":
        module.initialize_weights()
    else:
        for part in innermost_first(module):
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
    return module


def innermost_first(module: nn.Module) -> Iterator[Any]:
    for child in module.children():
        yield from innermost_first(child)
    yield module


def made(rank: int, ranks: int, name: str, weights: str | None) -> dict[str, Any]:
    """The whole state of a module that was made in shards, before and after a step; its loss; the largest share."""
    module, args, kwargs = on_meta(name)
    torch.manual_seed(7 + rank)  # the seed of rank 0 counts
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    state = torch.get_rng_state()
    model = hap.parallelize(module, cluster(ranks), args, kwargs, weights=weights)
    assert torch.equal(torch.get_rng_state(), state), "ranks would go on with unlike random numbers"
    elements = sum(parameter.numel() for parameter in model.parameters())
    before = {name: value.clone() for name, value in hap.full_state_dict(model).items()}
    shift = model.full_parameter("scale.shift") if name == "deep" else None
    loss = loss_of(model(*args, **kwargs))
    loss.backward()
    optimiser.step()
    found = {"before": before, "after": hap.full_state_dict(model), "loss": float(loss.detach()), "elements": elements}
    return found | {"shift": shift}


def fails_on_rank_0(rank: int, folder: str) -> None:
    class Careless(nn.Linear):
        def reset_parameters(self) -> None:
            self.weight.data[0] = 0.0

    batch = (torch.ones(2, 4),)
    for examples in (None, batch):
        with torch.device("meta"):
            model: Any = nn.Sequential(Careless(4, 4))
        with pytest.raises(HapError, match=r'initialisation of Careless at 0 leaves "0\.weight" without values'):
            hap.parallelize(model, cluster(2), examples)(*batch)
        again = (
            partial(model, *batch),
            partial(hap.parallelize, model, cluster(2), batch),
            partial(hap.full_state_dict, model),
            partial(hap.load, folder, {"model": model}),
        )
        for attempt in again:
            with pytest.raises(HapError, match=r"left half made.*without values.*make it anew"):
                attempt()


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher(2) as started:
        yield started


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BUILD)
def test_own_initialisation(launcher: Launcher, name: str) -> None:
    check(launcher.run(made, 2, name, None, limit=200), name, initialised(name))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("several", [False, True], ids=["one file", "index"])
def test_from_safetensors(launcher: Launcher, several: bool, tmp_path: Path) -> None:
    alone = initialised("deep")
    with torch.no_grad():
        for parameter in alone.parameters():
            parameter.mul_(0.5)
    if several:
        state = {name: value for name, value in alone.state_dict().items() if name != "head.weight"}
        names = sorted(state)
        parts = {"a.safetensors": names[:4], "b.safetensors": names[4:]}
        for file, held in parts.items():
            save_file({name: state[name].clone() for name in held}, tmp_path / file)
        where = {name: file for file, held in parts.items() for name in held}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    else:
        save_model(alone, str(tmp_path / "model.safetensors"))
    check(launcher.run(made, 2, "deep", str(tmp_path), limit=200), "deep", alone)


def check(found: list[dict[str, Any]], name: str, alone: Any) -> None:
    """Hold what two ranks have made to a module of one device, before and after a step."""
    _, args, kwargs = BUILD[name]()
    assert found[0]["before"].keys() == alone.state_dict().keys()
    for key, value in alone.state_dict().items():
        assert torch.equal(found[0]["before"][key], value), key
    if name == "deep":
        assert torch.equal(found[1]["shift"], torch.arange(12))
        whole = sum(parameter.numel() for parameter in alone.parameters())
        assert min(one["elements"] for one in found) < whole, "nothing is split: this tests nothing"
    loss = loss_of(alone(*args, **kwargs))
    loss.backward()
    torch.optim.SGD(alone.parameters(), lr=0.1).step()
    assert all(one["loss"] == pytest.approx(float(loss.detach()), rel=1e-5) for one in found)
    for key, value in alone.state_dict().items():
        assert torch.allclose(found[0]["after"][key].double(), value.double(), rtol=1e-4, atol=1e-6), key


@pytest.mark.timeout(100)
def test_an_initialisation_that_fails_is_raised_on_all(launcher: Launcher, tmp_path: Path) -> None:
    hap.save(tmp_path / "c", {"model": nn.Sequential(nn.Linear(4, 4))})
    launcher.run(fails_on_rank_0, str(tmp_path / "c"))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(12, 12)
        self.attention = nn.MultiheadAttention(12, 2, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(12, 2, 24, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        return self.layer(self.attention(x, x, x, need_weights=False)[0]).square().mean()


def test_attention_starts_as_its_constructor_leaves_it() -> None:
    with torch.device("meta"):
        module = Attending()
    torch.manual_seed(7)
    model = hap.parallelize(module, cluster(1), (torch.ones(2, 3, 12),))
    torch.manual_seed(7)
    for name, value in Attending().state_dict().items():
        assert torch.equal(model.get_parameter(name), value), name


def test_one_process(tmp_path: Path) -> None:
    found = made(0, 1, "deep", None)
    check([found, found | {"elements": 0}], "deep", initialised("deep"))


def test_weights_replace_those_in_memory(tmp_path: Path) -> None:
    alone = initialised("deep")
    save_model(alone, str(tmp_path / "w.safetensors"))
    model = hap.parallelize(Deep(), cluster(1), (TOKENS,), weights=tmp_path / "w.safetensors")
    assert all(torch.equal(value, alone.state_dict()[name]) for name, value in model.state_dict().items())


class Together(nn.Module):
    """Its initialisation writes what its submodules hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))

    def reset_parameters(self) -> None:
        for layer in self.layers:
            nn.init.ones_(layer.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def test_an_initialisation_of_the_whole_is_refused() -> None:
    with torch.device("meta"):
        module = Together()
    with pytest.raises(HapError, match="Together initialises what its submodules hold, and is too large"):
        hap.parallelize(module, cluster(1), (torch.ones(2, 4),))


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4, device="meta"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).sum()


def test_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(HapError, match=r'"weight" is on the meta device, and Bare has no reset_parameters\(\)'):
        hap.parallelize(Bare(), cluster(1))
    with pytest.raises(HapError, match=r'"0\.weight" is on the meta device, and Bare at 0 has no'):
        hap.parallelize(nn.Sequential(Bare()), cluster(1))
    file = tmp_path / "model.safetensors"

    def given(tensors: dict[str, torch.Tensor]) -> Any:
        save_file(tensors, file)
        return hap.parallelize(Bare(), cluster(1), (torch.ones(2, 4),), weights=tmp_path)

    assert torch.equal(given({"weight": torch.full((4, 4), 3.0, dtype=torch.bfloat16)}).weight, torch.full((4, 4), 3.0))
    with pytest.raises(HapError, match=r'"weight" has the shape \(4, 3\) there, and \(4, 4\) in the module'):
        given({"weight": torch.ones(4, 3)})
    with pytest.raises(HapError, match='does not hold "weight", a parameter'):
        given({})
    with pytest.raises(HapError, match='holds "more", which the module does not have'):
        given({"weight": torch.ones(4, 4), "more": torch.ones(1)})
    file.write_bytes(b"nonsense")
    with pytest.raises(HapError, match="cannot be read as safetensors"):
        hap.parallelize(Bare(), cluster(1), weights=file)
    file.unlink()
    with pytest.raises(HapError, match=r"holds neither model\.safetensors nor an index"):
        hap.parallelize(Bare(), cluster(1), weights=tmp_path)
    with pytest.raises(HapError, match="cannot be read as safetensors"):
        hap.parallelize(Bare(), cluster(1), weights=tmp_path / "none.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weights": {}}')
    with pytest.raises(HapError, match="is no index of safetensors: KeyError"):
        hap.parallelize(Bare(), cluster(1), weights=tmp_path)
    index.write_text('{"weight_map": {"weight": "x.safetensors"}}')
    save_file({"other": torch.ones(1)}, tmp_path / "x.safetensors")
    with pytest.raises(HapError, match=r'x\.safetensors does not hold "weight", which the index says'):
        hap.parallelize(Bare(), cluster(1), weights=tmp_path)

"""A device that costs more than it gives is idle: it stays in the job, holds nothing, and all is as on one device."""

import copy
import logging
import os
import re

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional as F

import hap
from hap.runtime.active import Active
from tests.runtime.launch import Launcher, RankError

IDLE = 0  # the rank that plans, writes and gathers, and by whose values all start
LINK = hap.Link(bandwidth=1e9, latency=1e-6)


def cluster(*flops: float) -> hap.Cluster:
    return hap.Cluster([hap.Device(flops=f, memory_bandwidth=f, memory=1e9) for f in flops], link=LINK)


SLOWED, EQUAL = cluster(1e7, 3e9, 2e9), cluster(1e9, 1e9, 1e9)


class Model(nn.Module):
    """With running statistics, a parameter and a buffer without dimensions, and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.norm = nn.BatchNorm1d(64)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.ones(7))
        self.last = nn.Linear(64, 16)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.last(F.relu(self.norm(self.first(x))) * self.scale)
        return {"loss": F.cross_entropy(logits, y), "logits": logits}


class Outputs(nn.Module):
    """Without a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x)
        return y, y.argmax(-1)


def made(kind: type[nn.Module] = Model) -> nn.Module:
    torch.manual_seed(3)
    return kind().double()


def batch(samples: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 32, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 16, (samples,), generator=generator)


class Comparison:
    """Largest relative differences from one device, by what was compared."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}

    def __call__(self, name: str, value: torch.Tensor, expected: torch.Tensor) -> None:
        value, expected = value.detach().double(), expected.detach().double()
        error = float("inf") if value.shape != expected.shape else float((value - expected).norm())
        self.found[name] = max(self.found.get(name, 0.0), error / max(float(expected.norm()), 1e-30))

    def state(self, name: str, model: nn.Module, alone: nn.Module) -> None:
        for key, value in alone.state_dict().items():
            self(name, model.full_parameter(key), value)


def step(model: nn.Module, optimiser: torch.optim.Optimizer, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two microbatches, clipped; the loss of the last and the norm."""
    several = hasattr(model, "no_sync")
    if several:
        with model.no_sync():
            model(*batch(24, seed))["loss"].backward()
    else:
        model(*batch(24, seed))["loss"].backward()
    loss = model(*batch(24, seed + 1))["loss"]
    loss.backward()
    norm = (hap.clip_grad_norm_ if several else nn.utils.clip_grad_norm_)(model.parameters(), 0.1)
    optimiser.step()
    optimiser.zero_grad()
    return loss, norm


def train(rank: int, folder: str) -> tuple[dict[str, float], dict[str, object]]:
    compare, facts = Comparison(), {}
    module, alone = made(), made()
    if rank != IDLE:
        nn.init.zeros_(module.first.weight)  # all start by the values of rank 0
    optimiser, beside = (torch.optim.AdamW(one.parameters(), lr=1e-2) for one in (module, alone))
    model = hap.parallelize(module, SLOWED, batch(24))
    facts["left out"], facts["held"] = model.plan.left_out, sum(one.numel() for one in model.parameters())
    for seed in range(3):
        pairs = zip(step(model, optimiser, seed), step(alone, beside, seed), strict=True)
        for name, (value, expected) in zip(("loss", "norm"), pairs, strict=True):
            compare(name, value, expected)
    compare.state("trained", model, alone)

    # Outputs beside the loss, gradients of inputs, evaluation, another shape.
    (x, y), (x_alone, _) = batch(24, 5), batch(24, 5)
    out, expected = model(x.requires_grad_(), y), alone(x_alone.requires_grad_(), y)
    facts["logits"] = tuple(out["logits"].shape), out["logits"].replicated
    compare("logits", out["logits"].full_tensor(), expected["logits"])
    (3 * out["loss"]).backward()
    (3 * expected["loss"]).backward()
    compare("gradient of an input", x.grad, x_alone.grad)
    with torch.autograd.detect_anomaly():  # ranks compare what they find
        compare("under detect_anomaly", model(x, y)["loss"], alone(x_alone, y)["loss"])
    for one in (model, alone):
        one.zero_grad()
        one.eval()
    with torch.no_grad():
        compare("evaluation", model(*batch(10))["loss"], alone(*batch(10))["loss"])
    facts["still left out"] = model.plan.left_out
    model.train(), alone.train()

    # Shares of a batch: the sampler gives an idle rank none; what one brings all the same is moved.
    x, y = batch(24, 6)
    data = torch.utils.data.TensorDataset(x, y)
    sampler = hap.DistributedSampler(data, model, batch_size=24)
    (loaded,) = torch.utils.data.DataLoader(data, batch_sampler=sampler, collate_fn=sampler.collate)
    facts["samples"] = loaded[0].shape[0]
    compare("sampler", model(*loaded)["loss"], alone(x, y)["loss"])
    brought = model.local_inputs(*(value.split([4, 12, 8])[rank] for value in (x, y)))
    compare("samples of an idle rank", model(*brought)["loss"], alone(x, y)["loss"])
    compare.state("buffers", model, alone)

    # To a plan in which all are active, and back.
    hap.save(f"{folder}/first", {"model": model, "optimiser": optimiser})
    other, copied = made(), copy.deepcopy(alone)
    of_other = torch.optim.AdamW(other.parameters(), lr=1e-2)
    other = hap.parallelize(other, EQUAL, batch(24))
    facts["left out of another"] = other.plan.left_out
    hap.load(f"{folder}/first", {"model": other, "optimiser": of_other})
    compare.state("loaded", other, alone)
    of_copied = torch.optim.AdamW(copied.parameters(), lr=1e-2)
    of_copied.load_state_dict(beside.state_dict())
    step(other, of_other, 7), step(copied, of_copied, 7)
    compare.state("trained on", other, copied)
    hap.save(f"{folder}/second", {"model": other, "optimiser": of_other})
    hap.load(f"{folder}/second", {"model": model, "optimiser": optimiser})
    step(model, optimiser, 8), step(copied, of_copied, 8)
    compare.state("loaded back", model, copied)
    whole = hap.full_state_dict(model)
    if rank == 0:
        fresh = made()
        fresh.load_state_dict(whole, strict=True)
        for key, value in fresh.state_dict().items():
            compare("full state", value, copied.state_dict()[key])

    # Without a loss outputs are whole on all ranks.
    plain, reference = hap.parallelize(made(Outputs), SLOWED, batch(24)[:1]), made(Outputs)
    facts["left out without a loss"] = plain.plan.left_out
    for value, wanted in zip(plain(batch(24)[0]), reference(batch(24)[0]), strict=True):
        compare("outputs", value, wanted)
    (plain(batch(24)[0])[0] ** 2).sum().backward()
    (reference(batch(24)[0])[0] ** 2).sum().backward()
    compare("gradients", plain._hap_session.whole("layer.weight", plain.layer.weight.grad), reference.layer.weight.grad)

    # Values from files, and a gradient scaler that finds an overflow on one rank alone.
    if rank == 0:
        safetensors.torch.save_file(made().state_dict(), f"{folder}/model.safetensors")
    model._hap_session.control.gather(None, "waiting for the file")
    with torch.device("meta"):
        empty = Model().double()
    model, alone = hap.parallelize(empty, SLOWED, batch(24), weights=f"{folder}/model.safetensors"), made()
    compare.state("from files", model, alone)
    scalers = [torch.amp.GradScaler("cpu", init_scale=64.0) for _ in range(2)]
    for seed in range(2):
        for one, scaler in zip((model, alone), scalers, strict=True):
            descent = torch.optim.SGD(one.parameters(), lr=0.1)
            descent.zero_grad()
            scaler.scale(one(*batch(24, seed))["loss"]).backward()
            if seed == 0 and (one is alone or rank == 2):
                one.first.weight.grad[0] = float("inf")
            scaler.step(descent)
            scaler.update()
    facts["scale"] = scalers[0].get_scale() / scalers[1].get_scale()
    compare.state("scaled", model, alone)
    return compare.found, facts


def warned(rank: int) -> list[str]:
    """What rank says of ranks that stay idle: by default, and where the user has said who works."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hap").addHandler(handler)
    hap.parallelize(made(), SLOWED, batch(24))
    hap.parallelize(made(), SLOWED, batch(24), active=[1, 2])
    return told


def stop(rank: int) -> None:
    """The first active rank stops before it sends the loss."""
    model = hap.parallelize(made(), SLOWED, batch(24))
    if rank == 1:
        Active.tell = lambda *_: os._exit(1)
    model(*batch(24))


def test_an_idle_rank_is_part_of_the_job_without_a_part_in_the_work(tmp_path):
    with Launcher(3, timeout=30.0) as launcher:
        results = launcher.run(train, str(tmp_path))
        for rank, (differences, facts) in enumerate(results):
            assert max(differences.values()) < 1e-9, (rank, differences)
            assert facts["left out"] == facts["still left out"] == facts["left out without a loss"] == (IDLE,)
            assert facts["left out of another"] == ()
            assert facts["scale"] == 1.0
            assert facts["logits"] == ((24, 16), False)
            # A scalar cannot be empty.
            assert (facts["held"] == 1) == (facts["samples"] == 0) == (rank == IDLE)
        first, *others = launcher.run(warned)
        assert len(first) == 1
        assert re.fullmatch(
            r"a step takes .+ without device 0 \(.+\); with all devices .+: these ranks stay idle; active= .+", first[0]
        )
        assert others == [[], []]
        with pytest.raises(RankError) as stopped:
            launcher.run(stop)
    assert "CommunicationError: the loss failed on rank" in stopped.value.errors[IDLE]

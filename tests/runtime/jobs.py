"""What the ranks of the tests run: functions that processes can import."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import hap
from tests import models

Batch = tuple[tuple[Any, ...], dict[str, Any]]


def cluster(ranks: int, speed: float = 1e7) -> hap.Cluster:
    """Unequal devices, so slow that none of them is left out of the smallest models."""
    devices = [
        hap.Device(flops=speed * (rank + 1), memory_bandwidth=speed, memory=1e9, launch_overhead=0.0)
        for rank in range(ranks)
    ]
    return hap.Cluster(devices, link=hap.Link(bandwidth=1e9, latency=1e-6))


def digits(samples: int, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Scikit-learn's handwritten digits as images of 3 x 32 x 32, and their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images[start : start + samples], dtype=torch.float32)[:, None] / 16.0
    return F.interpolate(images, size=32).expand(-1, 3, -1, -1).contiguous(), torch.tensor(
        data.target[start : start + samples]
    )


def vgg19() -> tuple[nn.Module, list[Batch]]:
    module, _, _ = models.vgg19(torch.float32, batch=6)
    return module, [(digits(6, 6 * step), {}) for step in range(5)]


def gpt2() -> tuple[nn.Module, list[Batch]]:
    module, _, kwargs = models.gpt2(torch.float32, batch=5)
    generator = torch.Generator().manual_seed(1)
    batches: list[Batch] = []
    for _ in range(5):
        tokens = torch.randint(0, 20, kwargs["input_ids"].shape, generator=generator)
        batches.append(((), {"input_ids": tokens, "labels": tokens}))
    return module, batches


BUILD: dict[str, Callable[[], tuple[nn.Module, list[Batch]]]] = {"vgg19": vgg19, "gpt2": gpt2}


def loss_of(output: Any) -> torch.Tensor:
    """The loss in a module's output."""
    return output if isinstance(output, torch.Tensor) else output.loss


def difference(model: Any, reference: nn.Module) -> float:
    """Largest relative difference of a parameter or buffer, gathered, from the single device's."""
    worst = 0.0
    for name, value in [*reference.named_parameters(), *reference.named_buffers()]:
        expected, found = value.detach().double(), model.full_parameter(name).double()
        if name.endswith("c_attn.bias"):
            # The gradient of the keys' bias is zero in exact arithmetic; Adam makes steps of the rounding errors.
            expected, found = (torch.cat([x.chunk(3)[0], x.chunk(3)[2]]) for x in (expected, found))
        worst = max(worst, float((found - expected).norm()) / max(float(expected.norm()), 1e-30))
    return worst


def train(rank: int, ranks: int, name: str, with_examples: bool, scale: float = 1.0) -> dict[str, float]:
    """Five steps beside the same on one device."""
    module, batches = BUILD[name]()
    alone = copy.deepcopy(module)
    if rank:  # parameters start as rank 0's
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(1.0)
    names = [key for key, _ in module.named_parameters()]
    # Made before the parameters become shards.
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-3)
    beside = torch.optim.AdamW(alone.parameters(), lr=1e-3)
    args, kwargs = batches[0]
    examples = {"example_inputs": args, "example_kwargs": kwargs} if with_examples else {}
    model = hap.parallelize(module, cluster(ranks), **examples)
    assert model is module
    assert [key for key, _ in model.named_parameters()] == names
    worst = 0.0
    for args, kwargs in batches:
        loss, expected = loss_of(model(*args, **kwargs)), loss_of(alone(*args, **kwargs))
        (loss / scale).backward()
        (expected / scale).backward()
        worst = max(worst, abs(float(loss.detach()) / float(expected.detach()) - 1.0))
        for one in (optimiser, beside):
            one.step()
            one.zero_grad()
    return {"loss": worst, "parameters": difference(model, alone)}


def random_plan(
    axes: Any, devices: hap.Cluster, seed: int, stored: dict[str, Any] | None = None, *, again: bool = False
) -> hap.Plan:
    """A plan with a random program and random splits; ``again``: half of its forward is made again in its backward."""
    from tests.runtime.programs import random_program
    from tests.runtime.remade import remade_in_backward

    generator = random.Random(seed)
    program = random_program(axes, generator, stored=stored)
    if again:
        program, _ = remade_in_backward(axes, program, generator, 0.5)
    return plan_of(axes, devices, program, generator)


def plan_of(axes: Any, devices: hap.Cluster, program: Any, generator: random.Random) -> hap.Plan:
    """A plan with a program and random splits."""
    import msgspec

    from hap.balance import MemoryParts
    from hap.planning.plan import Fingerprints, Replica, Stage
    from tests.runtime.programs import random_splits

    ranks = len(devices.devices)
    stage = Stage(
        devices=tuple(range(ranks)),
        part="all",
        program=program,
        splits=random_splits(axes, ranks, generator),
    )
    return hap.Plan(
        format="hap-plan-1",
        description=msgspec.json.decode(devices.to_json()),
        fingerprints=Fingerprints(graph=axes.fingerprint, cluster="", hap="", torch=""),
        axes={axis.name: axis.size for axis in axes.axes if axis.of is None},
        classes=dict(axes.classes),
        replicas=(Replica(micro_batches=1, stages=(stage,)),),
        optimiser_tensors=0,
        predicted_time=1.0,
        predicted_memory=(0,) * ranks,
        memory_parts=(MemoryParts(0, 0, 0, 0, 0),) * ranks,
        search_gap=0.0,
        lower_bound=1.0,
        optimality_gap=0.0,
        rounding_loss=0.0,
        baselines={},
    )


def random_programs(rank: int, ranks: int, seeds: list[int]) -> list[float]:
    """Two steps under each of several random programs beside one device, in float64; differences of the parameters."""
    from hap.rules import annotate

    base, args, kwargs = models.mlp(dropout=0.0)
    axes, devices = annotate(hap.trace(base, args, kwargs)), cluster(ranks)
    return [_difference(base, args, kwargs, random_plan(axes, devices, seed)) for seed in seeds]


def sequence_program(rank: int, ranks: int, way: str) -> float:
    """The same for a program that shards the sequence of a causal transformer, with attention in this way."""
    from hap.rules import annotate
    from tests.runtime import test_sequence

    base, args = test_sequence.causal(dropout=0.0)
    axes, generator = annotate(hap.trace(base, args)), random.Random(4)
    program = test_sequence.program_along(axes, test_sequence.sequence_of(axes), generator, way)
    return _difference(base, args, {}, plan_of(axes, cluster(ranks), program, generator))


def _difference(base: nn.Module, args: Any, kwargs: Any, plan: hap.Plan) -> float:
    """The largest difference of the parameters after two steps under a plan and on one device."""
    module, alone = copy.deepcopy(base), copy.deepcopy(base)
    model = hap.parallelize(module, cluster(len(plan.predicted_memory)), args, kwargs, plan=plan)
    for _ in range(2):
        loss_of(model(*args, **kwargs)).backward()
        loss_of(alone(*args, **kwargs)).backward()
        for one in (module, alone):
            torch.optim.SGD(one.parameters(), lr=0.01).step()
            one.zero_grad()
    return difference(model, alone)


class Linear(nn.Module):
    """Without a loss: its output is a tensor, and a dictionary beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 12)
        self.norm = nn.BatchNorm1d(12)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.norm(self.first(x))
        return {"y": y, "twice": [2 * y, "text"]}


def outputs(rank: int, ranks: int) -> dict[str, float]:
    """Outputs beside a loss, outputs without one, evaluation, other shapes, shares of a batch: largest differences."""
    found: dict[str, float] = {}

    def compare(name: str, value: torch.Tensor, expected: torch.Tensor) -> None:
        error = float((value.detach() - expected.detach()).abs().max()) if expected.numel() else 0.0
        found[name] = max(found.get(name, 0.0), error if value.shape == expected.shape else float("inf"))

    module, args, kwargs = models.gpt2(batch=5)
    alone = copy.deepcopy(module)
    model = hap.parallelize(module, cluster(ranks), args, kwargs)
    output, expected = model(*args, **kwargs), alone(*args, **kwargs)
    assert isinstance(output.logits, hap.ShardedTensor)
    assert output.logits.shape == expected.logits.shape
    compare("logits", output.logits.full_tensor(), expected.logits)
    model.eval()
    alone.eval()
    with torch.no_grad():
        compare("evaluation", model(*args, **kwargs).logits.full_tensor(), alone(*args, **kwargs).logits)
    model.train()
    alone.train()
    shorter = {key: value[:3, :4] for key, value in kwargs.items()}
    compare("another shape", model(**shorter).loss, alone(**shorter).loss)

    plain = Linear().double()
    for parameter in plain.parameters():  # each rank its own, until they become rank 0's
        nn.init.constant_(parameter, 0.5 + rank)
    model = hap.parallelize(plain, cluster(ranks))
    alone = Linear().double()
    for parameter in alone.parameters():
        nn.init.constant_(parameter, 0.5)
    x = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for _ in range(2):
        here, there = model(x), alone(x)
        assert here["twice"][1] == "text"
        compare("outputs without a loss", here["twice"][0], there["twice"][0])
        (here["twice"][0] ** 2).sum().backward()
        (there["twice"][0] ** 2).sum().backward()
    for name, parameter in alone.named_parameters():
        assert parameter.grad is not None
        piece = dict(model.named_parameters())[name].grad
        assert piece is not None
        compare("accumulated gradients", model._hap_session.whole(name, piece), parameter.grad)
    compare("buffers", model.full_parameter("norm.running_var"), alone.norm.running_var)
    found.update(shares(rank, ranks))
    return found


def shares(rank: int, ranks: int) -> dict[str, float]:
    """An epoch of batches by the sampler, the last one not full, against whole batches."""
    module, (x, y), _ = models.mlp(batch=14)
    alone = copy.deepcopy(module)
    model = hap.parallelize(module, cluster(ranks), (x[:6], y[:6]))
    dataset = torch.utils.data.TensorDataset(x, y)
    sampler = hap.DistributedSampler(dataset, model, batch_size=6, shuffle=True, seed=4)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, collate_fn=sampler.collate)
    order = torch.randperm(14, generator=torch.Generator().manual_seed(4))
    worst, held, before = 0.0, 0, sampler.units(6)
    for number, (local_x, local_y) in enumerate(loader):
        held += local_x.shape[0]
        chosen = order[6 * number : 6 * number + 6]
        loss, expected = model(local_x, local_y), alone(x[chosen], y[chosen])
        loss.backward()
        expected.backward()
        worst = max(worst, abs(float(loss.detach() - expected.detach())))
    assert number == 2
    assert sampler.units(6) == before, "the last batch, of two, says little of the devices"
    units = [(rank + 1) * 6 // sum(range(ranks + 1)) for rank in range(ranks)]
    local = model.local_inputs(*(value[:6].split(units)[rank] for value in (x, y)))
    worst = max(worst, abs(float(model(*local).detach() - alone(x[:6], y[:6]).detach())))
    return {"shares": worst, "samples": float(held)}

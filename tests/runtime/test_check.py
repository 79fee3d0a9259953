"""``hap.check`` on synthesised programs: small errors where all is right, large ones where something is wrong."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import Replicate, Shard

import hap
from hap.errors import CheckError, HapError, TraceError
from hap.planning import plan_axes
from hap.program import Program
from hap.rules import AxisGraph
from hap.runtime import collectives
from hap.runtime.emulate import Emulated, emulate
from tests import models
from tests.planning.tagger import Tagger, batch, kept
from tests.runtime import jobs

FEW = settings(max_examples=int(os.environ.get("HAP_TEST_EXAMPLES", "2")))


MODELS = {
    "mlp": models.mlp,
    "vgg19": models.vgg19,
    "gpt2": models.gpt2,
    "bert": models.bert,
    "bert_eager": functools.partial(models.bert, attention="eager"),
    "llama": models.llama,
}


@st.composite
def clusters(draw: st.DrawFn) -> hap.Cluster:
    """One to five devices of any speeds over any link."""

    def figure(low: float, high: float) -> float:
        return draw(st.floats(low, high))

    # Hypothesis tries the first entry first, and one device would prove little.
    devices = [
        hap.Device(
            flops=figure(1e8, 1e11),
            memory_bandwidth=figure(1e8, 1e11),
            memory=1e9,
            launch_overhead=figure(0.0, 1e-5),
        )
        for _ in range(draw(st.sampled_from([3, 5, 2, 4, 1])))
    ]
    return hap.Cluster(devices, link=hap.Link(bandwidth=figure(1e7, 1e11), latency=figure(0.0, 1e-4)))


def redrawn(name: str, value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Another random input of the same shape and kind."""
    if value.is_floating_point():
        return torch.randn(value.shape, generator=generator, dtype=value.dtype)
    if name == "attention_mask":
        mask = torch.randint(0, 2, value.shape, generator=generator)
        mask[:, 0] = 1  # a sample of nothing but padding has no meaning
        return mask
    drawn = torch.randint(0, 20 if name else 10, value.shape, generator=generator)
    if name == "labels":
        ignored = torch.rand(value.shape, generator=generator) < 0.3
        ignored[0] = False  # a loss over no labels at all is 0 / 0
        return torch.where(ignored, -100, drawn)
    return drawn


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MODELS)
@FEW
@given(cluster=clusters(), seed=st.integers(0, 2**32), inputs=st.integers(0, 2**32), with_batch=st.booleans())
def test_random_programs(name: str, cluster: hap.Cluster, seed: int, inputs: int, with_batch: bool) -> None:
    module, args, kwargs = MODELS[name]()
    generator = torch.Generator().manual_seed(inputs)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    result = hap.check(
        module,
        devices=cluster,
        example_inputs=tuple(redrawn("", value, generator) for value in args),
        example_kwargs={key: redrawn(key, value, generator) for key, value in kwargs.items()},
        seed=seed,
        count=2,
        splits="random",
        forbidden_axes=() if with_batch else ("batch",),
    )
    # Hugging Face's causal language models compute partly in float32 whatever their element type.
    assert result.error < (1e-5 if name in ("gpt2", "llama") else 1e-10), result.errors
    assert result.programs == 2
    assert result.replicated == ()
    names = {key for key, _ in module.named_parameters()}
    assert names < set(result.errors)
    assert "loss" in result.errors or "" in result.errors
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("programs", ["random", "optimal"])
def test_programs_under_constraints(programs: Literal["random", "optimal"], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, int | None]] = []

    def watched(axes: AxisGraph, program: Program, *arguments: Any) -> list[Emulated]:
        seen.append(kept(axes, program))
        return emulate(axes, program, *arguments)

    # `hap.check` is the function in `hap`, and a module's name besides.
    monkeypatch.setattr(sys.modules["hap.runtime.check"], "emulate", watched)
    args, kwargs = batch()
    options: dict[str, Any] = {"devices": jobs.cluster(3), "example_inputs": args, "example_kwargs": kwargs}
    pin = {"head": Shard(0), "layers.*.weight": Shard(1), "args.0": Shard(1), "outputs.logits": Shard(1)}
    forbid = {"norm.running_*": Replicate()}
    result = hap.check(Tagger(), **options, programs=programs, count=4, splits="random", pin=pin, forbid=forbid)
    assert result.error < 1e-10
    assert len(seen) == result.programs == 4
    for found in seen:
        wanted = {"embed.weight": 0, "layers.0.weight": 1, "layers.2.weight": 1, "args.0": 1, "outputs.logits": 1}
        assert {name: found[name] for name in wanted} == wanted
        assert found["norm.running_mean"] == found["norm.running_var"] == 0
    with pytest.raises(HapError, match="near are"):
        hap.check(Tagger(), **options, forbid={"heads": Replicate()})


@pytest.mark.parametrize(("optimiser", "tensors"), [("Adam", 2), (torch.optim.SGD, 0), (5, 5)])
def test_the_plan_is_made_for_the_optimiser(optimiser: Any, tensors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []

    def planned(*arguments: Any, **options: Any) -> hap.Plan:
        plans.append(plan_axes(*arguments, **options))
        return plans[-1]

    monkeypatch.setattr(sys.modules["hap.planning"], "plan_axes", planned)
    module, args, _ = models.mlp()
    options: dict[str, Any] = {} if optimiser == "Adam" else {"optimiser": optimiser}
    result = hap.check(module, devices=jobs.cluster(2), example_inputs=args, programs="optimal", **options)
    assert result.error < 1e-10
    assert [plan.optimiser_tensors for plan in plans] == [tensors]


@pytest.mark.parametrize("options", [{"dropout": 0.3}, {"batch_norm": True}])
def test_optimal_program(options: dict[str, Any]) -> None:
    module, args, kwargs = models.vgg19(**options)
    result = hap.check(module, devices=jobs.cluster(3), example_inputs=args, example_kwargs=kwargs, programs="optimal")
    assert result.error < 1e-10
    assert result.sharded_flops > 0.5
    if "batch_norm" in options:
        assert "features.1.running_var" in result.errors


def test_a_wrong_collective_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = collectives.STEPS[collectives.all_reduce]

    def wrong(tensor: torch.Tensor, *, rank: int) -> collectives.Steps:
        total = yield from right(tensor, rank=rank)
        return total * 1.001

    monkeypatch.setitem(collectives.STEPS, collectives.all_reduce, wrong)
    module, args, kwargs = models.mlp()
    result = hap.check(module, devices=jobs.cluster(3), example_inputs=args, example_kwargs=kwargs, count=5)
    assert result.error > 1e-4


class Loud(nn.Module):
    """Its gradients are far larger than its output and its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x)
        self.mean += 1e-3 * y.detach().mean(0)
        return y.square().sum() * 1e9, y.detach()


@pytest.mark.parametrize(("kind", "name"), [("output", "1"), ("buffer", "mean"), ("loss", "0")])
def test_large_gradients_hide_no_wrong_values(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(*arguments: Any) -> list[Emulated]:
        return [
            Emulated(one.kind, one.name, tuple(copy * 2 if one.kind == kind else copy for copy in one.copies))
            for one in emulate(*arguments)
        ]

    monkeypatch.setattr(sys.modules["hap.runtime.check"], "emulate", doubled)
    result = hap.check(Loud(), devices=jobs.cluster(2), example_inputs=(torch.randn(3, 4),))
    assert result.errors[name] == pytest.approx(1.0)
    assert sorted(result.errors.values())[-2] < 1e-10


class Balanced(nn.Module):
    """A loss that is zero in exact arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(x)).sum()


def test_rounding_of_a_loss_of_zero_is_no_error() -> None:
    options: dict[str, Any] = {"devices": jobs.cluster(3), "example_inputs": (torch.randn(7, 4),), "splits": "random"}
    assert hap.check(Balanced(), **options, count=3).error < 1e-10


def test_wrong_arguments() -> None:
    module, args, _ = models.mlp()
    with pytest.raises(HapError, match=r'no axis "bach"; it has: .*batch'):
        hap.check(module, devices=jobs.cluster(2), example_inputs=args, forbidden_axes=("bach",))
    with pytest.raises(HapError, match=r"expected a torch\.nn\.Module"):
        hap.check(None, devices=jobs.cluster(2), example_inputs=args)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"programs": "best"}, 'programs: expected "random" or "optimal", got \'best\''),
        ({"count": 0}, "count: expected a number of programs of at least 1, got 0"),
        ({"count": 1.5}, "count: expected a number of programs of at least 1"),
        ({"splits": "even"}, "splits: expected .*, got 'even'"),
        ({"splits": {"batch": [6]}}, r"splits.batch: expected 2 whole numbers of at least 0, got \[6\]"),
        ({"splits": {"batch": [7, -1]}}, "splits.batch: expected 2 whole numbers of at least 0"),
        ({"splits": {"batch": [0.5, 5.5]}}, "splits.batch: expected 2 whole numbers of at least 0"),
        ({"forbidden_axes": "batch"}, "forbidden_axes: expected a list of names"),
        ({"pin": {"": "R"}}, r'pin=\{"": \'R\'\}: expected Replicate\(\) or Shard\(dim\)'),
        ({"optimiser": "Muon"}, "optimiser: Muon is not known, only"),
    ],
)
def test_wrong_arguments_are_found_before_the_module_is_traced(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def traced(*_: Any) -> None:
        raise AssertionError("traced")

    # `hap.trace` is the function in `hap`, and a module's name besides.
    monkeypatch.setattr(sys.modules["hap.trace"], "trace", traced)
    module, args, _ = models.mlp()
    with pytest.raises(HapError, match=message):
        hap.check(module, devices=jobs.cluster(2), example_inputs=args, **options)


def test_splits_that_do_not_fit_the_module() -> None:
    module, args, _ = models.mlp()
    with pytest.raises(HapError, match=r"splits.batch: expected units that sum to 6, got \[4, 4\]"):
        hap.check(module, devices=jobs.cluster(2), example_inputs=args, splits={"batch": [4, 4]})
    with pytest.raises(HapError, match='no axis "bach"'):
        hap.check(module, devices=jobs.cluster(2), example_inputs=args, splits={"bach": [3, 3]})


def test_devices_too_small_for_the_module() -> None:
    module, args, _ = models.mlp()
    devices = [hap.Device(flops=1e9, memory_bandwidth=1e9, memory=100.0) for _ in range(3)]
    pair = hap.Cluster(devices[:2], link=hap.Link(bandwidth=1e9, latency=1e-6))
    cluster = hap.Cluster([pair, devices[2]], link=hap.Link(bandwidth=1e8, latency=1e-6))
    with pytest.raises(HapError, match="no plan fits memory"):
        hap.plan(module, devices=cluster, example_inputs=args)
    assert hap.check(module, devices=cluster, example_inputs=args, programs="optimal").error < 1e-10


class Complex(nn.Module):
    """Its parameter and buffer are complex."""

    phase: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 4, dtype=torch.complex64))
        self.register_buffer("phase", torch.randn(4, dtype=torch.complex64))

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x.to(self.w.dtype) + z) @ self.w * self.phase
        return y, y.abs().square().mean(1)


def test_complex_numbers_are_checked_in_complex128() -> None:
    inputs = (torch.randn(5, 6), torch.randn(5, 6, dtype=torch.complex64))
    result = hap.check(Complex(), devices=jobs.cluster(3), example_inputs=inputs, count=4, splits="random")
    assert result.error < 1e-12
    assert {"w", "0", "1"} <= set(result.errors)


@torch.library.custom_op("hap_test::single_only", mutates_args=())
def single_only(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise RuntimeError("expected Float32, got Double")
    return x.clone()


single_only.register_fake(torch.empty_like)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_module_that_does_not_run_in_float64(dropout: float) -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = nn.functional.dropout(self.layer(x), dropout)
            return hidden.square().mean() * single_only(x).mean()

    with pytest.raises(CheckError, match=r"does not run in float64: RuntimeError: expected Float32.*choose"):
        hap.check(Single(), devices=jobs.cluster(2), example_inputs=(torch.ones(6, 4),))


class Holes(nn.Module):
    """Some of its outputs and gradients are NaN or infinite, on one device too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x)
        row = torch.arange(len(x))[:, None]
        holes = torch.where(row == 1, torch.nan, torch.where(row == 2, -torch.inf, y))
        return y.square().mean(), holes * self.scale.detach()


def test_nan_and_infinities_of_one_device_are_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def error() -> float:
        arguments: Any = {"devices": jobs.cluster(3), "example_inputs": (torch.randn(6, 4),), "count": 4}
        return hap.check(Holes(), **arguments, splits="random").error

    assert error() < 1e-12

    right = collectives.STEPS[collectives.all_reduce]

    def wrong(tensor: torch.Tensor, *, rank: int) -> collectives.Steps:
        total = yield from right(tensor, rank=rank)
        return total * torch.nan

    monkeypatch.setitem(collectives.STEPS, collectives.all_reduce, wrong)
    assert error() == float("inf")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_refused_as_by_the_trace(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.randn(2, 6), torch.randn(3, 6)], layout=layout)
    with pytest.raises(TraceError) as traced:
        hap.trace(nn.Linear(6, 5), (nested,))
    with pytest.raises(TraceError) as checked:
        hap.check(nn.Linear(6, 5), devices=jobs.cluster(2), example_inputs=(nested,))
    assert str(checked.value) == str(traced.value)
    assert '"args.0" is a nested tensor: hap trains dense tensors' in str(traced.value)


@pytest.mark.parametrize(
    ("inputs", "kwargs", "message"),
    [
        (torch.ones(6, 4), None, "example_inputs: expected a tuple of arguments, got Tensor"),
        ((), (torch.ones(6, 4),), "example_kwargs: expected a mapping from names of arguments, got tuple"),
        ((), {0: torch.ones(6, 4)}, "example_kwargs: expected names of arguments as keys, got 0"),
    ],
)
def test_example_inputs_that_are_no_arguments(inputs: Any, kwargs: Any, message: str) -> None:
    given: Any = {"example_inputs": inputs, "example_kwargs": kwargs}
    for function in (hap.check, hap.plan, hap.parallelize):
        with pytest.raises(TraceError, match=message):
            function(nn.Linear(4, 3), devices=jobs.cluster(1), **given)


class Masked(nn.Module):
    """Masks in float32, of truth values and a constant."""

    def __init__(self, rounds: bool) -> None:
        super().__init__()
        self.rounds = rounds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[0])
        mask = torch.triu(torch.full((x.shape[0], x.shape[0]), -1e9, dtype=torch.float32), 1)
        mask = mask + (1.0 - (places > 2).to(torch.float32)) * -1e9
        if self.rounds:
            mask = mask + places.to(torch.float32).sqrt()
        return ((x @ x.T + mask).softmax(-1) @ x).square().mean()


@pytest.mark.parametrize(("rounds", "precision"), [(False, "float64"), (True, "float32")])
def test_precision_is_of_what_is_rounded(rounds: bool, precision: str) -> None:
    example = torch.randn(6, 4, requires_grad=True)
    assert hap.check(Masked(rounds), devices=["V100", "P100"], example_inputs=(example,)).precision == precision

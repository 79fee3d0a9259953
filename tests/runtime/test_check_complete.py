"""``hap.check`` finds what the graph does not have at all, and says where there is nothing to compare."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hap
from hap.errors import CheckError, TraceError
from hap.graph import Graph, Output
from tests.runtime import jobs, one_device

Edit = Callable[[list[Output]], list[Output]]


class Counting(nn.Module):
    """Two layers, a buffer that every call changes, and a parameter that none reads."""

    calls: torch.Tensor

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(4, 4)
        self.unread = nn.Parameter(torch.ones(4, 4))
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        loss: torch.Tensor = self.second(self.dropout(self.first(x))).square().sum()
        return loss


def dropped(kind: str, name: str) -> Edit:
    return lambda outputs: [one for one in outputs if (one.kind, one.name) != (kind, name)]


def without_tensor(kind: str, name: str) -> Edit:
    return lambda outputs: [
        dataclasses.replace(one, tensor=None) if (one.kind, one.name) == (kind, name) else one for one in outputs
    ]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (dropped("gradient", "first.weight"), 'gives the gradient of parameter "first.weight", which its traced graph'),
        (without_tensor("gradient", "first.weight"), 'gives the gradient of parameter "first.weight"'),
        (dropped("buffer", "calls"), 'gives the new value of buffer "calls"'),
        (dropped("input_gradient", "args.0"), 'gives the gradient of input "args.0"'),
    ],
    ids=["gradient", "gradient is none", "buffer", "gradient of an input"],
)
def test_what_the_graph_lacks_is_an_error(
    edit: Edit, message: str, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*args: Any, **options: Any) -> Graph:
        graph = hap.trace(*args)
        graph.outputs = edit(graph.outputs)
        return graph

    # `hap.trace` is the function in `hap`, and a module's name besides.
    monkeypatch.setattr(sys.modules["hap.trace"], "trace", lacking)
    monkeypatch.setattr(one_device, "trace", lacking)
    args = (torch.randn(3, 4, requires_grad=True),)
    with pytest.raises(CheckError, match=message):
        hap.check(Counting(dropout), devices=jobs.cluster(2), example_inputs=args)
    with pytest.raises(CheckError, match=message):
        one_device.step(Counting(dropout), args, {})


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_gradient_that_only_the_graph_has_is_a_difference(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def giving(*args: Any, **options: Any) -> Graph:
        graph = hap.trace(*args)
        (other,) = [one.tensor for one in graph.outputs if one.name == "first.weight"]
        graph.outputs = [
            dataclasses.replace(one, tensor=other) if one.name == "unread" else one for one in graph.outputs
        ]
        return graph

    monkeypatch.setattr(sys.modules["hap.trace"], "trace", giving)
    result = hap.check(Counting(dropout), devices=jobs.cluster(2), example_inputs=(torch.randn(3, 4),))
    assert result.error == result.errors["unread"] > 0.1


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_random_numbers_and_the_module_stay(dropout: float) -> None:
    module, x = Counting(dropout), torch.randn(3, 4, requires_grad=True)
    before = torch.get_rng_state()
    result = hap.check(module, devices=jobs.cluster(2), example_inputs=(x,))
    assert torch.equal(torch.get_rng_state(), before)
    assert set(result.errors) == {
        "loss",
        "first.weight",
        "first.bias",
        "second.weight",
        "second.bias",
        "calls",
        "args.0",
    }
    assert result.error < 1e-12
    assert x.grad is None
    assert not module.calls.any()


class Scaled(nn.Module):
    """Its gradients are multiplied by ``scale``; its second output is not."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.layer(x)
        return {"loss": y.square().sum() * self.scale, "logits": y, "labels": y.argmax(1)}


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_gradients_without_a_number_are_no_check(scale: float) -> None:
    with pytest.raises(CheckError, match="all 20 numbers in the module's gradients are NaN or infinite on one device"):
        hap.check(Scaled(scale), devices=jobs.cluster(2), example_inputs=(torch.randn(3, 4),))


class Masked(nn.Module):
    """Its second output has no number other than ``fill``."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.fill = fill

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(x).square().sum(), "mask": torch.full_like(x, self.fill)}


@pytest.mark.parametrize("fill", [0.0, -torch.inf])
def test_an_output_without_a_number_is_a_warning(fill: float, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "hap"):
        hap.check(Masked(fill), devices=jobs.cluster(2), example_inputs=(torch.randn(3, 4),))
    said = 'nothing to compare: on one device all numbers are NaN or infinite of output "mask"'
    assert [record.message for record in caplog.records] == ([said] if fill else [])


class Conjugates(nn.Module):
    """Its second output is a view of a conjugate."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        product = torch.complex(x, x).mT @ torch.complex(x, -x)
        return {"loss": self.layer(x).square().sum(), "view": product.conj().imag, "whole": product.conj()}


def test_conjugates_are_compared() -> None:
    result = hap.check(
        Conjugates(), devices=jobs.cluster(3), example_inputs=(torch.randn(7, 6),), count=8, splits="random"
    )
    assert result.error < 1e-12
    assert {"view", "whole"} <= set(result.errors)


def hooked() -> nn.Module:
    module = Scaled(1.0)
    module.layer.weight.register_hook(lambda gradient: gradient * 3)
    return module


def hooked_after_accumulation() -> nn.Module:
    module = Scaled(1.0)
    module.layer.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return module


class Multiplied(nn.Module):
    """Reads a buffer that requires grad."""

    factor: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("factor", torch.ones(4, requires_grad=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) * self.factor).square().sum()


def with_a_parameter_as_buffer() -> nn.Module:
    module = Multiplied()
    module._buffers["factor"] = module.layer.bias
    return module


def with_the_result_of_a_graph_as_buffer() -> nn.Module:
    module = Multiplied()
    module.factor = module.factor * 2
    return module


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (hooked, 'parameter "layer.weight" has a tensor hook'),
        (hooked_after_accumulation, 'parameter "layer.weight" has a tensor hook'),
        (Multiplied, r'buffer "factor" requires grad, .*make it a parameter \(torch\.nn\.Parameter\)'),
        (with_a_parameter_as_buffer, 'buffer "factor" requires grad'),
        (with_the_result_of_a_graph_as_buffer, r'buffer "factor" requires grad.*`\.detach\(\)` it'),
    ],
)
def test_gradients_that_would_be_lost_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    x = torch.randn(3, 4)
    with pytest.raises(TraceError, match=message):
        hap.trace(make(), (x,))
    with pytest.raises(TraceError, match=message):
        hap.check(make(), devices=jobs.cluster(2), example_inputs=(x,))
    with pytest.raises(TraceError, match=message):
        hap.parallelize(make(), jobs.cluster(1), (x,))

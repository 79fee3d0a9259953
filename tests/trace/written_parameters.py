"""Modules whose parameters and buffers are held in every way that people hold them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from tests.trace.written import Call, floats, module


class Tied(nn.Module):
    """An embedding, a head and a third name in a submodule for one weight."""

    def __init__(self, names: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        if names == 3:
            self.inner.table = self.embedding.weight
        self.names = names

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        hidden = self.inner(self.embedding(tokens))
        if self.names == 3:
            hidden = hidden + self.inner.table[:5].sum(0)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


class TiedBias(nn.Module):
    """A bias that a submodule shares with its parent, and buffers that share one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4))
        self.fc = nn.Linear(4, 4)
        self.fc.bias = self.bias
        self.register_buffer("scale", torch.full((4,), 0.5))
        self.fc.register_buffer("scale", self.scale)

    def forward(self, x: Tensor) -> Tensor:
        self.scale.mul_(1.25)
        return (self.fc(x) * self.fc.scale + self.bias).square().sum()


class Shared(nn.Module):
    """One module called several times under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = self.first
        self.layers = nn.ModuleList([self.first] * 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return self.second(self.first(x)).square().mean()


class Unused(nn.Module):
    """Parameters, buffers and inputs that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)
        self.gain = nn.Parameter(torch.ones(3))
        self.register_buffer("table", torch.ones(3))

    def forward(self, x: Tensor, ignored: Tensor, other: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            self.unused(x)
        return self.used(x).square().mean()


class Frozen(nn.Module):
    """A frozen body, a frozen bias, a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6)).requires_grad_(False)
        self.head = nn.Linear(6, 3)
        self.head.bias.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.head(self.body(x)), y)


class Adapted(nn.Module):
    """A low-rank adapter beside a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.randn(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return (self.fc(x) + x @ self.down.t() @ self.up.t()).square().mean()


class Symmetric(nn.Module):
    """A parametrisation of the user's own."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


class Loss(nn.Module):
    """A module with the mean square of its output as the loss."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.body(*inputs).square().mean()


def parametrised(fc: nn.Linear) -> nn.Linear:
    parametrize.register_parametrization(fc, "weight", Symmetric())
    return fc


class Collections(nn.Module):
    """Every container of parameters and modules, some of them empty."""

    def __init__(self) -> None:
        super().__init__()
        self.none, self.nothing = nn.ParameterList(), nn.ModuleList()
        self.list = nn.ParameterList([nn.Parameter(torch.randn(4)) for _ in range(2)])
        self.dict = nn.ParameterDict({"scale": nn.Parameter(torch.randn(4)), "shift": nn.Parameter(torch.randn(4))})
        self.modules_by_name = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Identity()})
        self.register_parameter("absent", None)
        self.register_buffer("missing", None)

    def forward(self, x: Tensor) -> Tensor:
        for values in (self.none, self.list):
            for value in values:
                x = x * value
        for name, value in self.dict.items():
            x = x * value if name == "scale" else x + value
        for layer in [*self.nothing, *self.modules_by_name.values()]:
            x = layer(x)
        return x.square().mean() if self.absent is None and self.missing is None else x.sum()


class Strided(nn.Module):
    """Parameters that are not contiguous, one in the channels-last format."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4).t())
        self.every_second = nn.Parameter(torch.randn(10)[::2])
        self.conv = nn.Conv2d(2, 4, 3, padding=1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        return (self.conv(x).mean((2, 3)) @ self.weight + self.every_second).square().mean()


class Integers(nn.Module):
    """Weights of 8 bits with a scale, as quantised layers hold them, and a boolean mask as a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randint(-128, 128, (6, 4), dtype=torch.int8), requires_grad=False)
        self.mask = nn.Parameter(torch.tensor([True, False, True, True, True, False]), requires_grad=False)
        self.scale = nn.Parameter(torch.rand(6, 1) / 128)
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)
        return torch.where(self.mask, out, 0.0).square().mean()


class Zeros(nn.Module):
    """0-d parameters and inputs, and a parameter without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.5))
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        rows = torch.cat([self.fc(x), self.empty])
        return (rows / self.temperature.exp()).square().mean() * weight


def tokens(*shape: int, high: int = 11) -> Tensor:
    return torch.randint(0, high, shape)


def spectral(fc: nn.Linear) -> nn.Linear:
    return parametrizations.spectral_norm(fc, n_power_iterations=2)


ENTRIES: dict[str, Any] = {
    "weights tied under two names": lambda: Call(Tied(2), (tokens(4, 3), tokens(4, 3))),
    "weights tied under three names": lambda: Call(Tied(3), (tokens(4, 3), tokens(4, 3))),
    "biases and buffers tied": lambda: Call(TiedBias(), (floats(5, 4),)),
    "shared modules": lambda: Call(Shared(), (floats(5, 6),)),
    "unused parameters and inputs": lambda: Call(Unused(), (floats(5, 4), floats(5, 2)), {"other": floats(5)}),
    "frozen parameters": lambda: Call(Frozen(), (floats(7, 5), floats(7, 3))),
    "an adapter": lambda: Call(Adapted(), (floats(5, 8),)),
    "weight norm": lambda: Call(Loss(parametrizations.weight_norm(nn.Linear(4, 6))), (floats(5, 4),)),
    "weight norm of a convolution": lambda: Call(
        Loss(parametrizations.weight_norm(nn.Conv1d(3, 4, 3))), (floats(5, 3, 7),)
    ),
    "weight norm, the old way": lambda: Call(Loss(nn.utils.weight_norm(nn.Linear(4, 6))), (floats(5, 4),)),
    "spectral norm": lambda: Call(Loss(spectral(nn.Linear(4, 6))), (floats(5, 4),)),
    "spectral norm, evaluation": lambda: Call(Loss(spectral(nn.Linear(4, 6))).eval(), (floats(5, 4),)),
    "spectral norm, the old way": lambda: Call(Loss(nn.utils.spectral_norm(nn.Linear(4, 6))), (floats(5, 4),)),
    "orthogonal weights": lambda: Call(Loss(parametrizations.orthogonal(nn.Linear(4, 4))), (floats(5, 4),)),
    "a parametrisation of one's own": lambda: Call(Loss(parametrised(nn.Linear(4, 4))), (floats(5, 4),)),
    "containers": lambda: Call(Collections(), (floats(5, 4),)),
    "parameters that are not contiguous": lambda: Call(Strided(), (floats(3, 2, 5, 5),)),
    "parameters of integers": lambda: Call(Integers(), (floats(5, 4),)),
    "0-d and empty parameters": lambda: Call(Zeros(), (floats(5, 4), torch.tensor(0.25))),
    "nn.Sequential": lambda: Call(
        Loss(nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Sequential(nn.Linear(6, 2)))), (floats(5, 4),)
    ),
    "sizes of one": lambda: Call(Loss(nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1))), (floats(1, 1),)),
    "a batch of one": lambda: Call(Loss(nn.Linear(4, 3)), (floats(1, 4),)),
    "an empty batch": lambda: Call(
        module(lambda self, x: self.fc(x).square().sum(), fc=nn.Linear(4, 3)), (floats(0, 4),)
    ),
    "prime sizes": lambda: Call(Loss(nn.Sequential(nn.Linear(7, 13), nn.GELU(), nn.Linear(13, 5))), (floats(11, 7),)),
}

"""Modules and clusters for which a known way to train is the fastest."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from hap.cluster import Cluster, CollectiveCost, Device, Link
from tests.runtime.one_device import Step, step
from tests.zoo.moe import Experts


def cluster(
    count: int,
    *,
    speeds: Sequence[float] | None = None,
    flops: float = 1e10,
    memory: float = 1e9,
    all_reduce: float = 1.0,
) -> Cluster:
    """Devices that compute ``flops``, times their speed where speeds are given, with links of 2 GB/s.

    An all-reduce moves as many bytes as a reduce-scatter and an all-gather, but waits for half as many messages, so
    that no two programs are equally fast. Its bandwidth is ``all_reduce`` times that of the links.
    """
    rates = [flops * speed for speed in speeds or [1.0] * count]
    assert len(rates) == count
    link = Link(bandwidth=2e9, latency=1e-7)
    measured = CollectiveCost(latency=(count - 1) * link.latency, bandwidth=all_reduce * link.bandwidth)
    return Cluster(
        [Device(flops=rate, memory_bandwidth=10 * rate, memory=memory, launch_overhead=0.0) for rate in rates],
        link=link,
        collectives={"all_reduce/builtin": measured},
    )


class Chain(nn.Module):
    """Three linear layers, without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64, bias=False)
        self.down = nn.Linear(64, 32, bias=False)
        self.out = nn.Linear(32, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.down(self.up(x).relu()).relu()).square().mean()


class Deep(nn.Module):
    """Six square linear layers, without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x.square().mean()


def convolution(channels: int, features: int) -> nn.Conv2d:
    return nn.Conv2d(channels, features, 3, padding=1, bias=False)


class Autoencoder(nn.Module):
    """Convolutions, which take nearly all of the time, and a linear layer, which has nearly all of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = convolution(3, 8)
        self.conv2 = convolution(8, 8)
        self.code = nn.Linear(128, 128, bias=False)
        self.conv3 = nn.ConvTranspose2d(8, 8, 4, stride=4, bias=False)
        self.conv4 = convolution(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        code = F.avg_pool2d(self.conv2(self.conv1(x).relu()).relu(), 4).flatten(1)
        answer = self.code(code).relu().unflatten(1, (8, 4, 4))
        return (self.conv4(self.conv3(answer).relu()) - x).square().mean()


class Mlp(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Attention(nn.Module):
    """Causal self-attention with four heads."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Blocks(nn.Module):
    """A learnt shift in float64, then residual blocks in float32, with layer norms in front of them."""

    def __init__(self, hidden: int, **blocks: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(hidden, dtype=torch.float64))
        for name, block in blocks.items():
            self.add_module(name, block(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.shift
        for block in self.children():
            x = x + block(F.layer_norm(x, x.shape[-1:]).float())
        return x.square().mean()


class LanguageModel(nn.Module):
    """An embedding whose weight makes the logits, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(600, 16)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(self.words(tokens).tanh(), self.words.weight), labels)


class Mixture(nn.Module):
    """A linear layer with a norm, and experts to which tokens are sent as the caller says."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16, bias=False)
        self.experts = Experts(4, 16, 128)

    def forward(self, x: torch.Tensor, dispatch: torch.Tensor) -> torch.Tensor:
        x = F.layer_norm(self.fc(x), x.shape[-1:])
        return (x + self.experts(x, dispatch, dispatch)).square().mean()


def _traced(make: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Step:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return step(make(), [torch.randn(shape, dtype=torch.float64) for shape in shapes], {})


@functools.cache
def chain() -> Step:
    return _traced(lambda: Chain().double(), (512, 32))


@functools.cache
def deep() -> Step:
    return _traced(lambda: Deep().double(), (128, 32))


@functools.cache
def narrow() -> Step:
    """The same, for few samples: weights are larger than activations."""
    return _traced(lambda: Deep().double(), (64, 32))


@functools.cache
def feedforward() -> Step:
    """Two transformers' feed-forwards, for many samples."""
    return _traced(lambda: nn.Sequential(Mlp(32), Mlp(32)).double(), (1024, 32))


@functools.cache
def autoencoder() -> Step:
    return _traced(lambda: Autoencoder().double(), (4, 3, 16, 16))


@functools.cache
def transformer() -> Step:
    """Short sequences: the weights are larger than the activations."""
    return _traced(lambda: Blocks(32, attention=Attention, mlp=Mlp), (2, 8, 32))


@functools.cache
def long_transformer() -> Step:
    """Long sequences: the activations are larger than the weights."""
    return _traced(lambda: Blocks(16, mlp=Mlp, attention=Attention), (2, 256, 16))


@functools.cache
def language_model() -> Step:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return step(LanguageModel().double(), (torch.randint(600, (8,)), torch.randint(600, (8,))), {})


@functools.cache
def mixture() -> Step:
    """Four groups of 32 tokens; each of four experts has places for eight tokens of a group."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = torch.randn(4, 32, 16, dtype=torch.float64)
        places = torch.stack([torch.randperm(32) for _ in range(4)])
        dispatch = F.one_hot(places, 32).double().unflatten(-1, (4, 8))
        return step(Mixture().double(), (x, dispatch), {})

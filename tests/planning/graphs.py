"""Small traced graphs with their axes, each made once."""

import functools
import random

import torch
from torch import nn

from hap.rules import annotate
from hap.trace import trace
from tests import models


@functools.cache
def axes_of(name, **options):
    """The axes of one of the tests' models, in float32."""
    module, args, kwargs = getattr(models, name)(torch.float32, **options)
    return annotate(trace(module, args, kwargs))


class Random(nn.Module):
    """A few random layers on [batch, hidden], now and then through [batch, heads, width]; summed at the end."""

    def __init__(self, seed, layers, hidden=12, heads=3):
        super().__init__()
        chosen = random.Random(seed)
        self.kinds = [chosen.choice(["linear", "gelu", "norm", "attend", "gate", "skip"]) for _ in range(layers)]
        self.heads = heads
        self.linears = nn.ModuleList(nn.Linear(hidden, hidden, bias=chosen.random() < 0.5) for _ in range(layers))
        self.scale = nn.Parameter(torch.ones(hidden))

    def forward(self, x):
        kept = x
        for kind, linear in zip(self.kinds, self.linears, strict=True):
            if kind == "linear":
                x = linear(x)
            elif kind == "gelu":
                x = torch.nn.functional.gelu(x)
            elif kind == "norm":
                x = torch.nn.functional.layer_norm(x, x.shape[1:], self.scale)
            elif kind == "attend":
                parts = linear(x).unflatten(1, (self.heads, -1))
                x = (torch.matmul(parts, parts.transpose(1, 2)).softmax(-1) @ parts).flatten(1)
            elif kind == "gate":
                x = x * linear(kept)
            else:
                x, kept = x + kept, x
        return (x * self.scale).sum()


@functools.cache
def random_axes(seed, layers=3):
    """The axes of a random module."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return annotate(trace(Random(seed, layers), (torch.randn(8, 12),)))

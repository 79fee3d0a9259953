"""Models as the commands' tests name them: ``tests/cli/model.py:small``."""

import sys

import torch
from torch import nn

from tests import models


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 4))

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layers(x), y)


def small():
    # On the meta device: planning computes nothing.
    with torch.device("meta"):
        module = Small()
    return module, (torch.zeros(4096, 512), torch.zeros(4096, 4))


def tiny():
    return models.mlp()


def by_keyword():
    print("what a model prints is no part of a command's output")
    module, (x, y), _ = models.mlp()
    return module, {"x": x, "y": y}


class Casting(nn.Module):
    """Normalises in float32 whatever it is given, as many models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        hidden = self.first(x)
        scale = hidden.float().square().sum(0).rsqrt()
        return self.last(hidden * scale.to(hidden.dtype)).square().mean()


def casting():
    # Of some numbers the sums in float32 are the same in any order.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Casting(), torch.randn(16, 8)


def alone():
    return nn.Linear(2, 2)


def bare():
    """One tensor, not in a tuple."""
    return nn.Linear(8, 4), torch.zeros(16, 8)


def wrong():
    return "model"


def exiting():
    sys.exit(0)


def raising():
    return 1 / 0

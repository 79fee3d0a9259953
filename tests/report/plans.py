"""Plans to report on: a small model on unequal devices, and names that break out of a careless page."""

from __future__ import annotations

import torch
from torch import nn

import hap

HOSTILE = '</script><img src=x onerror="alert(1)">&'


class Named(nn.Module):
    """Two layers, in a module whose name is no identifier."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.add_module(HOSTILE, nn.Linear(width, width))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(getattr(self, HOSTILE)(x).relu()).square().mean()


def plan(width: int = 64, batch: int = 4096) -> hap.Plan:
    last = hap.Device(HOSTILE, flops=5e12, memory_bandwidth=4e11, memory=8e9)
    cluster = hap.Cluster(["V100", "V100", last], link=hap.Link(bandwidth=1e11, latency=1e-7))
    return hap.plan(Named(width), devices=cluster, example_inputs=(torch.ones(batch, width),))

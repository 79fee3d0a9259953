"""Vocabulary-parallel embedding, logits and cross-entropy come out of the search, and equal one device."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hap.cluster import Cluster, Device, Link
from hap.planning import plan_axes
from hap.program import Compute
from tests.runtime.one_device import Step, step

VOCABULARY, BATCH = 600, 2


class LanguageModel(nn.Module):
    """Tied embeddings around a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = F.linear(self.norm(self.words(tokens)), self.words.weight)
        return F.cross_entropy(logits, labels, label_smoothing=0.1)


@functools.cache
def traced() -> Step:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokens = torch.randint(0, VOCABULARY, (BATCH,))
        return step(LanguageModel().double(), (tokens, torch.tensor([-100, VOCABULARY - 1])), {})


@pytest.mark.parametrize("forbidden", [("batch",), ()])
def test_the_vocabulary_is_sharded_where_the_batch_is_forbidden_or_tiny(forbidden: tuple[str, ...]) -> None:
    whole = traced()
    devices = [
        Device(flops=1e9 * speed, memory_bandwidth=1e9 * speed, memory=1e9, launch_overhead=0.0) for speed in (1, 2, 3)
    ]
    cluster = Cluster(devices, link=Link(bandwidth=1e9, latency=0.0))
    plan = plan_axes(whole.axes, cluster, forbidden_axes=forbidden)
    assert plan.search_gap == 0.0
    vocabulary = next(axis.name for axis in whole.axes.axes if axis.size == VOCABULARY)
    by_target = {i.target: i for i in plan.program.instructions if isinstance(i, Compute)}
    for target, composite in {
        "aten.embedding.default": None,
        "aten.mm.default": None,
        "aten._log_softmax.default": "log_softmax",
        "aten.gather.default": None,
        "aten._log_softmax_backward_data.default": "log_softmax_backward",
        "aten.embedding_dense_backward.default": None,
    }.items():
        assert (by_target[target].axis, by_target[target].composite) == (vocabulary, composite), target
    # Faster devices have more words.
    assert plan.splits[vocabulary] == sorted(plan.splits[vocabulary])
    whole.check(plan.program, plan.splits, len(devices), 1e-10)

"""Mixtures of experts: tokens are sent to experts by one-hot tensors of fixed capacity, so no shape depends on values.

Letters of the einsums: g groups of tokens that are routed together, s tokens of a group, m model features, e experts,
c places of an expert, h hidden features of an expert.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.models import Built
from tests.zoo.entry import entry
from tests.zoo.language import DROPOUT, VOCABULARY, some, tokens
from tests.zoo.written import built


class Experts(nn.Module):
    """Perceptrons of two layers, one for each expert, on what is sent to it."""

    def __init__(self, experts: int, features: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(experts, features, hidden) / features**0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, features) / hidden**0.5)

    def forward(self, x: torch.Tensor, dispatch: torch.Tensor, combine: torch.Tensor) -> torch.Tensor:
        """Tokens (g, s, m) by way of the experts; ``dispatch`` and ``combine`` are (g, s, e, c)."""
        sent = torch.einsum("gsec,gsm->egcm", dispatch, x)
        hidden = torch.einsum("egcm,emh->egch", sent, self.up).relu()
        answers = torch.einsum("egch,ehm->egcm", hidden, self.down)
        return torch.einsum("gsec,egcm->gsm", combine, answers)


def places(chosen: torch.Tensor, taken: torch.Tensor | int = 0) -> torch.Tensor:
    """The place of each token at its expert, in the order of the group: (g, s, e), zero where it is not sent there."""
    return (chosen.cumsum(1) - chosen + taken) * chosen


def sent_to(chosen: torch.Tensor, place: torch.Tensor, capacity: int) -> torch.Tensor:
    """One-hot (g, s, e, c); tokens beyond the capacity are sent nowhere."""
    fits = chosen * (place < capacity)
    return F.one_hot((place * fits).long(), capacity) * fits.unsqueeze(-1)


def balance(probabilities: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The loss that keeps experts evenly busy: share of tokens times mean probability, over experts."""
    experts = probabilities.shape[-1]
    return experts * (probabilities.mean(1) * chosen.to(probabilities.dtype).mean(1)).sum(-1).mean()


class GShard(nn.Module):
    """Top-2 gating of Lepikhin et al. (2020), algorithm 1: the second expert at random, in proportion to its weight."""

    def __init__(self, experts: int, features: int, hidden: int, capacity: int) -> None:
        super().__init__()
        self.gate = nn.Linear(features, experts, bias=False)
        self.experts = Experts(experts, features, hidden)
        self.capacity = capacity

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens (g, s, m); returns their answers and the balancing loss."""
        probabilities = self.gate(x).softmax(-1)
        count = probabilities.shape[-1]
        first = F.one_hot(probabilities.argmax(-1), count)
        others = probabilities.masked_fill(first.bool(), 0)
        second = F.one_hot(others.argmax(-1), count)
        weights = [(probabilities * first).sum(-1), (probabilities * second).sum(-1)]
        total = weights[0] + weights[1]
        drawn = torch.rand_like(total) < 2 * weights[1] / total
        second = second * drawn.unsqueeze(-1)
        where = [places(first), places(second, first.sum(1, keepdim=True))]
        sent = [sent_to(one, place, self.capacity) for one, place in zip((first, second), where, strict=True)]
        combine = sum(
            one.to(x.dtype) * (weight / total)[..., None, None] for one, weight in zip(sent, weights, strict=True)
        )
        dispatch = (sent[0] + sent[1]).to(x.dtype)
        return self.experts(x, dispatch, combine), balance(probabilities, first)


class Switch(nn.Module):
    """Top-1 routing of Fedus et al. (2021); the input of the router is jittered. All tokens are one group."""

    def __init__(self, experts: int, features: int, hidden: int, capacity: int) -> None:
        super().__init__()
        self.gate = nn.Linear(features, experts, bias=False)
        self.experts = Experts(experts, features, hidden)
        self.capacity = capacity

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens (batch, sequence, m); returns their answers and the balancing loss."""
        tokens = x.flatten(0, 1).unsqueeze(0)
        jittered = tokens * torch.empty_like(tokens).uniform_(0.99, 1.01)
        probabilities = self.gate(jittered).softmax(-1)
        weight, expert = probabilities.max(-1)
        chosen = F.one_hot(expert, probabilities.shape[-1])
        dispatch = sent_to(chosen, places(chosen), self.capacity).to(x.dtype)
        answers = self.experts(tokens, dispatch, dispatch * weight[..., None, None])
        return answers.view_as(x), balance(probabilities, chosen)


class Transformer(nn.Module):
    """Attention and, in its perceptrons' place, a mixture of experts; after each residual or before (``pre_norm``)."""

    def __init__(self, mixture: type[nn.Module], capacity: int, causal: bool, pre_norm: bool) -> None:
        super().__init__()
        features, heads, layers, experts = 12, 2, 2, 5
        self.embedding = nn.Embedding(VOCABULARY, features)
        self.position = nn.Parameter(torch.randn(64, features) / 10)
        self.attention = nn.ModuleList(
            nn.MultiheadAttention(features, heads, DROPOUT, batch_first=True) for _ in range(layers)
        )
        self.mixtures = nn.ModuleList(mixture(experts, features, 2 * features, capacity) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(features) for _ in range(2 * layers))
        self.dropout = nn.Dropout(DROPOUT)
        self.head = nn.Linear(features, VOCABULARY)
        self.causal, self.pre_norm = causal, pre_norm

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        sequence = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(sequence) if self.causal else None
        states = self.dropout(self.embedding(x) + self.position[:sequence])
        balancing = states.new_zeros(())
        for number, (attention, mixture) in enumerate(zip(self.attention, self.mixtures, strict=True)):
            for norm, answer in zip(self.norms[2 * number : 2 * number + 2], (attention, mixture), strict=True):
                given = norm(states) if self.pre_norm else states
                if answer is attention:
                    added = attention(given, given, given, attn_mask=mask, is_causal=self.causal, need_weights=False)[0]
                else:
                    added, loss = mixture(given)
                    balancing = balancing + loss
                states = states + self.dropout(added)
                states = states if self.pre_norm else norm(states)
        return F.cross_entropy(self.head(states).flatten(0, 1), y.flatten()) + 0.01 * balancing


@entry(sharded={"batch": 0.45, "mixtures.*.gate.weight.0": 0.4}, without_batch={"mixtures.*.gate.weight.0": 0.5})
def bert_moe() -> Built:
    """Masked words; a sequence is a group, so that groups go with the batch."""
    options = {"mixture": GShard, "capacity": 4, "causal": False, "pre_norm": False}
    return built(Transformer, options, tokens(), some(tokens(seed=4)))


@entry(
    sharded={"batch": 0.7, "mixtures.*.gate.weight.0": 0.2},
    without_batch={"args.0.1": 0.4, "mixtures.*.gate.weight.0": 0.2},
)
def switch() -> Built:
    """The next word; the places of all tokens at their experts are counted over the whole batch."""
    options = {"mixture": Switch, "capacity": 9, "causal": True, "pre_norm": True}
    return built(Transformer, options, tokens(), tokens(seed=4))

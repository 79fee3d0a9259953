"""The losses of ``torch.nn``, in groups, on one linear layer; and losses that couple the samples of a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

SAMPLES, CLASSES, FEATURES = 6, 4, 3
IGNORED = -100
LABELS = torch.tensor([1, IGNORED, 3, 0, IGNORED, IGNORED])
REDUCTIONS = ("mean", "sum", "none")
Terms = dict[str, Callable[..., torch.Tensor]]


class Losses(nn.Module):
    """Several losses of the outputs of one layer, each also an output of its own; their sum with unequal weights."""

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.fc = nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
        self.terms = terms

    def forward(self, x: torch.Tensor, *targets: torch.Tensor) -> dict[str, torch.Tensor]:
        z = self.fc(x)
        values = {name: term(z, *targets) for name, term in self.terms.items()}
        total = sum(value.sum() * (1 + 0.1 * n) for n, value in enumerate(values.values()))
        return {"loss": total, **values}


def _numbers() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=_numbers(), dtype=torch.float64)


def each(*losses: tuple[str, Callable[..., torch.Tensor]]) -> Terms:
    """Every loss with every reduction."""
    return {f"{name}, {r}": partial(loss, reduction=r) for name, loss in losses for r in REDUCTIONS}


def labels() -> tuple[Terms, tuple[torch.Tensor, ...]]:
    """Classes of samples, two thirds of them ignored."""
    weight = torch.tensor([0.3, 1.0, 2.0, 0.7], dtype=torch.float64)
    terms = each(
        ("cross-entropy", F.cross_entropy),
        ("weighted", partial(F.cross_entropy, weight=weight)),
        ("smoothed", partial(F.cross_entropy, label_smoothing=0.2)),
        ("weighted and smoothed", partial(F.cross_entropy, weight=weight, label_smoothing=0.2)),
        ("nll", lambda z, y, reduction: F.nll_loss(z.log_softmax(-1), y, weight, reduction=reduction)),
        ("other ignored", lambda z, y, reduction: F.cross_entropy(z, y.clamp(0), ignore_index=0, reduction=reduction)),
        (
            "multi-margin",
            lambda z, y, reduction: F.multi_margin_loss(z, y.clamp(0), 2, 0.7, weight, reduction=reduction),
        ),
    )
    terms["focal"] = lambda z, y: _focal(z, y)
    return terms, (normal(SAMPLES, FEATURES), LABELS)


def _focal(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    entropy = F.cross_entropy(z, y, reduction="none")
    return ((1 - (-entropy).exp()) ** 2 * entropy).sum() / (y != IGNORED).sum()


def images() -> tuple[Terms, tuple[torch.Tensor, ...]]:
    """Classes of pixels, and their probabilities."""
    weight = torch.tensor([0.3, 1.0, 2.0, 0.7], dtype=torch.float64)

    def first(z: torch.Tensor) -> torch.Tensor:
        return z.permute(0, 3, 1, 2)

    terms = each(
        ("cross-entropy", lambda z, y, p, reduction: F.cross_entropy(first(z), y, weight, reduction=reduction)),
        ("smoothed", lambda z, y, p, reduction: F.cross_entropy(first(z), y, label_smoothing=0.3, reduction=reduction)),
        ("nll", lambda z, y, p, reduction: F.nll_loss(first(z).log_softmax(1), y, reduction=reduction)),
        (
            "probabilities",
            lambda z, y, p, reduction: F.cross_entropy(first(z), p, weight, label_smoothing=0.1, reduction=reduction),
        ),
    )
    classes = torch.randint(CLASSES, (SAMPLES, 2, 2), generator=_numbers())
    classes[LABELS == IGNORED] = IGNORED
    return terms, (normal(SAMPLES, 2, 2, FEATURES), classes, normal(SAMPLES, CLASSES, 2, 2).softmax(1))


def elements() -> tuple[Terms, tuple[torch.Tensor, ...]]:
    """Differences and divergences, element by element."""
    weight = torch.tensor([0.3, 1.0, 2.0, 0.7], dtype=torch.float64)

    def divergence(z: torch.Tensor, y: torch.Tensor, reduction: str, log_target: bool) -> torch.Tensor:
        return F.kl_div(z.log_softmax(-1), y.log() if log_target else y, reduction=reduction, log_target=log_target)

    terms = each(
        ("mse", F.mse_loss),
        ("weighted mse", lambda z, y, reduction: F.mse_loss(z, y, reduction=reduction, weight=y.exp())),
        ("l1", F.l1_loss),
        ("smooth l1", partial(F.smooth_l1_loss, beta=0.5)),
        ("huber", partial(F.huber_loss, delta=0.5)),
        ("bce", lambda z, y, reduction: F.binary_cross_entropy(z.sigmoid(), y, weight, reduction=reduction)),
        ("bce with logits", partial(F.binary_cross_entropy_with_logits, weight=weight, pos_weight=weight + 1)),
        ("kl", partial(divergence, log_target=False)),
        ("kl of logarithms", partial(divergence, log_target=True)),
        ("poisson", partial(F.poisson_nll_loss, full=True)),
        (
            "poisson of rates",
            lambda z, y, reduction: F.poisson_nll_loss(z.exp(), y, log_input=False, reduction=reduction),
        ),
        ("gaussian", lambda z, y, reduction: F.gaussian_nll_loss(z, y, z.exp(), full=True, reduction=reduction)),
        (
            "gaussian, one variance a sample",
            lambda z, y, reduction: F.gaussian_nll_loss(z, y, z.exp().mean(-1), reduction=reduction),
        ),
        (
            "gaussian, one variance a feature",
            lambda z, y, reduction: F.gaussian_nll_loss(z, y, z.exp().mean(0, keepdim=True), reduction=reduction),
        ),
    )
    terms["kl, batchmean"] = partial(divergence, reduction="batchmean", log_target=False)
    terms["dice"] = lambda z, y: 1 - (2 * (z.sigmoid() * y).sum() + 1) / (z.sigmoid().sum() + y.sum() + 1)
    return terms, (normal(SAMPLES, FEATURES), normal(SAMPLES, CLASSES).softmax(-1))


def margins() -> tuple[Terms, tuple[torch.Tensor, ...]]:
    """Margins of classes, and of pairs and triplets of samples that stand beside each other."""

    def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return 1 - F.cosine_similarity(a, b)

    triplet = partial(F.triplet_margin_with_distance_loss, distance_function=distance, margin=0.5, swap=True)
    terms = each(
        ("soft margin", lambda z, y, s, c, reduction: F.soft_margin_loss(z, s, reduction=reduction)),
        ("multi-label margin", lambda z, y, s, c, reduction: F.multilabel_margin_loss(z, c, reduction=reduction)),
        (
            "multi-label soft margin",
            lambda z, y, s, c, reduction: F.multilabel_soft_margin_loss(z, (s + 1) / 2, reduction=reduction),
        ),
        ("hinge", lambda z, y, s, c, reduction: F.hinge_embedding_loss(z, s, 0.8, reduction=reduction)),
        ("ranking", lambda z, y, s, c, reduction: F.margin_ranking_loss(z, y, s, 0.1, reduction=reduction)),
        ("cosine", lambda z, y, s, c, reduction: F.cosine_embedding_loss(z, y, s[:, 0], 0.1, reduction=reduction)),
        (
            "triplet",
            lambda z, y, s, c, reduction: F.triplet_margin_loss(z, y, z * z, 0.5, swap=True, reduction=reduction),
        ),
        ("triplet by distance", lambda z, y, s, c, reduction: triplet(z, y, z * z, reduction=reduction)),
    )
    signs = torch.randint(2, (SAMPLES, CLASSES), generator=_numbers()).double() * 2 - 1
    sets = torch.tensor([[1, 2, -1, 0], [0, -1, 1, 2], [3, 1, 0, -1], [-1, 1, 1, 1], [2, -1, -1, -1], [0, 1, 2, 3]])
    return terms, (normal(SAMPLES, FEATURES), normal(SAMPLES, CLASSES), signs, sets)


# ---- losses that couple samples


def contrastive(z: torch.Tensor, other: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Radford et al. 2021: cross-entropy along both sides of the similarities of all pairs of the batch."""
    logits = 3 * F.normalize(z, dim=-1) @ F.normalize(other, dim=-1).T
    own = torch.arange(len(z))
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def two_views(z: torch.Tensor, other: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Chen et al. 2020: two views of each sample, each against all others."""
    views = F.normalize(torch.cat([z, z.sin()]), dim=-1)
    logits = (views @ views.T / 0.5).masked_fill(torch.eye(len(views), dtype=torch.bool), -torch.inf)
    return F.cross_entropy(logits, torch.arange(len(views)).roll(len(z)))


def batch_hard(z: torch.Tensor, other: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Hermans et al. 2017: the farthest sample of the same class against the nearest of another."""
    distances = torch.cdist(z, z)
    same = y.unsqueeze(0) == y.unsqueeze(1)
    farthest = (distances * same).amax(1)
    nearest = distances.masked_fill(same, torch.inf).min(1).values
    return F.softplus(farthest - nearest + 0.3).mean()


def supervised(z: torch.Tensor, other: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Khosla et al. 2020: all samples of the same class are positives."""
    views = F.normalize(z, dim=-1)
    logits = views @ views.T / 0.3
    logits = logits - logits.amax(1, keepdim=True).detach()
    others = 1 - torch.eye(len(z), dtype=z.dtype)
    positives = (y.unsqueeze(0) == y.unsqueeze(1)).to(z.dtype) * others
    logarithms = logits - (logits.exp() * others).sum(1, keepdim=True).log()
    return -((positives * logarithms).sum(1) / positives.sum(1).clamp(min=1)).mean()


def barlow_twins(z: torch.Tensor, other: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Zbontar et al. 2021: the correlations of features over the batch against the identity."""
    correlations = ((z - z.mean(0)) / z.std(0)).T @ ((other - other.mean(0)) / other.std(0)) / len(z)
    differences = (correlations - torch.eye(CLASSES, dtype=z.dtype)).square()
    return (differences * (0.1 + 0.9 * torch.eye(CLASSES, dtype=z.dtype))).sum()


def coupled() -> tuple[Terms, tuple[torch.Tensor, ...]]:
    """Losses of pairs of samples, and of moments over the batch."""
    terms: Terms = {loss.__name__: loss for loss in (contrastive, two_views, batch_hard, supervised, barlow_twins)}
    return terms, (normal(SAMPLES, FEATURES), normal(SAMPLES, CLASSES), torch.tensor([0, 1, 0, 1, 1, 2]))


GROUPS: dict[str, Callable[[], tuple[Terms, tuple[torch.Tensor, ...]]]] = {
    group.__name__: group for group in (labels, images, elements, margins, coupled)
}


def build(group: str) -> tuple[Losses, tuple[Any, ...], dict[str, Any]]:
    """A group's losses in a module, and its inputs."""
    terms, inputs = GROUPS[group]()
    return Losses(terms), inputs, {}

"""The models that are trained, each with its batches. All take ``(x, y)`` and return the mean loss of the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial

import torch
import torch.nn.functional as F
from tests.zoo.moe import Experts, balance, places, sent_to
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, PrepareModuleInput, RowwiseParallel

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """A model, its global batches, and what its user would say to other systems.

    Attributes:
        build: makes the model, from random numbers.
        batch: makes a global batch from random numbers.
        samples: in a global batch.
        units: names of modules that FSDP gathers together.
        tensor: by patterns of names of modules, how they are split by hand; empty where nobody would.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    samples: int
    units: str
    tensor: Mapping[str, Callable[[], ParallelStyle]] = field(default_factory=dict)

    def is_unit(self, name: str) -> bool:
        """Whether FSDP gathers the parameters of the module of this name together."""
        return fnmatch(name, self.units) and name.count(".") == self.units.count(".")

    def model(self) -> nn.Module:
        """The same model, with the same parameters, at each call."""
        torch.manual_seed(0)
        return self.build()

    def data(self, step: int) -> Batch:
        """The global batch of a step: the same at each call."""
        return self.batch(torch.Generator().manual_seed(1 + step))


class Attention(nn.Module):
    """Self-attention whose heads may be shared among devices."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.size, self.causal = width // heads, causal
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A transformer's layer, normalised first."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.down(F.gelu(self.up(self.between(x))))


# The gradients of what query, key and value read are added up before they are reduced.
ONE_INPUT = partial(PrepareModuleInput, input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
SPLIT_BLOCKS: dict[str, Callable[[], ParallelStyle]] = {
    "blocks.*.attention": ONE_INPUT,
    **{f"blocks.*.attention.{name}": ColwiseParallel for name in ("query", "key", "value")},
    "blocks.*.attention.out": RowwiseParallel,
    "blocks.*.up": ColwiseParallel,
    "blocks.*.down": RowwiseParallel,
}


class GPT2(nn.Module):
    """A decoder of tokens, whose last layer is its embedding."""

    def __init__(self, *, vocabulary: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(Block(width, heads, causal=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        states = self.tokens(x) + self.places
        for block in self.blocks:
            states = block(states)
        return F.cross_entropy(self.head(self.norm(states)).flatten(0, 1), y.flatten())


class Mixture(nn.Module):
    """A layer whose perceptron is a mixture of experts: each token goes to one, if that has room in its sequence."""

    def __init__(self, width: int, heads: int, experts: int, capacity: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=False)
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = Experts(experts, width, 4 * width)
        self.capacity = capacity

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x + self.attention(self.before(x))
        tokens = self.between(x)
        probabilities = self.gate(tokens).softmax(-1)
        weight, expert = probabilities.max(-1)
        chosen = F.one_hot(expert, probabilities.shape[-1])
        dispatch = sent_to(chosen, places(chosen), self.capacity).to(x.dtype)
        answers = self.experts(tokens, dispatch, dispatch * weight[..., None, None])
        return x + answers, balance(probabilities, chosen)


class BertMoE(nn.Module):
    """An encoder of tokens in which every second layer is a mixture of experts."""

    def __init__(
        self, *, vocabulary: int, length: int, width: int, layers: int, heads: int, experts: int, capacity: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(
            Mixture(width, heads, experts, capacity) if layer % 2 else Block(width, heads) for layer in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        states = self.tokens(x) + self.places
        total = states.new_zeros(())
        for block in self.blocks:
            if isinstance(block, Mixture):
                states, balancing = block(states)
                total = total + balancing
            else:
                states = block(states)
        return F.cross_entropy(self.head(self.norm(states)).flatten(0, 1), y.flatten()) + 0.01 * total


class VGG(nn.Module):
    """Sixteen convolutions of small images, then three large linear layers, like VGG19."""

    def __init__(self, *, channels: int, hidden: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for factor, count in ((1, 2), (2, 2), (4, 4), (8, 4), (8, 4)):
            for _ in range(count):
                layers += [nn.Conv2d(before, factor * channels, 3, padding=1), nn.ReLU()]
                before = factor * channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(before, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.classifier(self.features(x).flatten(1)), y)


class DLRM(nn.Module):
    """Embeddings of categories, their products with each other, and a perceptron of these."""

    def __init__(self, *, tables: int, rows: int, width: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.top = nn.Sequential(
            nn.Linear(tables * width + tables * tables, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = torch.stack([table(x[:, number]) for number, table in enumerate(self.tables)], 1)
        products = found @ found.transpose(1, 2)
        scores = self.top(torch.cat([found.flatten(1), products.flatten(1)], 1))
        return F.binary_cross_entropy_with_logits(scores.squeeze(1), y)


class ViT(nn.Module):
    """An encoder of the patches of an image."""

    def __init__(self, *, patch: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.places = nn.Parameter(0.02 * torch.randn((32 // patch) ** 2, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        states = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            states = block(states)
        return F.cross_entropy(self.head(self.norm(states).mean(1)), y)


def _texts(samples: int, length: int, vocabulary: int, random: torch.Generator) -> Batch:
    text = torch.randint(vocabulary, (samples, length + 1), generator=random)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def _images(samples: int, random: torch.Generator) -> Batch:
    images = torch.randn(samples, 3, 32, 32, generator=random)
    return images, torch.randint(10, (samples,), generator=random)


def _categories(samples: int, tables: int, rows: int, random: torch.Generator) -> Batch:
    choices = torch.randint(rows, (samples, tables), generator=random)
    return choices, (choices.sum(1) % 2).float()


def gpt2(
    samples: int, *, length: int = 128, vocabulary: int = 4096, width: int = 384, layers: int = 4, heads: int = 8
) -> Workload:
    """Text of ``length`` tokens."""
    build = partial(GPT2, vocabulary=vocabulary, length=length, width=width, layers=layers, heads=heads)
    return Workload(build, partial(_texts, samples, length, vocabulary), samples, "blocks.*", SPLIT_BLOCKS)


def bert_moe(
    samples: int, *, experts: int, length: int = 64, vocabulary: int = 4096, width: int = 256, layers: int = 4
) -> Workload:
    """Text of ``length`` tokens; experts have room for twice their part of it."""
    capacity = 2 * length // experts
    shape = {"vocabulary": vocabulary, "length": length, "width": width, "layers": layers, "heads": 8}
    build = partial(BertMoE, **shape, experts=experts, capacity=capacity)
    return Workload(build, partial(_texts, samples, length, vocabulary), samples, "blocks.*")


def vgg(samples: int, *, channels: int = 16, hidden: int = 2048) -> Workload:
    """Images of 32 x 32 in ten classes."""
    split: dict[str, Callable[[], ParallelStyle]] = {"classifier.0": ColwiseParallel, "classifier.2": RowwiseParallel}
    build = partial(VGG, channels=channels, hidden=hidden)
    return Workload(build, partial(_images, samples), samples, "classifier.*", split)


def dlrm(samples: int, *, tables: int = 16, rows: int = 8192, width: int = 32, hidden: int = 256) -> Workload:
    """One category out of ``rows`` from each table."""
    split: dict[str, Callable[[], ParallelStyle]] = {"top.0": ColwiseParallel, "top.2": RowwiseParallel}
    build = partial(DLRM, tables=tables, rows=rows, width=width, hidden=hidden)
    return Workload(build, partial(_categories, samples, tables, rows), samples, "tables.*", split)


def vit(samples: int, *, patch: int = 4, width: int = 256, layers: int = 4, heads: int = 8) -> Workload:
    """Images of 32 x 32 in ten classes."""
    build = partial(ViT, patch=patch, width=width, layers=layers, heads=heads)
    return Workload(build, partial(_images, samples), samples, "blocks.*", SPLIT_BLOCKS)

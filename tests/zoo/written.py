"""Models as people write them without a library, at small size, in float64 and in training mode."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.models import vgg19 as make_vgg19
from tests.zoo.entry import Built, entry
from tests.zoo.language import BATCH, DROPOUT, VOCABULARY, tokens
from tests.zoo.vision import CLASSES, classes, pictures


def built(make: type[nn.Module], options: dict[str, Any], *args: torch.Tensor) -> Built:
    """A module with random weights and the arguments of its call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = make(**options)
    return module.to(torch.float64).train(), args, {}


@entry(sharded={"batch": 0.5}, without_batch={"features.*.weight.0": 0.56})
def vgg19() -> Built:
    return make_vgg19(dropout=0.3, batch=BATCH, classes=CLASSES)


class Bottleneck(nn.Module):
    """The residual block of three convolutions of He et al. (2015), table 1; the stride is in the 3 x 3 one."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide),
        )  # fmt: skip
        self.shortcut = nn.Identity()
        if stride != 1 or channels != wide:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet with bottlenecks; ``depths`` are (3, 4, 6, 3) for ResNet-50."""

    def __init__(self, depths: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]  # fmt: skip
        channels = width
        for stage, depth in enumerate(depths):
            for block in range(depth):
                layers.append(Bottleneck(channels, width << stage, 2 if stage and not block else 1))
                channels = 4 * (width << stage)
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.classifier(torch.flatten(self.pool(self.features(x)), 1)), y)


@entry(sharded={"batch": 0.6}, without_batch={"features.*.weight.0": 0.56}, random=False)
def resnet50() -> Built:
    """All fifty layers, 3 channels where the paper has 64."""
    options = {"depths": (3, 4, 6, 3), "width": 3, "classes": CLASSES}
    return built(ResNet, options, pictures(32), classes())


class UNet(nn.Module):
    """The encoder and decoder of Ronneberger et al. (2015), with padding, batch norm and dropout at the bottom."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()

        def block(a: int, b: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU()
            )

        self.down1, self.down2 = block(3, channels), block(channels, 2 * channels)
        self.bottom = nn.Sequential(block(2 * channels, 4 * channels), nn.Dropout2d(DROPOUT))
        self.up2 = nn.ConvTranspose2d(4 * channels, 2 * channels, 2, 2)
        self.join2 = block(4 * channels, 2 * channels)
        self.up1 = nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(2 * channels, channels, 1))
        self.join1 = block(2 * channels, channels)
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(second, 2))
        second = self.join2(torch.cat([second, self.up2(bottom)], dim=1))
        first = self.join1(torch.cat([first, self.up1(second)], dim=1))
        return F.cross_entropy(self.head(first), y, ignore_index=0)


@entry(sharded={"batch": 0.8}, without_batch={"*.weight.0": 0.56})
def unet() -> Built:
    """Segmentation: a class for each pixel, one of them ignored."""
    generator = torch.Generator().manual_seed(3)
    pixels = torch.randint(0, CLASSES, (BATCH, 12, 12), generator=generator)
    return built(UNet, {"channels": 3, "classes": CLASSES}, pictures(12), pixels)


class LSTMLanguageModel(nn.Module):
    """Embedding, two LSTM layers, and the vocabulary; after Zaremba et al. (2014)."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, num_layers=2, dropout=DROPOUT, batch_first=True)
        self.dropout = nn.Dropout(DROPOUT)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.dropout(self.embedding(x)))
        return F.cross_entropy(self.head(self.dropout(states)).flatten(0, 1), y.flatten())


@entry(
    without_batch={"lstm.weight_hh_l0.1": 0.2, "lstm.weight_ih_l0.0": 0.15},
    share_without_batch=0.75,
    missing="each step of a recurrent layer reads all of the hidden state: the recurrences themselves stay whole",
)
def lstm() -> Built:
    return built(LSTMLanguageModel, {"vocabulary": VOCABULARY, "hidden": 10}, tokens(), tokens(seed=4))


class DLRM(nn.Module):
    """The recommendation model of Naumov et al. (2019): embeddings, all pairs of their products, two perceptrons."""

    def __init__(
        self, tables: Sequence[int], features: int, dense: int, bottom: Sequence[int], top: Sequence[int]
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(size, features, mode="sum") for size in tables)
        pairs = (len(tables) + 1) * len(tables) // 2
        self.bottom = self.perceptron([dense, *bottom, features], nn.ReLU)
        self.top = self.perceptron([features + pairs, *top], nn.ReLU)
        self.head = nn.Linear(top[-1], 1)
        row, column = torch.tril_indices(len(tables) + 1, len(tables) + 1, offset=-1)
        self.register_buffer("row", row)
        self.register_buffer("column", column)

    @staticmethod
    def perceptron(sizes: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(sizes):
            layers += [nn.Linear(a, b), activation(), nn.Dropout(DROPOUT)]
        return nn.Sequential(*layers)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor, clicked: torch.Tensor) -> torch.Tensor:
        """``dense`` is [batch, dense], ``sparse`` [batch, tables, indices of each sample]."""
        x = self.bottom(dense)
        looked_up = [table(sparse[:, number]) for number, table in enumerate(self.tables)]
        every = torch.stack([x, *looked_up], dim=1)
        products = torch.bmm(every, every.transpose(1, 2))[:, self.row, self.column]
        clicks = self.head(self.top(torch.cat([x, products], dim=1))).squeeze(1)
        return F.binary_cross_entropy_with_logits(clicks, clicked)


@entry(
    sharded={"batch": 0.08, "top.*.weight.0": 0.2, "tables.*.weight.1": 0.2},
    without_batch={"tables.*.weight.1": 0.28, "top.*.weight.0": 0.21, "bottom.*.weight.0": 0.1},
)
def dlrm() -> Built:
    """Embeddings of 1,009, 503 and 211 rows that hold nearly all parameters."""
    generator = torch.Generator().manual_seed(5)
    dense = torch.randn(BATCH, 9, generator=generator, dtype=torch.float64)
    sparse = torch.randint(0, 211, (BATCH, 3, 2), generator=generator)
    clicked = torch.randint(0, 2, (BATCH,), generator=generator).double()
    options = {"tables": (1009, 503, 211), "features": 6, "dense": 9, "bottom": (14,), "top": (15, 10)}
    return built(DLRM, options, dense, sparse, clicked)

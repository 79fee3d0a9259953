"""The models whose training steps are synthesised, in the shapes that the paper measured, for 8 devices (one: 1,024).

Each builds a module and a global batch: 32 samples for each device, text of 128 tokens, images of 32 x 32; the large
language models have one sample of their full length for each device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from tests.zoo.moe import GShard
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

DEVICES = 8
SAMPLES, SEQUENCE = 32, 128
WIDE, HIDDEN, HEADS, VOCABULARY = 768, 3072, 12, 33_280

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
"""Module, positional and keyword arguments."""


class MLP(nn.Module):
    """Twelve residual layers as wide as they are high."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + F.relu(layer(x))
        return F.mse_loss(x, y)


class Chains(nn.Module):
    """Chains of layers side by side, which meet only in the loss."""

    def __init__(self, chains: int, layers: int) -> None:
        super().__init__()
        self.chains = nn.ModuleList(
            nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(WIDE, WIDE), nn.Sigmoid())))
            for _ in range(chains)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([chain(x).sum() for chain in self.chains]).sum()


class VGG(nn.Module):
    """VGG19 on small images, whose features are spread over the classifier's 7 x 7 places."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for wide in (64, 64, 0, 128, 128, 0, *[256] * 4, 0, *[512] * 4, 0, *[512] * 4, 0):
            layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU()] if wide else [nn.MaxPool2d(2)]
            channels = wide or channels
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7))
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 10),
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.classifier(self.features(x).flatten(1)), y)


class Mixture(nn.Module):
    """A layer of attention whose perceptrons are experts: two for each device, with room for 2.5 times the tokens."""

    def __init__(self, devices: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDE, HEADS, dropout=0.1, batch_first=True)
        experts = 2 * devices
        capacity = math.ceil(2.5 * SEQUENCE / experts)
        self.experts = GShard(experts=experts, features=WIDE, hidden=HIDDEN, capacity=capacity)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDE) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = self.norms
        x = first(x + self.dropout(self.attention(x, x, x, need_weights=False)[0]))
        answers, balancing = self.experts(x)
        return second(x + self.dropout(answers)), balancing


class BertMoE(nn.Module):
    """BERT with a mixture of experts in every second layer."""

    def __init__(self, layers: int, devices: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDE)
        self.position = nn.Parameter(torch.zeros(SEQUENCE, WIDE))
        self.plain = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDE, HEADS, HIDDEN, batch_first=True) for _ in range(layers // 2)
        )
        self.mixed = nn.ModuleList(Mixture(devices) for _ in range(layers // 2))
        self.head = nn.Linear(WIDE, VOCABULARY)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        states = self.embedding(x) + self.position
        total = states.new_zeros(())
        for plain, mixed in zip(self.plain, self.mixed, strict=True):
            states, balancing = mixed(plain(states))
            total = total + balancing
        return F.cross_entropy(self.head(states).flatten(0, 1), y.flatten()) + 0.01 * total


def _tokens(devices: int = DEVICES) -> torch.Tensor:
    return torch.zeros(SAMPLES * devices, SEQUENCE, dtype=torch.int64)


def _long(sequence: int) -> torch.Tensor:
    return torch.zeros(DEVICES, sequence, dtype=torch.int64)


def _images(devices: int) -> tuple[torch.Tensor, torch.Tensor]:
    samples = SAMPLES * devices
    return torch.zeros(samples, 3, 32, 32), torch.zeros(samples, dtype=torch.int64)


def mlp() -> Built:
    x = torch.zeros(SAMPLES * DEVICES, 1024)
    return MLP(1024, 12), (x, x), {}


def chains(chains: int, layers: int) -> Built:
    return Chains(chains, layers), (torch.zeros(SAMPLES * DEVICES, WIDE),), {}


def vgg19(devices: int = DEVICES) -> Built:
    return VGG(), _images(devices), {}


def vit(layers: int, devices: int = DEVICES) -> Built:
    config = ViTConfig(num_hidden_layers=layers, image_size=32, patch_size=4, num_labels=10)
    images, labels = _images(devices)
    return ViTForImageClassification(config), (), {"pixel_values": images, "labels": labels}


def gpt2(layers: int) -> Built:
    ids = _tokens()
    return GPT2LMHeadModel(GPT2Config(n_layer=layers)), (), {"input_ids": ids, "labels": ids}


def bert(layers: int, devices: int = DEVICES) -> Built:
    ids = _tokens(devices)
    config = BertConfig(num_hidden_layers=layers)
    return BertForMaskedLM(config), (), {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def bert_moe(layers: int, devices: int = DEVICES) -> Built:
    return BertMoE(layers, devices), (_tokens(devices), _tokens(devices)), {}


def _llama(layers: int, ids: torch.Tensor, **shape: int) -> Built:
    config = LlamaConfig(num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=8, **shape)
    return LlamaForCausalLM(config), (), {"input_ids": ids, "labels": ids}


def llama(layers: int) -> Built:
    return _llama(layers, _tokens(), hidden_size=2048, intermediate_size=5632)


def llama3_8b(layers: int) -> Built:
    shape = {"hidden_size": 4096, "intermediate_size": 14_336, "vocab_size": 128_256}
    return _llama(layers, _long(8192), max_position_embeddings=8192, **shape)


def gpt3_175b(layers: int) -> Built:
    config = GPT2Config(n_layer=layers, n_embd=12_288, n_head=96, n_positions=2048)
    ids = _long(2048)
    return GPT2LMHeadModel(config), (), {"input_ids": ids, "labels": ids}


MODELS: dict[str, Callable[..., Built]] = {
    "mlp": mlp,
    "chains_4": partial(chains, 4, 4),
    "chains_8": partial(chains, 8, 8),
    "vgg19": vgg19,
    "vit_12": partial(vit, 12),
    "vit_48": partial(vit, 48),
    "gpt2_12": partial(gpt2, 12),
    "gpt2_24": partial(gpt2, 24),
    "bert_12": partial(bert, 12),
    "bert_12_1024": partial(bert, 12, devices=1024),
    "bert_moe_12": partial(bert_moe, 12),
    "llama_8": partial(llama, 8),
    "llama3_8b_32": partial(llama3_8b, 32),
    "gpt3_175b_24": partial(gpt3_175b, 24),
    "gpt3_175b_96": partial(gpt3_175b, 96),
}

"""The models that the tests use, at small size: each builder returns ``(module, args, kwargs)``.

Weights and inputs are made under a fixed seed and leave the global random state as it was. Hugging Face models are
called by keyword, the others on ``(x, y)``; all give a loss.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def gpt2(
    dtype: torch.dtype = torch.float64, *, dropout: float = 0.0, layers: int = 2, batch: int = 4, sequence: int = 6
) -> Built:
    """Hugging Face's GPT-2 with the language model's loss; input and output embedding are tied."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_embd=16, n_head=4, vocab_size=20, n_positions=sequence, bos_token_id=0, eos_token_id=0,
        attn_pdrop=dropout, embd_pdrop=dropout, resid_pdrop=dropout,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = GPT2LMHeadModel(config).to(dtype)
        tokens = torch.randint(0, 20, (batch, sequence))
    labels = tokens.clone()
    labels[0, :2] = -100
    return module.train(), (), {"input_ids": tokens, "labels": labels}


def bert(
    dtype: torch.dtype = torch.float64,
    *,
    attention: str = "sdpa",
    dropout: float = 0.0,
    layers: int = 2,
    batch: int = 4,
    sequence: int = 6,
) -> Built:
    """Hugging Face's BERT with the masked language model's loss; ``attention`` is "sdpa" or "eager"."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=layers, hidden_size=16, num_attention_heads=4, intermediate_size=24, vocab_size=20,
        max_position_embeddings=sequence, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        attn_implementation=attention,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = BertForMaskedLM(config).to(dtype)
        tokens = torch.randint(0, 20, (batch, sequence))
        labels = torch.where(torch.rand(batch, sequence) < 0.5, tokens, -100)
    mask = torch.ones(batch, sequence, dtype=torch.int64)
    mask[0, -2:] = 0
    return module.train(), (), {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def llama(
    dtype: torch.dtype = torch.float64, *, dropout: float = 0.0, layers: int = 2, batch: int = 4, sequence: int = 6
) -> Built:
    """Hugging Face's Llama, two queries to a key. It computes partly in float32 whatever its element type."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=layers, hidden_size=16, num_attention_heads=4, num_key_value_heads=2, intermediate_size=24,
        vocab_size=20, max_position_embeddings=sequence, attention_dropout=dropout, bos_token_id=0, eos_token_id=0,
        pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        module = LlamaForCausalLM(config).to(dtype)
        tokens = torch.randint(0, 20, (batch, sequence))
    return module.train(), (), {"input_ids": tokens, "labels": tokens.clone()}


class MLP(nn.Module):
    """Residual layers whose weights are as wide as they are high; mean squared error."""

    def __init__(self, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + self.dropout(F.relu(layer(x)))
        return F.mse_loss(x, y)


def mlp(
    dtype: torch.dtype = torch.float64, *, dropout: float = 0.0, layers: int = 2, batch: int = 6, hidden: int = 8
) -> Built:
    """The plain MLP; the hidden size is the same in and out, so that one axis stands twice in a weight."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = MLP(hidden, layers, dropout).to(dtype)
        x, y = torch.randn(batch, hidden, dtype=dtype), torch.randn(batch, hidden, dtype=dtype)
    return module.train(), (x, y), {}


class Noisy(nn.Module):
    """Random numbers of every kind, of several shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 12), nn.Linear(12, 4)
        self.drop, self.channels, self.leaky = nn.Dropout(0.2), nn.Dropout1d(0.3), nn.RReLU()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.leaky(self.inner(self.drop(x)))
        h = self.channels(h.view(-1, 3, 4)).flatten(1) + torch.randn_like(h) * 0.1
        h = h * F.gumbel_softmax(h) + torch.rand(h.shape[0], 1, dtype=h.dtype)
        return F.mse_loss(self.outer(h[torch.randperm(h.shape[0])]), y)


def noisy(dtype: torch.dtype = torch.float64, *, batch: int = 6) -> Built:
    """A small network that draws random numbers wherever it can."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = Noisy().to(dtype)
        x, y = torch.randn(batch, 8, dtype=dtype), torch.randn(batch, 4, dtype=dtype)
    return module.train(), (x, y), {}


class VGG(nn.Module):
    """Configuration E of Simonyan and Zisserman (2014), its channels divided by ``narrow``; cross-entropy."""

    CHANNELS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0)

    def __init__(self, narrow: int, image: int, colours: int, classes: int, batch_norm: bool, dropout: float) -> None:
        super().__init__()
        features: list[nn.Module] = []
        channels = colours
        for wide in self.CHANNELS:
            if wide == 0:
                features.append(nn.MaxPool2d(2))
                continue
            features.append(nn.Conv2d(channels, wide // narrow, 3, padding=1))
            channels = wide // narrow
            if batch_norm:
                features.append(nn.BatchNorm2d(channels))
            features.append(nn.ReLU(inplace=True))
        hidden = 4096 // narrow
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(
            nn.Linear(channels * (image // 32) ** 2, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.classifier(torch.flatten(self.features(x), 1)), y)


def vgg19(
    dtype: torch.dtype = torch.float64,
    *,
    dropout: float = 0.0,
    batch: int = 4,
    narrow: int = 32,
    image: int = 32,
    colours: int = 3,
    classes: int = 10,
    batch_norm: bool = False,
) -> Built:
    """VGG19 on images of ``image`` x ``image`` (a multiple of 32) with ``colours`` channels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        module = VGG(narrow, image, colours, classes, batch_norm, dropout).to(dtype)
        for layer in module.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                # PyTorch's own initialisation lets nineteen layers shrink the signal to nothing.
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        x, y = torch.randn(batch, colours, image, image, dtype=dtype), torch.randint(0, classes, (batch,))
    return module.train(), (x, y), {}

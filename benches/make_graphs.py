"""Writes the traced joint graphs that `cargo bench` synthesises: benches/graphs/{name}.json.gz (hap-graph-1).

    python benches/make_graphs.py [NAME...]

Models are built on the meta device, so that they need no memory. The same code gives the same bytes.
"""

import gzip
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import hap
from hap.rules import annotate

BATCH, SEQUENCE = 8, 128
FOLDER = Path(__file__).parent / "graphs"


class MLP(nn.Module):
    """Twelve residual layers as wide as they are high."""

    def __init__(self, hidden, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))

    def forward(self, x, y):
        for layer in self.layers:
            x = x + F.relu(layer(x))
        return F.mse_loss(x, y)


class VGG(nn.Module):
    """VGG19 on images of 32 x 32, its classifier as wide as on ImageNet (Simonyan and Zisserman, 2014)."""

    def __init__(self):
        super().__init__()
        layers, channels = [], 3
        for wide in (64, 64, 0, 128, 128, 0, *[256] * 4, 0, *[512] * 4, 0, *[512] * 4, 0):
            layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU()] if wide else [nn.MaxPool2d(2)]
            channels = wide or channels
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(512, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 10),
        )

    def forward(self, x, y):
        return F.cross_entropy(self.classifier(torch.flatten(self.features(x), 1)), y)


def tokens():
    return torch.zeros(BATCH, SEQUENCE, dtype=torch.int64)


def mlp():
    x = torch.zeros(BATCH, 1024)
    return MLP(1024, 12), (x, x), {}


def gpt2_12():
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = tokens()
    return GPT2LMHeadModel(GPT2Config(n_layer=12)), (), {"input_ids": ids, "labels": ids}


def bert_12():
    from transformers import BertConfig, BertForMaskedLM

    ids = tokens()
    return BertForMaskedLM(BertConfig()), (), {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def llama_8():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=8, hidden_size=2048, intermediate_size=5632, num_attention_heads=32, num_key_value_heads=8
    )
    ids = tokens()
    return LlamaForCausalLM(config), (), {"input_ids": ids, "labels": ids}


def vgg19():
    return VGG(), (torch.zeros(BATCH, 3, 32, 32), torch.zeros(BATCH, dtype=torch.int64)), {}


MODELS = {build.__name__: build for build in (mlp, gpt2_12, bert_12, llama_8, vgg19)}


def main(names):
    FOLDER.mkdir(exist_ok=True)
    for name in names or MODELS:
        with torch.device("meta"):
            module, args, kwargs = MODELS[name]()
        axes = annotate(hap.trace(module.train(), args, kwargs))
        path = FOLDER / f"{name}.json.gz"
        # Without a time stamp and a name in the header, equal graphs give equal files.
        with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(axes.to_json())
        sys.stdout.write(
            f"{path}: {len(axes.graph.operators)} operators, {len(axes.axes)} axes, {path.stat().st_size} bytes\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])

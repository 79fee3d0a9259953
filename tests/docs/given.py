"""What the blocks of pages expect to be there: small models, data, and one device."""

import torch
from torch import nn

import hap


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x, y):
        return (self.layers(x).squeeze(1) - y).square().mean()


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, words, labels):
        return nn.functional.cross_entropy(self.head(self.embedding(words)).flatten(0, 1), labels.flatten())


def model(names):
    torch.manual_seed(0)
    made, x, y = Regression(), torch.randn(12, 8), torch.randn(12)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    return {
        "cluster": ["V100"],
        "model": made,
        "x": x,
        "y": y,
        "loader": [(x, y)] * 3,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10),
    }


def parallel(names):
    found = model(names)
    return found | {"model": hap.parallelize(found["model"], ["V100"], (found["x"], found["y"]))}


def dataset(names):
    return {"dataset": [(torch.randn(8), torch.randn(())) for _ in range(24)]}


def words(names):
    return {"model": Words(), "cluster": ["V100"]}


def microbatches(names):
    x, y = names["x"], names["y"]
    return {"accumulated": [[(x[:6], y[:6]), (x[6:], y[6:])]] * 2}


def scores(names):
    return {"model": nn.Linear(8, 3), "cluster": ["V100"], "x": torch.randn(12, 8), "y": torch.arange(12) % 3}


def exported(names):
    found = parallel(names)
    hap.export_safetensors(found["model"], "exported")
    return {"build": Regression, "cluster": ["V100"], "x": found["x"], "y": found["y"]}


GIVEN = {each.__name__: each for each in (model, parallel, dataset, words, microbatches, scores, exported)}

"""Trains a small ResNet with batch norm to read handwritten digits, each rank loading its share of the images.

Batch norm sees the whole global batch, as on one device, however uneven the shares are. The images are scikit-learn's
1797 digits, which come with it; where it is not installed, noisy copies of ten random patterns stand in for them::

    torchrun --nproc-per-node 2 examples/images.py --devices V100 P100
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hap


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images ``[samples, 1, 8, 8]`` from 0 to 1, in mixed order, and what they show, 0 to 9."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(10, (1797,), generator=generator)
        patterns = torch.rand(10, 1, 8, 8, generator=generator)
        return patterns[labels] + 0.3 * torch.randn(1797, 1, 8, 8, generator=generator), labels
    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(data.target)


class Residual(nn.Module):
    """Two convolutions with batch norm, added to what came in. ``[batch, channels, height, width]`` in and out."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds, and cuts off what is negative."""
        return F.relu(x + self.layers(x))


class ResNet(nn.Module):
    """Scores of ten classes; with labels, the mean cross-entropy instead."""

    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(channels) for _ in range(blocks)))
        self.head = nn.Linear(channels, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Of images ``[batch, 1, height, width]`` and labels ``[batch]``."""
        scores = self.head(self.blocks(self.stem(images)).mean((2, 3)))
        return scores if labels is None else F.cross_entropy(scores, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains an image classifier by hap.parallelize.")
    parser.add_argument("--devices", nargs="+", help="names of accelerators, in rank order; measured if left out")
    parser.add_argument("--cluster", help="a cluster file, instead of names")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=100, help="images in a global batch")
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=2)
    options = parser.parse_args()
    cluster = hap.Cluster.load(options.cluster) if options.cluster else options.devices

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    images, labels = digits()
    training = TensorDataset(images[:1500], labels[:1500])
    model = ResNet(options.channels, options.blocks)
    model = hap.parallelize(model, devices=cluster)
    sampler = hap.DistributedSampler(training, model, batch_size=options.batch, shuffle=True, drop_last=True)
    loader = DataLoader(training, batch_sampler=sampler, collate_fn=sampler.collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(options.epochs):
        model.train()
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}  loss {loss.item():.4f}  {right:.1%} of the test images are read right")
    if dist.get_rank() == 0:
        print(f"images of a batch by rank: {sampler.units(options.batch)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

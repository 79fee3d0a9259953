"""A model with all that placements can be asked for, and where a program puts it."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional as F

from hap.program import InputInstruction, OutputInstruction, Program
from hap.rules import AxisGraph, annotate
from hap.trace import trace


class Tagger(nn.Module):
    """Labels words: tied embeddings, running statistics, an input by name, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embed = nn.Embedding(12, 8)
            self.norm = nn.BatchNorm1d(8)
            self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
            self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor, *, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        x = self.norm(self.embed(words).transpose(1, 2)).transpose(1, 2)
        logits = self.head(x + self.layers(x))
        found = {"logits": logits, "best": logits.argmax(-1)}
        return found if labels is None else found | {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}


def batch(samples: int = 6) -> tuple[tuple[torch.Tensor], dict[str, torch.Tensor]]:
    """Words and labels of some sentences."""
    generator = torch.Generator().manual_seed(samples)
    words, labels = torch.randint(0, 12, (2, samples, 4), generator=generator)
    return (words,), {"labels": labels}


@functools.cache
def tagger() -> AxisGraph:
    """The axes of its training step."""
    args, kwargs = batch()
    return annotate(trace(Tagger(), args, kwargs))


def kept(axes: AxisGraph, program: Program) -> dict[str, int | None]:
    """The dimension that each parameter, buffer, input and output (but the loss) is sharded along; ``None`` if whole.

    Gradients and new buffers are seen to lie as what they belong to.
    """
    graph = axes.graph
    numbers = {tensor.name: number for number, tensor in enumerate(graph.tensors)}
    found: dict[str, int | None] = {}

    def dim(tensor: str, placement: tuple[str, ...]) -> int | None:
        text = placement[0]
        return None if text == "R" else axes.occurrences[numbers[tensor]][int(text[1:])].dim

    named = {entry.tensor: entry.name for entry in graph.inputs if entry.kind in ("parameter", "buffer", "input")}
    outputs = iter(graph.outputs)
    for item in program.instructions:
        if isinstance(item, InputInstruction) and numbers[item.tensor] in named:
            found[named[numbers[item.tensor]]] = dim(item.tensor, item.placement)
        elif isinstance(item, OutputInstruction):
            output = next(output for output in outputs if output.tensor is not None)
            assert output.name == item.name
            if output.kind == "output":
                found[f"outputs.{item.name}"] = dim(item.tensor, item.placement)
            elif output.kind in ("gradient", "buffer"):
                assert dim(item.tensor, item.placement) == found[item.name]
    return found

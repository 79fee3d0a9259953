"""Trains a GPT whose MLPs are mixtures of experts (Switch Transformers, Fedus et al., 2021).

Each token goes to the expert that its router prefers, as long as there is room: an expert takes a fixed number of each
sequence's tokens, so that no shape depends on what the router says. hap may share out the sequences, or the experts::

    torchrun --nproc-per-node 2 examples/mixture_of_experts.py --devices V100 P100 --experts 8
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import hap
from gpt import GPT, Block
from text import VOCABULARY, batch, standard_library


class Experts(nn.Module):
    """Perceptrons, one for each expert, in place of one for all tokens.

    Args:
        width: size of the hidden vectors.
        experts: number of experts.
        room: tokens that an expert takes of each sequence, relative to its even share.
    """

    def __init__(self, width: int, experts: int, room: float = 1.25) -> None:
        super().__init__()
        self.experts, self.room = experts, room
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) / (4 * width) ** 0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The experts' answers, ``[batch, context, width]`` as ``x``, and how unevenly they are busy: 1 is even."""
        probabilities = self.router(x).softmax(-1)  # [batch, context, experts]
        weight, expert = probabilities.max(-1)
        chosen = F.one_hot(expert, self.experts)
        busy = self.experts * (chosen.float().mean((0, 1)) * probabilities.mean((0, 1))).sum()

        # A token's place in its expert's queue; who finds no room keeps what it came with.
        places = int(self.room * x.shape[1] / self.experts)
        place = (chosen.cumsum(1) * chosen).sum(-1) - 1
        queue = F.one_hot(place.clamp(max=places), places + 1)[..., :places]
        sent = (chosen.unsqueeze(-1) * queue.unsqueeze(-2)).to(x.dtype)  # [batch, context, experts, places]
        hidden = torch.einsum("btep,btw,ewh->ebph", sent, x, self.up)
        answers = torch.einsum("ebph,ehw->ebpw", F.gelu(hidden), self.down)
        return torch.einsum("btep,bt,ebpw->btw", sent, weight, answers), busy


class SparseGPT(GPT):
    """A GPT whose blocks have experts."""

    def __init__(self, *, experts: int, width: int, **sizes: int) -> None:
        super().__init__(width=width, **sizes)
        for block in self.blocks:
            block.mlp = Experts(width, experts)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss, with a small part for evenly busy experts, and how unevenly they are busy."""
        hidden = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        busy = []
        for block in self.blocks:
            assert isinstance(block, Block)
            hidden = hidden + block.attention(block.norm_attention(hidden))
            answers, uneven = block.mlp(block.norm_mlp(hidden))
            hidden = hidden + answers
            busy.append(uneven)
        logits = self.head(self.norm(hidden))
        uneven = torch.stack(busy).mean()
        return {"loss": F.cross_entropy(logits.flatten(0, 1), y.flatten()) + 0.01 * uneven, "uneven": uneven}


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a mixture of experts by hap.parallelize.")
    parser.add_argument("--devices", nargs="+", help="names of accelerators, in rank order; measured if left out")
    parser.add_argument("--cluster", help="a cluster file, instead of names")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="sequences in a global batch")
    parser.add_argument("--experts", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    cluster = hap.Cluster.load(options.cluster) if options.cluster else options.devices

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    text, context = standard_library(), 64
    model = SparseGPT(
        vocabulary=VOCABULARY,
        context=context,
        width=options.width,
        layers=options.layers,
        heads=4,
        experts=options.experts,
    )
    model = hap.parallelize(model, devices=cluster)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(options.steps):
        x, y = batch(text, step=step, size=options.batch, context=context)
        outputs = model(x, y)
        outputs["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        # A collective: all ranks ask, idle ones too.
        uneven = outputs["uneven"].item()
        if dist.get_rank() == 0:
            print(f"step {step:3}  loss {outputs['loss'].item():.4f}  uneven {uneven:.3f}")
    if dist.get_rank() == 0:
        print(f"shares by rank: {model.plan.split_units}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

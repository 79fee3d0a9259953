"""What training through hap costs on one device: steps of a GPT-2 through it over the same steps of the plain module.

    python benches/wrapper_cost.py                # 6 layers, batch 8, sequence 128, by one thread and by two
    python benches/wrapper_cost.py --quick        # the same on a tiny model, in seconds: proves that it runs
    python benches/wrapper_cost.py --model gpt    # the module of examples/gpt.py in the place of Hugging Face's
    python benches/wrapper_cost.py --model tiny   # what a call costs in Python: a perceptron of no size

A step is forward, backward, AdamW and ``zero_grad``. Steps of both are taken in turns; what is told is the median of
the ratios of neighbours, with the quartiles, by the clock and by the processor's time, which other work on the machine
disturbs less; and the most bytes that tensors held during a step.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1]))

from examples.gpt import GPT
from tests.runtime.held import Held

import hap

DEVICE = hap.Cluster([hap.Device(flops=1e11, memory_bandwidth=1e10, memory=1e12)])
Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class Perceptron(nn.Module):
    """Two layers, and the loss inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu()).square().mean()


def gpt2(options: argparse.Namespace) -> Built:
    """Hugging Face's, its embedding tied to its head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"n_layer": options.layers, "n_embd": options.width, "n_head": options.width // 64}
    dropout = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), options.dropout)
    ids = torch.randint(options.vocabulary, (options.batch, options.sequence))
    config = GPT2Config(vocab_size=options.vocabulary, bos_token_id=0, eos_token_id=0, **shape, **dropout)
    return GPT2LMHeadModel(config), (), {"input_ids": ids, "labels": ids}


def gpt(options: argparse.Namespace) -> Built:
    """That of the examples."""
    shape = {"context": options.sequence, "width": options.width, "layers": options.layers}
    module = GPT(vocabulary=options.vocabulary, heads=options.width // 64, **shape)
    ids = torch.randint(options.vocabulary, (options.batch, options.sequence))
    return module, (ids, ids), {}


def tiny(options: argparse.Namespace) -> Built:
    """Next to nothing to compute."""
    return Perceptron(), (torch.randn(4, 8),), {}


MODELS = {"gpt2": gpt2, "gpt": gpt, "tiny": tiny}


def stepper(
    model: Any, optimiser: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], None]:
    """A whole training step of a model."""

    def step() -> None:
        output = model(*args, **kwargs)
        (output if isinstance(output, torch.Tensor) else output.loss).backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def seconds(step: Callable[[], None]) -> tuple[float, float]:
    """Of a step, by the clock and of the processors."""
    start, used = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - start, time.process_time() - used


def compared(plain: Sequence[float], ours: Sequence[float], what: str) -> str:
    """The ratio of neighbours, its quartiles, and the medians of both, in words."""
    ratios = [our / one for one, our in zip(plain, ours, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    medians = ", ".join(f"{statistics.median(one) * 1e3:.3f}" for one in (plain, ours))
    return f"by the {what} {middle:.3f} ({low:.3f} to {high:.3f}; {medians} ms)"


def peak(step: Callable[[], None], model: nn.Module, optimiser: torch.optim.Optimizer) -> int:
    """The most bytes held during a step beside parameters, buffers and the optimiser's state."""
    state = [value for one in optimiser.state.values() for value in one.values()]
    with Held([*model.parameters(), *model.buffers(), *state]) as held:
        before = held.now
        step()
    return held.peak - before


def main() -> None:
    parser = argparse.ArgumentParser(description="Steps through hap over the same steps of the plain module.")
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--quick", action="store_true", help="a tiny shape, few steps")
    parser.add_argument("--compile", action="store_true", help="with torch.compile on the side of hap")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--dropout", type=float, default=0.0, help="of gpt2")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--pairs", type=int, default=11, help="steps of each")
    options = parser.parse_args()
    if options.quick:
        options.layers, options.batch, options.sequence, options.width, options.vocabulary = 1, 2, 16, 64, 256
        options.pairs = 3
    torch.manual_seed(0)
    module, args, kwargs = MODELS[options.model](options)
    eager = copy.deepcopy(module.train())
    model = hap.parallelize(module, DEVICE, args, kwargs, compile=options.compile)
    optimisers = [torch.optim.AdamW(one.parameters(), lr=1e-4) for one in (eager, model)]
    steps = [stepper(*pair, args, kwargs) for pair in zip((eager, model), optimisers, strict=True)]
    for step in steps * 2:
        step()
    for threads in options.threads:
        torch.set_num_threads(threads)
        times: list[list[tuple[float, float]]] = [[], []]
        for pair in range(options.pairs):
            for which in (0, 1) if pair % 2 else (1, 0):
                times[which].append(seconds(steps[which]))
        plain, ours = (list(zip(*one, strict=True)) for one in times)
        told = [compared(*pair, what) for what, *pair in zip(("clock", "processor"), plain, ours, strict=True)]
        print(f"{options.model}, {threads} threads: {'; '.join(told)}")
    parts = model.plan.memory_parts[0]
    peaks = [peak(*one) for one in zip(steps, (eager, model), optimisers, strict=True)]
    told = ", ".join(f"{one / 1e6:.1f}" for one in (*peaks, parts.gradients + parts.activations))
    print(f"{options.model}, MB at the peak beside parameters and optimiser, eager, hap, and as planned: {told}")


if __name__ == "__main__":
    main()

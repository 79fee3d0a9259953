"""Trains, is ended, and goes on with other devices, another number of them, and another plan.

The second line goes on where the first has stopped::

    torchrun --nproc-per-node 3 examples/resume.py checkpoint --steps 10 --devices V100 V100 P100
    torchrun --nproc-per-node 2 examples/resume.py checkpoint --steps 20 --devices T4 P100

The checkpoint holds the loss of a held-out batch, too. It is computed again after loading: where it is another one,
something was lost on the way, and the script ends with an error.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import hap
from gpt import GPT
from text import VOCABULARY, batch, standard_library

CONTEXT = 64
# Where the held-out batch begins, and how many sequences it has.
HELD_OUT, HELD_OUT_SIZE = 1_000_000, 16


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small GPT by hap.parallelize, from a checkpoint if any.")
    parser.add_argument("checkpoint", type=Path, help="a folder that all ranks see; made if it is not there")
    parser.add_argument("--devices", nargs="+", help="names of accelerators, in rank order; measured if left out")
    parser.add_argument("--cluster", help="a cluster file, instead of names")
    parser.add_argument("--steps", type=int, default=20, help="steps of the whole training")
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--batch", type=int, default=16, help="sequences in a global batch")
    options = parser.parse_args()
    cluster = hap.Cluster.load(options.cluster) if options.cluster else options.devices

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    text = standard_library()
    model = GPT(vocabulary=VOCABULARY, context=CONTEXT, width=128, layers=2, heads=4)
    # What is loaded goes to where the plan has it: plan before.
    example = batch(text, step=0, size=options.batch, context=CONTEXT)
    model = hap.parallelize(model, devices=cluster, example_inputs=example)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    training = {"model": model, "optimizer": optimizer, "scheduler": scheduler}

    def held_out_loss() -> float:
        with torch.no_grad():
            return model(*batch(text, step=HELD_OUT, size=HELD_OUT_SIZE, context=CONTEXT)).item()

    start = 0
    if options.checkpoint.exists():
        saved = hap.load(options.checkpoint, training)
        start, found = saved["step"], held_out_loss()
        if not math.isclose(found, saved["held_out_loss"], rel_tol=1e-4):
            sys.exit(f"the held-out loss was {saved['held_out_loss']:.6f}, and is {found:.6f} now")
        if dist.get_rank() == 0:
            print(f"goes on from step {start}  held-out loss {found:.4f}, as it was saved")

    for step in range(start, options.steps):
        x, y = batch(text, step=step, size=options.batch, context=CONTEXT)
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step:3}  loss {loss.item():.4f}")
        if (step + 1) % options.save_every == 0 or step + 1 == options.steps:
            hap.save(options.checkpoint, training | {"step": step + 1, "held_out_loss": held_out_loss()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

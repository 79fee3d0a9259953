"""Trains a small GPT on all processes of a job, however unequal they are.

Run it as any distributed training script, with a device for each process::

    torchrun --nproc-per-node 2 examples/train.py --devices V100 P100

Here the processes are CPU processes, whatever the devices are called: the names only say how unequal they are. Without
names (or a cluster file, by --cluster) they are measured first.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist

import hap
from gpt import GPT
from text import VOCABULARY, batch, standard_library


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small GPT by hap.parallelize.")
    parser.add_argument("--devices", nargs="+", help="names of accelerators, in rank order")
    parser.add_argument("--cluster", help="a cluster file, instead of names")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="sequences in a global batch")
    parser.add_argument("--export", help="a folder to write the trained weights to, as safetensors")
    options = parser.parse_args()
    cluster = hap.Cluster.load(options.cluster) if options.cluster else options.devices

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    text, context = standard_library(), 64
    model = GPT(vocabulary=VOCABULARY, context=context, width=128, layers=2, heads=4)
    model = hap.parallelize(model, devices=cluster)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(options.steps):
        x, y = batch(text, step=step, size=options.batch, context=context)
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step:3}  loss {loss.item():.4f}")
    if options.export:
        hap.export_safetensors(model, options.export)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

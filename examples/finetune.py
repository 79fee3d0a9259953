"""Fine-tunes a model from safetensors: the last block and the head learn, all else is frozen.

No rank ever holds the whole model: it is made on the meta device, and each rank reads the slices that it keeps. The
model that train.py has trained on source code learns English here::

    torchrun --nproc-per-node 2 examples/train.py --devices V100 P100 --export pretrained
    torchrun --nproc-per-node 2 examples/finetune.py pretrained --devices V100 P100 --output finetuned
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist

import hap
from gpt import GPT
from text import VOCABULARY, batch, documentation


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tunes a small GPT from safetensors by hap.parallelize.")
    parser.add_argument("weights", help="safetensors: a file, or a folder")
    parser.add_argument("--output", help="a folder to write the new weights to, as safetensors")
    parser.add_argument("--devices", nargs="+", help="names of accelerators, in rank order; measured if left out")
    parser.add_argument("--cluster", help="a cluster file, instead of names")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="sequences in a global batch")
    options = parser.parse_args()
    cluster = hap.Cluster.load(options.cluster) if options.cluster else options.devices

    dist.init_process_group("gloo")
    text, context = documentation(), 64
    with torch.device("meta"):
        model = GPT(vocabulary=VOCABULARY, context=context, width=128, layers=2, heads=4)
    model.requires_grad_(False)
    for part in (model.blocks[-1], model.norm, model.head):
        part.requires_grad_(True)

    example = batch(text, step=0, size=options.batch, context=context)
    model = hap.parallelize(model, devices=cluster, example_inputs=example, weights=options.weights)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=1e-3)
    for step in range(options.steps):
        x, y = batch(text, step=step, size=options.batch, context=context)
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step:3}  loss {loss.item():.4f}")
    if options.output:
        hap.export_safetensors(model, options.output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

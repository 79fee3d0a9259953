"""Trains a Hugging Face model in an ordinary loop: warm-up, gradient accumulation and clipping, without a Trainer.

The model comes from a configuration, with random weights, so that nothing is downloaded::

    torchrun --nproc-per-node 2 examples/huggingface.py --devices V100 P100 --accumulate 2
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

import hap
from text import VOCABULARY, batch, standard_library


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains GPT-2 from its configuration by hap.parallelize.")
    parser.add_argument("--devices", nargs="+", help="names of accelerators, in rank order; measured if left out")
    parser.add_argument("--cluster", help="a cluster file, instead of names")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="sequences in a global microbatch")
    parser.add_argument("--accumulate", type=int, default=1, help="microbatches in a step")
    parser.add_argument("--context", type=int, default=64, help="tokens in a sequence")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    cluster = hap.Cluster.load(options.cluster) if options.cluster else options.devices

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=options.context,
        n_embd=options.width,
        n_layer=options.layers,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = hap.parallelize(GPT2LMHeadModel(config), devices=cluster, accumulation=options.accumulate > 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    scheduler = get_cosine_schedule_with_warmup(optimizer, options.steps // 10, options.steps)

    text = standard_library()
    for step in range(options.steps):
        total = 0.0
        for part in range(options.accumulate):
            tokens, _ = batch(text, step=step * options.accumulate + part, size=options.batch, context=options.context)
            last = part == options.accumulate - 1
            with nullcontext() if last else model.no_sync():
                # GPT-2 shifts the labels itself.
                loss = model(input_ids=tokens, labels=tokens).loss / options.accumulate
                loss.backward()
            total += loss.item()
        norm = hap.clip_grad_norm_(model, 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            rate = scheduler.get_last_lr()[0]
            print(f"step {step:3}  loss {total:.4f}  gradient norm {norm:.3f}  learning rate {rate:.1e}")
    if dist.get_rank() == 0:
        print(f"shares by rank: {model.plan.split_units}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Training by hap against DistributedDataParallel on equal processes joined by gloo: a GPT-2 of 6 layers.

    python benches/ddp_parity.py             # two processes of one thread, batch 8 x 128 in all: the throughputs
    python benches/ddp_parity.py --quick     # the same on a tiny model, in seconds: proves that it runs

Each process holds the model twice. Steps (forward, backward, AdamW, ``zero_grad``) are taken in turns; what
is told is the median of the ratios of neighbours, DDP's seconds over hap's, with the quartiles: above 1 hap is faster.
"""

from __future__ import annotations

import argparse
import copy
import os
import socket
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parents[1]))

from benches.wrapper_cost import gpt2, stepper

import hap


def cluster(options: argparse.Namespace) -> hap.Cluster:
    """Equal devices; figures of a processor's core and of gloo within a machine."""
    board = hap.Device(flops=5e10, memory_bandwidth=1e10, memory=1e11)
    link = hap.Link(bandwidth=options.bandwidth, latency=options.latency)
    return hap.Cluster([board] * options.ranks, link=link, overlap=options.overlap)


def on_rank(rank: int, options: argparse.Namespace, port: int) -> None:
    """Both models on one rank; the first one tells."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(options.ranks))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    module, args, kwargs = gpt2(options)
    module.train()
    plain = DistributedDataParallel(copy.deepcopy(module))
    rows = slice(rank * options.batch // options.ranks, (rank + 1) * options.batch // options.ranks)
    share = {name: value[rows] for name, value in kwargs.items()}
    required = "batch" if options.data_parallel else None
    model = hap.parallelize(module, cluster(options), args, kwargs, required_axis=required)
    steps = [
        stepper(one, torch.optim.AdamW(one.parameters(), lr=1e-4), args, given)
        for one, given in ((plain, share), (model, kwargs))
    ]
    for step in steps * 2:
        step()
    times: list[list[float]] = [[], []]
    for pair in range(options.pairs):
        for which in (0, 1) if pair % 2 else (1, 0):
            dist.barrier()
            start = time.perf_counter()
            steps[which]()
            dist.barrier()
            times[which].append(time.perf_counter() - start)
    if rank == 0:
        low, middle, high = statistics.quantiles(
            [other / own for other, own in zip(*times, strict=True)], n=4, method="inclusive"
        )
        medians = ", ".join(f"{statistics.median(one) * 1e3:.0f}" for one in times)
        print(f"throughput, hap over DDP: {middle:.3f} ({low:.3f} to {high:.3f}); DDP and hap: {medians} ms")
        if options.show:
            moving = [one for one in model.plan.program.instructions if getattr(one, "implementation", None)]
            buckets = {one.bucket for one in moving if one.bucket is not None}
            print(f"{len(moving)} collectives in the program, of which in {len(buckets)} buckets: ", end="")
            print(sum(one.bucket is not None for one in moving))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="Steps of DistributedDataParallel over the same steps by hap.")
    parser.add_argument("--quick", action="store_true", help="a tiny shape, few steps")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8, help="of all ranks")
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--pairs", type=int, default=11, help="steps of each")
    parser.add_argument("--bandwidth", type=float, default=1.5e9, help="of the link, for the plan")
    parser.add_argument("--latency", type=float, default=2e-4, help="of the link, for the plan")
    parser.add_argument("--overlap", type=float, default=0.0, help="of the cluster, for the plan")
    parser.add_argument("--data-parallel", action="store_true", help="nothing but the batch is shared")
    parser.add_argument("--show", action="store_true", help="how many collectives the plan has")
    options = parser.parse_args()
    if options.quick:
        options.layers, options.batch, options.sequence, options.width, options.vocabulary = 1, 4, 16, 64, 256
        options.pairs = 3
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    torch.multiprocessing.spawn(on_rank, (options, port), options.ranks)


if __name__ == "__main__":
    main()

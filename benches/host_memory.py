"""Peak host memory of a rank that makes its shards of a model on the meta device, against the bytes of these shards.

    torchrun --nproc-per-node 2 benches/host_memory.py            # from safetensors
    torchrun --nproc-per-node 2 benches/host_memory.py --init     # by the submodules' own initialisation

What is counted is the growth of resident memory from just before the
parameters are made to its peak.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import Shard

import hap
from hap.runtime import session

LAYERS, WIDTH = 64, 2048


def status(field: str) -> int:
    """Bytes of this process, from the kernel."""
    (kilobytes,) = re.findall(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(kilobytes) * 1024


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak host memory where a model is made shard by shard.")
    parser.add_argument("--init", action="store_true", help="by the submodules' own initialisation")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    file = Path(tempfile.gettempdir()) / f"hap-host-memory-{os.environ['MASTER_PORT']}.safetensors"
    if rank == 0 and not options.init:
        save_file({f"layers.{i}.weight": torch.randn(WIDTH, WIDTH) for i in range(LAYERS)}, file)
    dist.barrier()
    with torch.device("meta"):
        model = Layers()
    devices = [hap.Device(flops=speed, memory_bandwidth=1e11, memory=1e12) for speed in (3e12, 1e12)]
    cluster = hap.Cluster(devices, link=hap.Link(bandwidth=1e12, latency=1e-9))
    before = [0]
    place = session.place

    def placed(*arguments: object) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before[0] = status("VmRSS")
        place(*arguments)

    with patch.object(session, "place", placed):
        model = hap.parallelize(
            model,
            cluster,
            (torch.ones(8, WIDTH),),
            pin={"*.weight": [Shard(0), Shard(1)]},
            weights=None if options.init else file,
        )
    shards = sum(parameter.nbytes for parameter in model.parameters())
    ratio = (status("VmHWM") - before[0]) / shards
    sys.stdout.write(f"rank {rank}: {shards / 1e6:.0f} MB of shards, at its peak {ratio:.3f} times that\n")
    dist.barrier()
    if rank == 0:
        file.unlink(missing_ok=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

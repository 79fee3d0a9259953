"""``torchrun ... -m hap.profiling cluster.json``: measures the machines of the job and writes a cluster file."""

from __future__ import annotations

import argparse
import sys

import torch.distributed as dist

from hap.profiling.run import profile


def main() -> None:
    """Rank 0 writes the file."""
    parser = argparse.ArgumentParser(
        prog="torchrun ... -m hap.profiling", description="Measures the machines of a job."
    )
    parser.add_argument("output", help="the cluster file to write")
    parser.add_argument("--quick", action="store_true", help="some seconds instead of up to two minutes")
    parser.add_argument(
        "--device", help="what the ranks compute on, such as cpu; by default an accelerator, if there is one"
    )
    options = parser.parse_args()
    cluster = profile(device=options.device, quick=options.quick)
    if not dist.is_initialized() or dist.get_rank() == 0:
        cluster.save(options.output)
        sys.stderr.write(f"wrote {options.output}: {len(cluster.devices)} devices\n")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

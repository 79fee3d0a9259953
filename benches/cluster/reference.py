"""The losses of a pair's workload on one device: ``python -m benches.cluster.reference PAIR FILE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from benches.cluster import systems
from benches.cluster.pairs import PAIRS

STEPS = 8
"""Steps whose losses are compared; ranks' sums round otherwise, and training lets that grow."""


def main() -> None:
    """Trains the whole batches, with one thread."""
    name, file = sys.argv[1:]
    torch.set_num_threads(1)
    workload = PAIRS[name].workload
    system = systems.single(workload.model())
    losses = [system.step(workload.data(step)).item() for step in range(STEPS)]
    Path(file).write_text(json.dumps(losses))


if __name__ == "__main__":
    main()

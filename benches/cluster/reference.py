"""What is known of a pair without its cluster: ``python -m benches.cluster.reference PAIR PROFILE PLAN FILE``.

That is the losses of the first steps on one device, and how long all systems' steps take by hap's simulator.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from benches.cluster import systems
from benches.cluster.pairs import PAIRS
from benches.cluster.predictions import predictions

import hap

STEPS = 8
"""Steps whose losses are compared; ranks' sums round otherwise, and training lets that grow."""


def main() -> None:
    """Trains the whole batches, with one thread; simulates."""
    name, profile, plan, file = sys.argv[1:]
    torch.set_num_threads(1)
    pair = PAIRS[name]
    workload = pair.workload
    system = systems.single(workload.model())
    losses = [system.step(workload.data(step)).item() for step in range(STEPS)]
    cluster, batch = hap.Cluster.load(profile), workload.data(0)
    predicted = predictions(workload, cluster, hap.Plan.load(plan), batch, keep=pair.together)
    Path(file).write_text(json.dumps({"losses": losses, "predicted": predicted}))


if __name__ == "__main__":
    main()

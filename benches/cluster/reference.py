"""What is known of a pair without its cluster: ``python -m benches.cluster.reference REQUEST``.

That is the losses of the first steps on one device, and how long all systems' steps take by hap's simulator: at the
speed that the devices have been profiled at, and at the speed that they were measured at.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from benches.cluster import systems
from benches.cluster.pairs import PAIRS
from benches.cluster.predictions import predictions
from benches.cluster.speed import at_speed

import hap

STEPS = 8
"""Steps whose losses are compared; ranks' sums round otherwise, and training lets that grow."""


@dataclass(frozen=True)
class Request:
    """What to find out.

    Attributes:
        pair: the name of the cluster and the workload.
        profile: the file of the cluster as profiled.
        products: what a product took on each device (:func:`benches.cluster.speed.seconds`).
        plan: the file of hap's plan.
        result: the file to write.
    """

    pair: str
    profile: str
    products: list[float]
    plan: str
    result: str


def main() -> None:
    """Trains the whole batches, with one thread; simulates."""
    request = Request(**json.loads(Path(sys.argv[1]).read_text()))
    torch.set_num_threads(1)
    workload = PAIRS[request.pair].workload
    system = systems.single(workload.model())
    losses = [system.step(workload.data(step)).item() for step in range(STEPS)]
    profiled, plan = hap.Cluster.load(request.profile), hap.Plan.load(request.plan)
    found = {
        name: predictions(workload, cluster, profiled, plan, workload.data(0))
        for name, cluster in {"profiled": profiled, "predicted": at_speed(profiled, request.products)}.items()
    }
    Path(request.result).write_text(json.dumps({"losses": losses, **found}))


if __name__ == "__main__":
    main()

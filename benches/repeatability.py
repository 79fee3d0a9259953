"""How far runs of ``hap.profile`` differ: ratios of what two runs, one after another, say of the same work.

The machine as a whole may be faster in one of the runs; the ratios are also given beside their median. What plans hang
on are whole steps: the last lines are of those that are predicted for two models under even data parallelism.

python benches/repeatability.py 4 [--quick]
torchrun --nproc-per-node 2 benches/repeatability.py 4 [--quick]
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from pathlib import Path

import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))

from benches.cluster.workloads import gpt2, vgg

import hap
from hap.cluster import CollectiveCost
from hap.planning.baselines import baseline, data_parallel
from hap.planning.setup import make_problem
from hap.profiling.operands import SHAPES, SUFFIX, at
from hap.rules import annotate

BYTES = 2**20
"""Of the tensors whose collectives are compared."""


def times(cluster: hap.Cluster) -> dict[str, dict[float, float]]:
    """Seconds by amount, by name of what was measured; of whole products, with what they take for their operands."""
    points = cluster.devices[0].measured
    found = {name: dict(line) for name, line in points.items()}
    for family, (many, few) in SHAPES.items():
        work, beside = points[f"{family}/float32"], points[f"{family}{SUFFIX}/float32"]
        for line, name, shapes in ((work, family, many), (beside, family + SUFFIX, few)):
            whole = [at(work, shape.flops) + at(beside, 4 * shape.elements) for shape in shapes]
            found[f"{name}/float32"] = {amount: seconds for (amount, _), seconds in zip(line, whole, strict=False)}
    return found | {name: {BYTES: seconds(cost)} for name, cost in cluster.collectives.items()}


def seconds(cost: CollectiveCost) -> float:
    """What a collective of :data:`BYTES` takes."""
    return cost.latency + BYTES / cost.bandwidth


def ratios(one: hap.Cluster, other: hap.Cluster) -> dict[str, list[float]]:
    """By name, the logarithms of the second run's times over the first's."""
    first, second = times(one), times(other)
    shared = {name: sorted(first[name].keys() & second[name].keys()) for name in first}
    return {
        name: [math.log(second[name][amount] / first[name][amount]) for amount in amounts]
        for name, amounts in shared.items()
    }


def steps(clusters: list[hap.Cluster]) -> dict[str, list[float]]:
    """By model, the step that each run predicts."""
    found = {}
    for name, workload in (("gpt2", gpt2(16)), ("vgg", vgg(96))):
        axes = annotate(hap.trace(workload.model(), workload.data(0)))
        problems = [make_problem(axes, cluster) for cluster in clusters]
        found[name] = [baseline(one, name, data_parallel(one), one.even).seconds for one in problems]
    return found


def line(name: str, logarithms: list[float]) -> str:
    """What is printed of the ratios of one name."""
    values = [math.exp(abs(value)) - 1.0 for value in logarithms]
    within = sum(value <= 0.1 for value in values) / len(values)
    text = f"median {statistics.median(values):6.1%}  largest {max(values):7.1%}  within 10%: {within:4.0%}"
    return f"{name:30s} {text}\n"


def main() -> None:
    """Rank 0 prints a line for each family and collective, and for all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device")
    options = parser.parse_args()
    clusters = [hap.profile(device=options.device, quick=options.quick) for _ in range(options.runs)]
    if dist.is_initialized() and dist.get_rank():
        return
    pairs = [ratios(one, other) for one, other in itertools.pairwise(clusters)]
    machine = [statistics.median(value for values in pair.values() for value in values) for pair in pairs]
    for name in pairs[0]:
        sys.stdout.write(line(name, [value for pair in pairs for value in pair.get(name, [])]))
    every = [[value for values in pair.values() for value in values] for pair in pairs]
    sys.stdout.write(line("all", [value for values in every for value in values]))
    sys.stdout.write(line("the machine as a whole", machine))
    beside = [value - common for values, common in zip(every, machine, strict=True) for value in values]
    sys.stdout.write(line("all, beside that", beside))
    for name, seconds_of in steps(clusters).items():
        changes = [math.log(other / one) for one, other in itertools.pairwise(seconds_of)]
        sys.stdout.write(line(f"step of {name}, predicted", changes))


if __name__ == "__main__":
    main()

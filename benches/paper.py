"""The paper's experiments, simulated: its models on its clusters, against what it compared with, and its ablations.

    python benches/paper.py                      # all, for docs/benchmarks.md: some minutes
    python benches/paper.py bert_12 --devices 8  # some

A quarter of the devices are V100s and the others P100s (the paper's 2 machines of 8 V100 and 6 of 8 P100, scaled), or
all are P100s. Speeds and collectives are those that the paper's authors measured on their cluster, by whole tensors in
equal shares; latencies and launch overheads are left out, as they were. Each system is a program of one cost model, so
that only plans are compared. What has been simulated is kept in target/paper.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

sys.path.append(str(Path(__file__).parents[1]))

from benches import models
from benches.document import write_part

import hap
from hap.cluster import Cluster, CollectiveCost, Device, Link
from hap.planning.baselines import baselines
from hap.planning.outer import search
from hap.planning.problem import balanced, candidate, first_prices
from hap.planning.progress import Progress
from hap.planning.setup import make_problem
from hap.rules import annotate, divided
from hap.rules.costs import formula

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "target" / "paper"
DOCUMENT = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- benches/paper.py writes from here -->"

MODELS = ("vgg19", "vit_12", "bert_12", "bert_moe_12")
DEVICES = (8, 16, 32, 64)
# FLOP/s as measured, and bytes per second of whole tensors.
SPEEDS = {"V100": 3.859e12, "P100": 2.149e12}
RATES = {
    "all_gather/padded": 0.815e9,
    "all_gather/grouped": 0.550e9,
    "all_reduce/builtin": 0.477e9,
    "reduce_scatter/padded": 0.876e9,
    "reduce_scatter/grouped": 0.512e9,
    "all_to_all/exchange": 7.505e9,
}
# Titles of what is compared, by the name of the baseline.
SYSTEMS = {
    "ddp_even": "DP-EV",
    "ddp_proportional": "DP-CP",
    "zero3_even": "ZeRO-3",
    "zero3_proportional": "ZeRO-3, proportional",
    "tensor_even": "tensor parallel",
}


def cluster(devices: int, *, unequal: bool, grouped: bool = True) -> Cluster:
    """The paper's cluster, with so many devices; without grouped collectives they are as slow as if there were none."""
    fast = devices // 4 if unequal else 0
    names = ["V100"] * fast + ["P100"] * (devices - fast)
    members = [
        Device(
            name, flops=SPEEDS[name], memory_bandwidth=hap.Device(name).memory_bandwidth, memory=16e9, launch_overhead=0
        )
        for name in names
    ]
    # Our model counts what the slowest rank moves of a tensor in equal shares.
    part = (devices - 1) / devices
    moved = {"padded": part, "grouped": 1.0, "builtin": 2 * part, "exchange": part / devices}
    costs = {}
    for name, rate in RATES.items():
        how = name.split("/")[1]
        slow = how == "grouped" and not grouped
        costs[name] = CollectiveCost(latency=0.0, bandwidth=1e3 if slow else rate * moved[how])
    # The paper had no exchanges but all-to-alls; these are as slow as the padded collectives.
    for name in ("all_gather", "reduce_scatter"):
        costs[f"{name}/exchange"] = costs[f"{name}/padded"]
    return Cluster(members, link=Link(bandwidth=0.477e9, latency=0.0), collectives=costs)


def axes_of(name: str, devices: int):
    """The traced model in the shape that the paper gave it on so many devices: 32 samples and two experts for each."""
    with torch.device("meta"):
        module, args, kwargs = models.MODELS[name](devices=devices)
    axes = annotate(hap.trace(module.train(), args, kwargs))
    gc.collect()
    return axes


def measure(name: str, devices: int, *, unequal: bool) -> dict[str, float | None]:
    """Simulated seconds of every system and ablation; ``None`` for what does not fit or does not exist."""
    axes = axes_of(name, devices)
    machines = cluster(devices, unequal=unequal)
    started = time.process_time()
    problem = make_problem(axes, machines)
    found = search(problem, Progress())
    planning_seconds = time.process_time() - started
    results: dict[str, float | None] = {"hap": found.best.simulation.seconds, "planning": planning_seconds}
    results["gap"] = max(0.0, found.best.simulation.seconds / found.bound - 1.0)
    known = {baseline.name: baseline for baseline in baselines(problem)}
    results |= {baseline: known[baseline].seconds for baseline in SYSTEMS}
    for label, splits in (("program only, even", problem.even), ("program only, proportional", problem.proportional)):
        synthesis = problem.engine.synthesise(splits, first_prices(problem, splits), problem.constraints)
        results[label] = candidate(problem, synthesis, splits).simulation.seconds
    data_parallel = known["ddp_proportional"].candidate
    results["ratios only"] = balanced(problem, data_parallel).simulation.seconds if data_parallel else None
    results["without grouped collectives"] = _hap(make_problem(axes, cluster(devices, unequal=unequal, grouped=False)))
    results["one split per axis"] = _hap(replace(problem, divided=None))
    results["without sufficient factors"] = _hap(_with_summed_gradients(problem, axes))
    return results


def _hap(problem) -> float:
    return search(problem, Progress()).best.simulation.seconds


def _with_summed_gradients(problem, axes):
    """The problem where no rank computes the whole gradient of a parameter from factors that it has gathered."""
    graph = axes.graph
    producer = {result: operator for operator in graph.operators for result in operator.results if result is not None}
    layout = dict(zip((operator.name for operator in graph.operators), axes.layout, strict=True))
    placements = dict(problem.constraints.placements)
    for output in graph.outputs:
        tensor = output.tensor
        if output.kind != "gradient" or tensor not in producer:
            continue
        while layout[producer[tensor].name] and producer[tensor].operands[0] in producer:
            tensor = producer[tensor].operands[0]
        if formula(producer[tensor].target) is not None:
            shards = (f"S{number}" for number in range(len(axes.occurrences[tensor])))
            placements[graph.tensors[tensor].name] = ("P", *shards)
    constraints = msgspec.structs.replace(problem.constraints, placements=placements)

    def divide(classes):
        return _with_summed_gradients(problem.divided(classes), divided(axes, classes))

    return replace(problem, constraints=constraints, constrain=lambda pins: constraints, divided=divide)


def measured(name: str, devices: int, *, unequal: bool, fresh: bool) -> dict[str, float | None]:
    """What :func:`measure` gives, kept."""
    kept = KEPT / f"{name}.{devices}.{'unequal' if unequal else 'equal'}.json"
    if not kept.exists() or fresh:
        KEPT.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(measure(name, devices, unequal=unequal)))
    return json.loads(kept.read_text())


def time_text(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.0f}"


def head(titles: list[str]) -> list[str]:
    return [f"| {' | '.join(titles)} |", "|---|" + "---:|" * (len(titles) - 1)]


def tables(rows) -> str:
    """Step times and speed-ups, then the ablations, of ``(name, devices, unequal, results)``."""
    lines = []
    for unequal, title in ((True, "One V100 for three P100"), (False, "P100 alone")):
        chosen = [row for row in rows if row[2] == unequal]
        if not chosen:
            continue
        titles = [
            "model",
            "devices",
            "hap",
            *SYSTEMS.values(),
            "hap against the best",
            "optimality gap",
            "planning, processor s",
        ]
        lines += [
            f"### {title}: simulated step, ms",
            "",
            f"| {' | '.join(titles)} |",
            "|---|" + "---:|" * (len(titles) - 1),
        ]
        for name, devices, _, found in chosen:
            rivals = [found[system] for system in SYSTEMS if found[system] is not None]
            best = f"{min(rivals) / found['hap']:.2f} x" if rivals else "alone fits"
            cells = [name, str(devices), time_text(found["hap"]), *(time_text(found[system]) for system in SYSTEMS)]
            cells += [best, f"{found['gap']:.1%}", f"{found['planning']:.1f}"]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    ablations = ["program only, even", "program only, proportional", "ratios only"]
    ablations += ["one split per axis", "without sufficient factors", "without grouped collectives"]
    chosen = [row for row in rows if row[2]]
    if chosen:
        titles = ["model", "devices", *ablations]
        lines += ["### Ablations: time against the whole of hap", "", *head(titles)]
        for name, devices, _, found in chosen:
            ratios = ("-" if found[each] is None else f"{found[each] / found['hap']:.2f} x" for each in ablations)
            lines.append(f"| {' | '.join([name, str(devices), *ratios])} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="The paper's experiments, simulated.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MODELS)}; all by default")
    parser.add_argument("--devices", type=int, nargs="+", default=DEVICES, help="numbers of devices")
    parser.add_argument("--fresh", action="store_true", help="simulate again what has been simulated")
    options = parser.parse_args()
    rows = []
    for unequal in (True, False):
        for name in options.names or MODELS:
            for devices in options.devices:
                sys.stderr.write(f"{name} on {devices} {'unequal' if unequal else 'equal'} devices\n")
                rows.append((name, devices, unequal, measured(name, devices, unequal=unequal, fresh=options.fresh)))
    text = tables(rows)
    if options.names or tuple(options.devices) != DEVICES:
        sys.stdout.write(text)
        return
    write_part(DOCUMENT, BEGIN, text)


if __name__ == "__main__":
    main()

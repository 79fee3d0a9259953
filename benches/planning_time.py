"""Seconds that a whole plan takes after tracing, by phase: models of 12 layers on 64 devices of four kinds.

    python benches/planning_time.py                      # all
    python benches/planning_time.py gpt2_12              # some
    python benches/planning_time.py gpt2_12 --memory 1   # as if each device had 1 GB
    python benches/planning_time.py --json               # one line of JSON for each

`ratios` is one step of the search for ratios: the cheapest program on all devices is linearised, and the linear program
solved, where memory is not scarce. Times are those of the processor, so that other work on the machine does not count.
They are the least of three plans; each makes its problem anew, from the traced model on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))

from benches.models import MODELS

import hap
from hap.balance import fractions
from hap.balance.highs import Solver
from hap.balance.linear_program import solve
from hap.planning.outer import search
from hap.planning.problem import first_prices
from hap.planning.progress import Progress
from hap.planning.setup import make_problem
from hap.rules import annotate

NAMES = ("gpt2_12", "bert_12", "vit_12", "bert_moe_12")
PLANS = 3
# By name of what they are: 16 devices of each kind, 8 in a host, hosts joined by an Ethernet.
KINDS = ("A100-40GB", "V100", "P100", "T4")


def cluster(memory: float | None = None) -> hap.Cluster:
    """64 devices of four kinds, with their own memory or with so many bytes each."""
    devices = [kind if memory is None else hap.Device(kind, memory=memory, reserve=0.0) for kind in KINDS]
    hosts = [hap.Cluster([device] * 8, link="PCIe 3") for device in devices for _ in range(2)]
    return hap.Cluster(hosts, link="25GbE")


class Clock(Progress):
    """Seconds of the processor by phase."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}
        self._current, self._since = "problem", time.process_time()

    def update(self, phase: str) -> None:
        now = time.process_time()
        self.seconds[self._current] = self.seconds.get(self._current, 0.0) + now - self._since
        # All starts are one phase.
        self._current, self._since = phase.split(" ")[0] if phase.startswith("start ") else phase, now


def measure(axes, machines: hap.Cluster) -> dict[str, float]:
    """Seconds by phase, and of the whole; and those of a step of ratios."""
    clock = Clock()
    search(make_problem(axes, machines), clock)
    clock.update("end")
    return {**clock.seconds, "whole": sum(clock.seconds.values()), "ratios": step_of_ratios(axes, cluster())}


def step_of_ratios(axes, machines: hap.Cluster) -> float:
    """Seconds of a step of ratios, from shares in proportion to speed."""
    problem = make_problem(axes, machines)
    splits, engine = problem.proportional, problem.engine
    program = engine.synthesise(splits, first_prices(problem, splits), problem.constraints).program
    shares = fractions(splits)
    began = time.process_time()
    solve(engine.stages(program, shares), shares, engine.machine.capacity, 1.0, {}, Solver())
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds that a whole plan takes after tracing.")
    parser.add_argument("names", nargs="*", help=f"models of benches/models.py; by default {', '.join(NAMES)}")
    parser.add_argument("--memory", type=float, help="GB (1e9 bytes) of each device; by default what it has")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each")
    options = parser.parse_args()
    for name in options.names or NAMES:
        with torch.device("meta"):
            module, args, kwargs = MODELS[name]()
        axes = annotate(hap.trace(module.train(), args, kwargs))
        memory = None if options.memory is None else options.memory * 1e9
        least = min((measure(axes, cluster(memory)) for _ in range(PLANS)), key=lambda seconds: seconds["whole"])
        if options.json:
            sys.stdout.write(json.dumps({"model": name, **least}) + "\n")
        else:
            sys.stdout.write(f"{name}: {', '.join(f'{phase} {value:.3f}' for phase, value in least.items())}\n")


if __name__ == "__main__":
    main()

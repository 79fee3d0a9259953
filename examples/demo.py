"""Trains a small GPT on four CPU processes of unequal speed: hap beside PyTorch's DDP, and against one device.

Run by ``make demo``. The processes are throttled to 80%, 40%, 30% and 20% of a processor. They measure themselves, hap
plans for what they measured, and all systems then train the same model on the same batches, in turns.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

import hap
from emulation import systems
from emulation.job import JobError, Rank, run
from emulation.throttle import Throttle, feasible
from gpt import GPT
from hap.program import Convert
from text import VOCABULARY, batch, standard_library

DUTIES = [0.8, 0.4, 0.3, 0.2]


@dataclass(frozen=True)
class Settings:
    """What is trained, and how long."""

    steps: int = 30
    turn: int = 10
    batch: int = 8
    context: int = 64
    width: int = 512
    layers: int = 2
    heads: int = 8

    def model(self) -> GPT:
        """The same model, with the same parameters, at each call."""
        torch.manual_seed(0)
        return GPT(vocabulary=VOCABULARY, context=self.context, width=self.width, layers=self.layers, heads=self.heads)


@dataclass
class Result:
    """What rank 0 reports at the end."""

    plan: hap.Plan
    planning: float
    shares: dict[str, list[int]]
    losses: dict[str, list[float]]
    seconds: dict[str, list[float]] = field(default_factory=dict)


def train(rank: Rank, settings: Settings, duties: Sequence[float]) -> None:
    """What each rank does: measure, plan, train."""
    text = standard_library()
    batches = [batch(text, step=step, size=settings.batch, context=settings.context) for step in range(settings.steps)]
    model = settings.model()

    say(rank, "measuring the devices")
    cluster = measure(duties[rank.rank])

    say(rank, "planning")
    start = time.perf_counter()
    step, plan = systems.planned(model, cluster, batches[0])
    planning = time.perf_counter() - start
    even = systems.proportional_shares(settings.batch, [1.0] * rank.count)
    proportional = systems.proportional_shares(settings.batch, [device.flops["default"] for device in cluster.devices])
    contestants = {
        "hap": step,
        "ddp_even": systems.data_parallel(model, even),
        "ddp_proportional": systems.data_parallel(model, proportional),
    }

    say(rank, f"training {settings.steps} steps with each of {len(contestants)} systems, in turns")
    losses: dict[str, list[torch.Tensor]] = {name: [] for name in contestants}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for first in range(0, settings.steps, settings.turn):
        for name, contestant in contestants.items():
            dist.barrier()
            with Throttle(duties[rank.rank]):
                for number, (x, y) in enumerate(batches[first : first + settings.turn]):
                    start = time.perf_counter()
                    losses[name].append(contestant(x, y))
                    # A turn's first step waits for whoever finished the turn before last.
                    if number > 0:
                        seconds[name].append(time.perf_counter() - start)

    say(rank, "training on one device")
    curves = {name: torch.stack(values) for name, values in losses.items()}
    for name in ("ddp_even", "ddp_proportional"):
        dist.all_reduce(curves[name])
    if rank.rank == 0:
        alone = systems.single_device(model)
        curves["single"] = torch.stack([alone(x, y) for x, y in batches])
        rank.report(
            Result(
                plan,
                planning,
                {"ddp_even": even, "ddp_proportional": proportional},
                {name: curve.tolist() for name, curve in curves.items()},
                seconds,
            )
        )
    dist.barrier()


def measure(duty: float) -> hap.Cluster:
    """The cluster as its throttled ranks measure it; the same on every rank."""
    with Throttle(duty):
        return hap.profile(quick=True)


def say(rank: Rank, text: str) -> None:
    """Tells the parent what happens next."""
    if rank.rank == 0:
        rank.report(text)


NAMES = {"hap": "hap", "ddp_even": "DDP, even batches", "ddp_proportional": "DDP, proportional batches"}


def show(console: Console, settings: Settings, result: Result) -> None:
    """Prints what the demo is for."""
    plan = result.plan
    predicted = {"hap": plan.predicted_time} | plan.baselines
    measured = {name: statistics.median(seconds) for name, seconds in result.seconds.items()}

    ranks = range(len(plan.cluster.devices))
    devices = table("Devices, as measured", "rank", "share of a processor", "GFLOP/s", "GB/s")
    for rank, device in enumerate(plan.cluster.devices):
        speeds = (device.flops["default"], device.memory_bandwidth)
        devices.add_row(str(rank), f"{DUTIES[rank]:.0%}", *(f"{speed / 1e9:.1f}" for speed in speeds))
    console.print(devices)

    shares = table("Shares", "what is split", "of", *(f"rank {rank}" for rank in ranks))
    for name in ("ddp_even", "ddp_proportional"):
        shares.add_row(NAMES[name], str(settings.batch), *map(str, result.shares[name]))
    for axis, size, units in axes_of(plan):
        shares.add_row(f"hap: {axis}", str(size), *map(str, units))
    console.print(shares)
    if not axes_of(plan) and not plan.left_out:
        console.print("hap splits nothing: each rank computes all of it, as sending would take longer.")
    if plan.left_out:
        left_out = ", ".join(map(str, plan.left_out))
        console.print(
            f"hap leaves out ranks {left_out}: with all, a step would take {(plan.with_all or 0) * 1e3:.0f} ms."
        )
    gap = "an unknown part" if plan.optimality_gap is None else f"{plan.optimality_gap:.1%}"
    console.print(
        f"hap planned in {result.planning:.1f} s, tracing on each rank included. Gap of the search "
        f"{plan.search_gap:.1%}, of the whole plan to what is proven possible {gap}."
    )

    used = Counter(
        (step.conversion, step.axis or "", step.implementation or "")
        for step in plan.program.instructions
        if isinstance(step, Convert) and step.implementation is not None
    )
    collectives = table("Collectives of hap's program, in a step", "collective", "axis", "implementation", "times")
    for (conversion, axis, implementation), count in sorted(used.items()):
        collectives.add_row(conversion, axis, implementation, str(count))
    console.print(collectives)

    times = table("Step time", "system", "predicted, ms", "measured, ms", "loss, first", "loss, last")
    for name, title in NAMES.items():
        expected = predicted.get(name)
        times.add_row(
            title,
            "-" if expected is None else f"{expected * 1e3:.0f}",
            f"{measured[name] * 1e3:.0f}",
            f"{result.losses[name][0]:.4f}",
            f"{result.losses[name][-1]:.4f}",
        )
    console.print(times)
    console.print("Predictions leave the optimiser out.")

    single = result.losses["single"]
    difference = max(abs(one - other) for one, other in zip(result.losses["hap"], single, strict=True))
    console.print(
        f"One device: loss {single[0]:.4f} to {single[-1]:.4f}. "
        f"Largest difference of hap's loss from it in {settings.steps} steps: {difference:.1e}."
    )
    console.print(verdict(measured))


def table(title: str, *columns: str) -> Table:
    """An empty table; its first column holds text, the others numbers or short words."""
    made = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number == 0 else "right")
    return made


def axes_of(plan: hap.Plan) -> list[tuple[str, int, list[int]]]:
    """Each axis that the program works along, its size and the devices' units; of alike axes of blocks, the first."""
    used = {axis for step in plan.program.instructions if (axis := getattr(step, "axis", None)) is not None}
    kinds: dict[str, str] = {}
    for axis in sorted(used):
        kinds.setdefault(re.sub(r"^blocks[.][0-9]+[.]", "blocks.*.", axis), axis)
    return [(kind, plan.axes[axis], plan.units(axis)) for kind, axis in kinds.items()]


def verdict(measured: dict[str, float]) -> str:
    """Who was fastest, in plain words."""
    rivals = {name: seconds for name, seconds in measured.items() if name != "hap"}
    best = min(rivals, key=lambda name: rivals[name])
    ratio = rivals[best] / measured["hap"]
    if ratio > 1:
        return f"hap was the fastest: {ratio:.2f} times as fast as {NAMES[best]}."
    return f"hap was not the fastest in this run: {NAMES[best]} took {ratio:.2f} of its time."


def main() -> int:
    parser = argparse.ArgumentParser(description="hap beside DDP on four CPU processes of unequal speed.")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--turn", type=int, default=Settings.turn, help="steps before the next system's turn")
    parser.add_argument("--batch", type=int, default=Settings.batch, help="sequences in a global batch")
    parser.add_argument("--width", type=int, default=Settings.width)
    parser.add_argument("--layers", type=int, default=Settings.layers)
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds until the demo gives up")
    options = parser.parse_args()
    settings = Settings(
        steps=options.steps, turn=options.turn, batch=options.batch, width=options.width, layers=options.layers
    )
    console = Console()
    start = time.monotonic()
    try:
        for message in run(train, len(DUTIES), settings, feasible(DUTIES), timeout=options.timeout):
            if isinstance(message, str):
                console.print(f"[{time.monotonic() - start:5.1f} s] {message}", markup=False, highlight=False)
            else:
                show(console, settings, message)
    except JobError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

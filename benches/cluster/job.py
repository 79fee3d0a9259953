"""Trains all systems on one cluster, in turns, and tells how long each step took."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benches.cluster import systems
from benches.cluster.described import in_a_line
from benches.cluster.pairs import PAIRS
from benches.cluster.systems import System

import hap
from hap.cluster.device import MEMORY

# Steps that a system takes in its turn; the first waits for whoever ended the turn before last, and does not count.
TURN = 4
# Turns of each system, at most.
MOST = 10
# Tensors of a parameter's size that AdamW reads or writes.
TOUCHED = 7
PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
        pair: the name of the cluster and the workload.
        systems: their names.
        profile: the file of the cluster as measured.
        seconds: for all turns together, about.
        turns: of each system, at least.
    """

    pair: str
    systems: list[str]
    profile: str
    seconds: float
    turns: int


@dataclass
class Prepared:
    """The systems, ready to train."""

    request: Request
    contestants: dict[str, System]
    plan: hap.Plan | None
    batches: list[systems.Batch]


@dataclass
class Turns:
    """By system, what this rank has seen of each step: the loss, and when it ended.

    ``counts`` says of each step whether it is measured: it follows one of the same system.
    """

    losses: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    ends: dict[str, list[float]] = field(default_factory=dict)
    counts: dict[str, list[bool]] = field(default_factory=dict)

    def take(self, name: str, system: System, batches: list[systems.Batch], steps: int, *, counted: bool) -> None:
        """Trains some steps of a system, which all ranks begin at the same time."""
        losses, ends = self.losses.setdefault(name, []), self.ends.setdefault(name, [])
        counts = self.counts.setdefault(name, [])
        dist.barrier()
        for number in range(steps):
            losses.append(system.step(batches[len(losses) % len(batches)]))
            ends.append(time.monotonic())
            counts.append(counted and number > 0)


def prepare(request: Request) -> Prepared:
    """Makes the systems on this rank; all ranks make them together."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)
    pair, cluster = PAIRS[request.pair], hap.Cluster.load(request.profile)
    workload = pair.workload
    even = systems.proportional(workload.samples, [1.0] * len(cluster.devices))
    fair = systems.proportional(workload.samples, [device.speed for device in cluster.devices])
    batches = [workload.data(step) for step in range(2 * TURN)]
    contestants, plan = {}, None
    for name in request.systems:
        model = workload.model()
        if name == "hap":
            contestants[name], plan = systems.planned(model, cluster, batches[0])
        elif name == "fsdp2":
            contestants[name] = systems.fully_sharded(workload, model, even, keep=pair.together)
        elif name == "tensor":
            contestants[name] = systems.tensor_parallel(workload, model)
        else:
            contestants[name] = systems.data_parallel(model, even if name == "ddp_even" else fair)
    return Prepared(request, contestants, plan, batches)


def measure(prepared: Prepared) -> Turns:
    """Turns of all systems, in an order that rotates, for about the seconds that were asked for."""
    turns = Turns()
    contestants = list(prepared.contestants.items())
    for name, system in contestants:
        # What is made at the first step.
        turns.take(name, system, prepared.batches, 1, counted=False)
    began, rounds, number = time.monotonic(), prepared.request.turns, 0
    while number < rounds:
        for position in range(len(contestants)):
            name, system = contestants[(position + number) % len(contestants)]
            turns.take(name, system, prepared.batches, TURN, counted=True)
        number += 1
        if number == 1:
            left = torch.tensor(prepared.request.seconds / (time.monotonic() - began))
            dist.broadcast(left, 0)
            rounds = max(rounds, min(MOST, int(left)))
    return turns


def finish(prepared: Prepared, turns: Turns, result: Path) -> None:
    """Rank 0 writes what all have seen; a step has ended when it has ended on all ranks, which have one clock."""
    everybody: list[Any] = [None] * dist.get_world_size()
    losses = {name: torch.stack(one).tolist() for name, one in turns.losses.items()}
    dist.all_gather_object(everybody, (turns.ends, losses, optimising(prepared)))
    if dist.get_rank() == 0:
        found = {}
        for name, system in prepared.contestants.items():
            ends = [max(ranks) for ranks in zip(*(ends[name] for ends, _, _ in everybody), strict=True)]
            by_rank = list(zip(*(losses[name] for _, losses, _ in everybody), strict=True))
            counted = [number for number, counts in enumerate(turns.counts[name]) if counts]
            found[name] = {
                "seconds": [ends[number] - ends[number - 1] for number in counted],
                "optimising": max(seconds[name] for *_, seconds in everybody),
                "loss": [sum(ranks) / len(ranks) if system.partial else ranks[0] for ranks in by_rank],
            }
        plan = prepared.plan
        result.write_text(json.dumps({"systems": found, "plan": plan and in_a_line(plan)}))
        if plan is not None:
            plan.save(result.with_suffix(".plan"))
    dist.barrier()
    dist.destroy_process_group()


def optimising(prepared: Prepared) -> dict[str, float]:
    """By system, seconds that this rank's optimiser should take: hap's simulator leaves it out.

    AdamW reads a parameter, its gradient and two moments, and writes all but the gradient: in place, so at the best
    rate that the memory was measured at.
    """
    device = hap.Cluster.load(prepared.request.profile).devices[dist.get_rank()]
    rate = max(amount / seconds for amount, seconds in device.measured[MEMORY])
    return {name: TOUCHED * system.bytes() / rate for name, system in prepared.contestants.items()}

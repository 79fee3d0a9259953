"""What the bench says that other systems should take."""

from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from benches.cluster import predictions, workloads

import hap
from hap.cluster import COLLECTIVES, CollectiveCost
from hap.planning.baselines import baseline
from hap.planning.setup import make_problem
from hap.program import Compute, Convert, Program
from hap.rules import annotate

LATENCY, RATE = 1e-3, 1e8
COSTS = {name: CollectiveCost(latency=LATENCY, bandwidth=RATE) for name in COLLECTIVES}
DEVICE = hap.Device(flops=1e10, memory_bandwidth=1e9, memory=1e10)
CLUSTER = hap.Cluster([DEVICE] * 2, link=hap.Link(bandwidth=RATE, latency=LATENCY), collectives=COSTS)
GPT2 = workloads.gpt2(4, length=8, vocabulary=32, width=16, layers=2, heads=2)


@pytest.fixture(scope="module")
def axes():
    return annotate(hap.trace(GPT2.model(), GPT2.data(0)))


def test_fully_sharded_collectives_are_padded_ones_of_a_unit_at_a_time():
    sizes = Counter()
    for name, parameter in GPT2.model().named_parameters():
        sizes[name.split(".")[1] if name.startswith("blocks.") else ""] += parameter.numel() * parameter.itemsize
    assert set(sizes) == {"", "0", "1"}
    # Each of two ranks receives the other's half.
    once = sum(LATENCY + size / 2 / RATE for size in sizes.values())
    computing = {"blocks.0": 1.0, "blocks.1": 1e-4}
    quiet = predictions.gathering(GPT2, CLUSTER, computing, keep=True)
    assert quiet == pytest.approx(2 * once)
    assert predictions.gathering(GPT2, CLUSTER, computing, keep=False) == pytest.approx(3 * once)
    # In the backward a collective contends with what another unit computes, for as long as that takes at most.
    busy = replace(CLUSTER, contention=1e-3)
    assert predictions.gathering(GPT2, busy, computing, keep=True) == pytest.approx(2 * once + 1e-3 + 1e-4)
    assert predictions.gathering(GPT2, busy, computing, keep=False) == pytest.approx(3 * once + 2 * (1e-3 + 1e-4))


def test_units_compute_by_their_floating_point_operations(axes):
    found = predictions.parts(GPT2, axes, 2.0)
    assert list(found) == ["blocks.0", "blocks.1"]
    assert found["blocks.0"] == pytest.approx(found["blocks.1"])
    # The head is the rest.
    assert 0.5 < sum(found.values()) < 2.0


def test_tensor_parallelism_is_what_people_write(axes):
    problem = make_problem(axes, CLUSTER)
    given = predictions.by_hand(GPT2, axes, problem.constraints)
    found = baseline(problem, "tensor", given, problem.even)
    program = msgspec.json.decode(found.candidate.program, type=Program)
    collectives = [step for step in program.instructions if isinstance(step, Convert) and step.implementation]
    # In each block the sums behind attention and perceptron, forth and back, and nothing else.
    assert Counter(step.conversion for step in collectives) == {"all_reduce": 4 * 2}
    modules = {operator.name: operator.module for operator in axes.graph.operators}
    along = {modules[step.operator] for step in program.instructions if isinstance(step, Compute) and step.axis}
    layers = ("attention.query", "attention.key", "attention.value", "attention.out", "up", "down")
    assert along >= {f"blocks.{number}.{name}" for number in range(2) for name in layers}
    assert not any(name in ("", "tokens", "norm", "head") or name.endswith((".before", ".between")) for name in along)


def test_communication_can_be_left_out():
    alone = predictions.without_communication(CLUSTER)
    assert [device.flops for device in alone.devices] == [device.flops for device in CLUSTER.devices]
    assert alone.collectives == {}
    assert alone.link.latency == 0.0

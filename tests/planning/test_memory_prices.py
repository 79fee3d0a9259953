"""Programs under prices of memory: equal to one device, whatever they make again, gather again or keep."""

from __future__ import annotations

import functools
import os
import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hap._core import Graph
from hap.cluster import Cluster, Device, Link
from hap.program import Compute, Convert, Program
from tests import models
from tests.runtime.one_device import Step, step
from tests.runtime.programs import random_splits
from tests.runtime.test_lockstep import tolerance

FEW = settings(max_examples=int(os.environ.get("HAP_TEST_EXAMPLES", "2")))


@functools.cache
def traced(name: str) -> tuple[Step, Graph]:
    options = {"dropout": 0.3, "layers": 1} if name == "gpt2" else {}
    whole = step(*getattr(models, name)(**options))
    return whole, Graph(whole.axes.to_json())


def priced(name: str, seed: int, price: float) -> Counter[str]:
    """The cheapest program under random costs, proven equal to one device; and what it does twice."""
    whole, core = traced(name)
    generator = random.Random(seed)
    ranks = generator.randint(1, 4)
    splits = random_splits(whole.axes, ranks, generator)
    device = Device(flops=1e9, memory_bandwidth=1e9, memory=1e9)
    cluster = Cluster([device] * ranks, link=Link(bandwidth=1e9, latency=1e-6)).to_json()
    memory = {
        "seconds_per_byte": [price * generator.random() for _ in range(ranks)],
        "between": generator.choice([1.0, generator.random()]),
        "optimiser_tensors": 2,
        "segments": generator.randint(1, 3),
    }
    request = {"splits": splits, "prices": {"memory": memory}, "random": seed}
    reply = msgspec.json.decode(core.synthesise(cluster, msgspec.json.encode(request).decode()))
    assert reply["search_gap"] == 0.0
    text = msgspec.json.encode(reply["program"])
    simulated = core.simulate(cluster, text.decode(), msgspec.json.encode(splits).decode(), "{}")
    peak = msgspec.json.decode(simulated)["memory"]
    assert all(bytes_ <= most * (1 + 1e-9) for bytes_, most in zip(reply["priced_memory"], peak, strict=True))
    program = msgspec.json.decode(text, type=Program)
    whole.check(program, splits, ranks, tolerance(whole.axes))
    return twice(whole, program)


def twice(whole: Step, program: Program) -> Counter[str]:
    """How many operators, views apart, and how many collectives stand twice in a program."""
    costs = {
        operator.name: not layout
        for operator, layout in zip(whole.axes.graph.operators, whole.axes.layout, strict=True)
    }
    seen: set[object] = set()
    found: Counter[str] = Counter()
    for instruction in program.instructions:
        if isinstance(instruction, Compute) and costs[instruction.operator]:
            key: object = (instruction.operator, instruction.outputs)
        elif isinstance(instruction, Convert) and instruction.implementation:
            key = instruction
        else:
            continue
        found[type(instruction).__name__] += key in seen
        seen.add(key)
    return found


@pytest.mark.parametrize("name", ["mlp", "noisy", "gpt2", "llama"])
@FEW
@given(seed=st.integers(0, 2**32), price=st.sampled_from([1e-6, 1e-4, 1e-2]))
def test_random_costs(name: str, seed: int, price: float) -> None:
    priced(name, seed, price)


@pytest.mark.parametrize("name", ["mlp", "gpt2"])
def test_operators_run_again_and_conversions_are_made_again(name: str) -> None:
    """Neither happens where memory costs nothing."""
    total: Counter[str] = Counter()
    for seed in range(4):
        total += priced(name, seed, 1e-2)
        assert not +priced(name, seed, 0.0)
    assert total["Compute"] > 8
    assert total["Convert"] > 2

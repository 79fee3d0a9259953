"""The synthesiser's optimum against an integer linear program of the same constraint problem, solved by HiGHS."""

import json
import os
import random

import pytest
import torch
from benches import models

from hap import _core
from hap.balance import largest_remainder
from hap.cluster import Cluster, Device, Link
from hap.rules import annotate
from hap.trace import trace
from tests.planning.graphs import axes_of, random_axes
from tests.planning.ilp import optimum


def cluster(seed):
    chosen = random.Random(seed)
    devices = [
        Device(flops=chosen.choice([1e9, 3e9]), memory_bandwidth=1e9, memory=1e9, launch_overhead=1e-6)
        for _ in range(chosen.randint(1, 4))
    ]
    link = Link(bandwidth=10 ** chosen.uniform(7, 10), latency=10 ** chosen.uniform(-7, -5))
    return Cluster(devices, link=link, overlap=chosen.choice([0.0, 0.5]))


def request(axes, devices, seed, **constraints):
    chosen = random.Random(seed)
    splits = {}
    for axis in axes.axes:
        weights = [chosen.random() + 0.01 for _ in range(devices)]
        splits[axis.name] = largest_remainder([weight / sum(weights) for weight in weights], axis.size)
    weights = [chosen.random() + 0.01 for _ in range(devices)]
    prices = {"weights": [weight / sum(weights) for weight in weights], "theta": chosen.choice([1.0, 0.5])}
    return {"splits": splits, "prices": prices, "constraints": constraints}


def check(axes, seed, machines=None, **constraints):
    graph = _core.Graph(axes.to_json())
    machines = machines or cluster(seed)
    text = machines.to_json()
    asked = json.dumps(request(axes, len(machines.devices), seed, **constraints))
    found = json.loads(graph.synthesise(text, asked))
    assert found["search_gap"] == 0.0
    assert found["cost"] == pytest.approx(optimum(json.loads(graph.problem(text, asked))), rel=1e-6, abs=1e-12)
    assert found["bound"] <= found["cost"] * (1 + 1e-9)
    graph.validate(json.dumps(found["program"]))


@pytest.mark.parametrize("seed", range(10))
def test_random_graphs(seed):
    axes = random_axes(seed)
    assert len(axes.graph.operators) >= 8
    check(axes, seed)
    check(axes, seed + 100, forbidden_axes=["batch"])


@pytest.mark.parametrize("seed", range(3))
def test_an_mlp(seed):
    axes = axes_of("mlp")
    assert len(axes.graph.operators) <= 60
    check(axes, seed)
    check(axes, seed, require_axis="batch")
    check(axes, seed, allowed_axes=["batch"])


def test_a_layer_of_gpt2():
    check(axes_of("gpt2", layers=1), 1)


EIGHT = Cluster(["A100-40GB"] * 4 + ["T4"] * 4, link=Link(bandwidth=1.25e9, latency=5e-5))


SLOW = pytest.mark.skipif("HAP_TEST_EXAMPLES" not in os.environ, reason="some seconds each: for `make test-full`")


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(models.vgg19, id="vgg19"),
        pytest.param(lambda: models.vit(layers=1), id="vit"),
        pytest.param(lambda: models.bert(layers=1), id="bert", marks=SLOW),
        # A plain layer and one with experts.
        pytest.param(lambda: models.bert_moe(layers=2), id="bert_moe", marks=SLOW),
        pytest.param(lambda: models.gpt2(layers=2), id="gpt2", marks=SLOW),
    ],
)
def test_models_of_full_width_with_few_layers(build):
    with torch.device("meta"):
        module, args, kwargs = build()
    check(annotate(trace(module.train(), args, kwargs)), 1, EIGHT)

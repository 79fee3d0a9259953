"""Synthesis of a model of full size, through the bindings: proven optimal, not merely good."""

import gzip
import types
from pathlib import Path

import msgspec
import pytest

from hap import _core
from hap.balance import largest_remainder
from hap.cluster import Cluster, Link
from hap.errors import PlanError
from hap.planning.setup import make_problem

GRAPHS = Path(__file__).parents[2] / "benches" / "graphs"


def test_twelve_layers_on_eight_devices_of_two_kinds_are_solved_to_optimality():
    content = gzip.decompress((GRAPHS / "gpt2_12.json.gz").read_bytes())
    cluster = Cluster(["A100-40GB"] * 4 + ["T4"] * 4, link=Link(bandwidth=1.25e9, latency=5e-5))
    speeds = [device.flops["float32"] for device in cluster.devices]
    shares = [speed / sum(speeds) for speed in speeds]
    axes = msgspec.json.decode(content)["axes"]
    splits = {axis["name"]: largest_remainder(shares, axis["size"]) for axis in axes}
    graph, request = _core.Graph(content), msgspec.json.encode({"splits": splits}).decode()
    reply = msgspec.json.decode(graph.synthesise(cluster.to_json(), request))
    assert reply["search_gap"] == 0.0
    assert reply["cost"] == pytest.approx(reply["bound"], rel=1e-9)
    assert reply["cost"] > 0.0
    # What is proven optimal is also a program of the graph.
    graph.validate(msgspec.json.encode(reply["program"]).decode())


def test_a_graph_that_the_core_refuses():
    broken = types.SimpleNamespace(axes=[], to_json=lambda: b"{}")
    with pytest.raises(PlanError, match="the graph cannot be planned: "):
        make_problem(broken, Cluster(["T4"]))

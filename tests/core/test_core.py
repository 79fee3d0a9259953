"""The extension module: JSON in and out, and errors that say what is wrong. What it computes is tested in Rust."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hap
from hap import _core
from hap.rules import annotate


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 12)
        self.second = nn.Linear(12, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.second(torch.relu(self.first(x))), y)


@pytest.fixture(scope="module")
def graph_json() -> bytes:
    x, y = torch.randn(6, 8), torch.randn(6, 8)
    return annotate(hap.trace(Perceptron(), (x, y))).to_json()


@pytest.fixture(scope="module")
def graph(graph_json: bytes) -> _core.Graph:
    return _core.Graph(graph_json)


@pytest.fixture(scope="module")
def splits(graph_json: bytes) -> dict[str, list[int]]:
    """Two thirds to the first device, the rest to the second."""
    sizes = {axis["name"]: axis["size"] for axis in json.loads(graph_json)["axes"]}
    return {name: [size - size // 3, size // 3] for name, size in sizes.items()}


@pytest.fixture(scope="module")
def cluster() -> str:
    devices = [hap.Device(flops=flops, memory_bandwidth=1e9, memory=1e9, launch_overhead=1e-6) for flops in (2e8, 1e8)]
    return hap.Cluster(devices, link=hap.Link(bandwidth=1e8, latency=1e-6)).to_json()


def synthesise(graph: _core.Graph, cluster: str, **request: Any) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(graph.synthesise(cluster, json.dumps(request)))
    return reply


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_program_goes_through_all_of_it(
    graph: _core.Graph, cluster: str, splits: dict[str, list[int]], seed: int | None
) -> None:
    reply = synthesise(graph, cluster, splits=splits, random=seed)
    assert reply["search_gap"] == 0.0
    program = json.dumps(reply["program"])
    graph.validate(program)
    step = json.loads(graph.simulate(cluster, program, json.dumps(splits), '{"timeline": true}'))
    shares = {name: [count / sum(units) for count in units] for name, units in splits.items()}
    axes, kinds, counts, computation, terms = graph.stages(cluster, program, json.dumps(shares))
    assert axes == sorted(axes)
    assert set(computation) <= {0, 1}
    by_kind = np.frombuffer(terms).reshape(-1, len(computation) + 1, 1 + len(axes))
    columns = np.array([[1.0] * len(next(iter(shares.values()))), *(shares[axis] for axis in axes)])
    values = np.einsum("dsa,ad->sd", by_kind[np.frombuffer(kinds, dtype=np.int64)], columns)
    longest = np.frombuffer(counts, dtype=np.int64) * values[:-1].max(axis=1)
    assert step["seconds"] <= sum(longest) * (1 + 1e-9)
    assert step["communication"] <= step["seconds"]
    assert values[-1] == pytest.approx(step["memory"])
    assert [sum(parts.values()) for parts in step["memory_parts"]] == pytest.approx(step["memory"])
    assert max(event["end"] for event in step["timeline"]) == pytest.approx(step["seconds"])
    if seed is None:
        assert reply["cost"] <= step["seconds"] * (1 + 1e-9)


def test_the_problem_solved_alone_costs_the_same(
    graph: _core.Graph, cluster: str, splits: dict[str, list[int]]
) -> None:
    problem = graph.problem(cluster, json.dumps({"splits": splits}))
    solution = json.loads(_core.solve(problem, "{}"))
    assert solution["gap"] == 0.0
    assert solution["cost"] == pytest.approx(synthesise(graph, cluster, splits=splits)["cost"])


def test_equal_arguments_give_equal_bytes(
    graph_json: bytes, graph: _core.Graph, cluster: str, splits: dict[str, list[int]]
) -> None:
    programs = [synthesise(each, cluster, splits=splits)["program"] for each in (graph, _core.Graph(graph_json))]
    assert json.dumps(programs[0]) == json.dumps(programs[1])


def test_more_optimiser_state_takes_more_memory(graph: _core.Graph, cluster: str, splits: dict[str, list[int]]) -> None:
    program = json.dumps(synthesise(graph, cluster, splits=splits)["program"])

    def optimiser(tensors: int) -> list[float]:
        step = json.loads(
            graph.simulate(cluster, program, json.dumps(splits), json.dumps({"optimiser_tensors": tensors}))
        )
        return [parts["optimiser"] for parts in step["memory_parts"]]

    assert optimiser(0) == [0.0, 0.0]
    assert optimiser(2) == pytest.approx([2 * size for size in optimiser(1)])


def test_errors_say_what_is_wrong(graph: _core.Graph, cluster: str, splits: dict[str, list[int]]) -> None:
    with pytest.raises(ValueError, match="missing field `format`"):
        _core.Graph(b"{}")
    with pytest.raises(ValueError, match="the request cannot be read: unknown field `split`"):
        graph.synthesise(cluster, '{"split": {}}')
    with pytest.raises(ValueError, match='axis "batch" has no split'):
        graph.synthesise(cluster, '{"splits": {}}')
    with pytest.raises(ValueError, match="unknown field `memories`"):
        graph.synthesise(cluster.replace('"memory":', '"memories":', 1), json.dumps({"splits": splits}))
    with pytest.raises(ValueError, match="seconds"):
        _core.solve('{"format": "hap-cfn-1", "name": "", "domains": [], "factors": []}', '{"seconds": -1}')
    program = synthesise(graph, cluster, splits=splits)["program"]
    with pytest.raises(ValueError, match="the program cannot be read"):
        graph.validate("[]")
    computes = [index for index, each in enumerate(program["instructions"]) if each["kind"] == "compute"]
    del program["instructions"][computes[0]]
    with pytest.raises(ValueError, match=r"instruction \d+ \(.*is needed, but nothing of it is there"):
        graph.validate(json.dumps(program))
    with pytest.raises(ValueError, match=r"instruction \d+"):
        graph.simulate(cluster, json.dumps(program), json.dumps(splits), "{}")

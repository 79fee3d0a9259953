"""Gathers that start early: what a rank runs, and that all ranks together compute what one device does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import fx

from hap.planning.baselines import shards
from hap.planning.engine import Constraints, Prices, parse_program
from hap.planning.setup import make_problem
from hap.runtime import collectives
from hap.runtime.code import straight
from hap.runtime.lower import lower
from tests.planning import strategies


def hidden(graph: fx.Graph) -> list[str]:
    """The gathers, by their tensors, that are under way while matrices are multiplied."""
    products = [at for at, node in enumerate(graph.nodes) if "mm" in str(node.target)]
    places = {node: at for at, node in enumerate(graph.nodes)}
    found = []
    for node in graph.nodes:
        if node.target is collectives.wait and node.args[0].args[0] == "all_gather":
            start = node.args[0]
            if any(places[start] < at < places[node] for at in products):
                found.append(start.kwargs["name"])
    return found


@pytest.mark.parametrize("overlap", [0.0, 1.0])
def test_gathers_of_parameters_are_under_way_during_computation(overlap: float) -> None:
    whole, machines = strategies.deep(), replace(strategies.cluster(4), overlap=overlap)
    problem = make_problem(whole.axes, machines)
    constraints = Constraints(placements=dict.fromkeys(problem.parameters, shards(2)), require_axis="batch")
    program = parse_program(problem.engine.synthesise(problem.even, Prices((0.25,) * 4), constraints).program)
    local = lower(whole.axes, program, problem.even, 1, ranks=4, make=straight)
    # That of the first layer has nothing to hide behind.
    assert len(hidden(local.forward_graph)) == (len(problem.parameters) - 1 if overlap else 0)
    whole.check(program, problem.even, 4, 1e-10)

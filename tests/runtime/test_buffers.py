"""What collectives hold beside their operands and results: as predicted, and as counted."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import hap
from hap import _core
from hap.program import Convert, InputInstruction, OutputInstruction, Program
from hap.rules import pieces
from hap.runtime import collectives, lockstep
from hap.runtime.along import Along
from hap.runtime.requests import Request
from tests.runtime.held import Held

UNITS = 12
SHAPE = (UNITS,) * 3
WHOLE = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
# By occurrence, the dimension: that of each of three axes, then of another split class of each.
DIMS = (0, 1, 2, 0, 1, 2)
NAMES = ("a", "b", "c", "a@2", "b@2", "c@2")
HOW = ("padded", "grouped", "exchange")


@pytest.fixture(scope="module")
def graph() -> _core.Graph:
    """A step that returns its input."""
    axes = [{"name": name, "size": UNITS, **({"of": i - 3} if i > 2 else {})} for i, name in enumerate(NAMES)]
    tensor = {
        "name": "x",
        "dtype": "float32",
        "bytes": float(WHOLE.nbytes),
        "occurrences": [*range(6)],
        "summable": True,
    }
    ends = [{"kind": kind, "name": "x", "tensor": 0} for kind in ("input", "output")]
    whole = {"format": "hap-graph-1", "axes": axes, "tensors": [tensor], "operators": []}
    return _core.Graph(json.dumps({**whole, "inputs": ends[:1], "outputs": [{**ends[1], "of": None}]}).encode())


def predicted(graph: _core.Graph, splits: dict[str, list[int]], *converts: Convert) -> list[float]:
    """Bytes of buffers by rank, at the peak of a step that converts its input."""
    first, last = converts[0].source, converts[-1].target
    program = Program((InputInstruction("x", first), *converts, OutputInstruction("x", "x", last)))
    link = hap.Link(bandwidth=1e9, latency=1e-6)
    device = hap.Device(flops=1e9, memory_bandwidth=1e9, memory=1e9)
    cluster = hap.Cluster([device] * len(splits["a"]), link=link).to_json()
    text = msgspec.json.encode(program).decode()
    step = json.loads(graph.simulate(cluster, text, json.dumps(splits), "{}"))
    return [parts["buffers"] for parts in step["memory_parts"]]


def counted(kind: str, operands: list[torch.Tensor], arguments: list[dict[str, Any]]) -> list[int]:
    """Bytes beside operand and result by rank, at the most."""
    helds = [Held([operand]) for operand in operands]

    def steps_of(rank: int) -> Generator[Request, Any, int]:
        held, operand = helds[rank], operands[rank]
        steps = collectives.STEPS[getattr(collectives, kind)](operand, **arguments[rank], rank=rank)
        answer = None
        while True:
            try:
                with held:
                    request = steps.send(answer)
            except StopIteration as stop:
                return held.peak - operand.nbytes - stop.value.nbytes  # type: ignore[no-any-return]
            answer = yield request
            # It arrives while what is sent is there, which then goes.
            held._see(answer)
            del request

    return lockstep.run([steps_of(rank) for rank in range(len(operands))])


def shares_of(along: Along) -> list[torch.Tensor]:
    return [share.clone(memory_format=torch.contiguous_format) for share in pieces.split(WHOLE, along, along.units)]


def cuts(count: int) -> st.SearchStrategy[list[int]]:
    """Units of so many ranks, some maybe without any; no single ones, which lie in any order."""
    bounds = st.lists(st.integers(0, UNITS // 2).map(lambda half: 2 * half), min_size=count - 1, max_size=count - 1)
    bounds = bounds.map(sorted)
    return bounds.map(lambda inner: [b - a for a, b in zip([0, *inner], [*inner, UNITS], strict=True)])


@settings(max_examples=60)
@given(st.data(), st.integers(2, 4), st.integers(0, 5), st.sampled_from(HOW), st.booleans())
def test_gathers_and_scatters_need_what_is_predicted(
    graph: _core.Graph, data: st.DataObject, ranks: int, occurrence: int, how: Any, even: bool
) -> None:
    units = [UNITS // ranks] * ranks if even else data.draw(cuts(ranks))
    along, shard, name = Along(DIMS[occurrence], ((1, 1),), tuple(units)), (f"S{occurrence}",), NAMES[occurrence]
    splits = {each: [UNITS // ranks] * ranks for each in NAMES} | {name: units}
    gather = Convert("all_gather", "x", shard, ("R",), name, how)
    found = counted("all_gather", shares_of(along), [{"shape": SHAPE, "along": along, "implementation": how}] * ranks)
    assert found == pytest.approx(predicted(graph, splits, gather))
    scatter = Convert("reduce_scatter", "x", ("P",), shard, name, how)
    arguments = [{"shape": along.shape(SHAPE, rank), "along": along, "implementation": how} for rank in range(ranks)]
    found = counted("reduce_scatter", [WHOLE.clone() for _ in units], arguments)
    summands = Convert("keep_one", "x", ("R",), ("P",), None, None)
    assert found == pytest.approx(predicted(graph, splits, summands, scatter))


@settings(max_examples=60)
@given(st.data(), st.integers(2, 4), st.permutations(range(6)))
def test_exchanges_need_what_is_predicted(
    graph: _core.Graph, data: st.DataObject, ranks: int, order: list[int]
) -> None:
    splits = {name: data.draw(cuts(ranks)) for name in NAMES}
    before, behind = order[:2]
    source, target = (Along(DIMS[it], ((1, 1),), tuple(splits[NAMES[it]])) for it in (before, behind))
    assume(source != target)
    conversion: Any = "re_split" if source.dim == target.dim else "all_to_all"
    convert = Convert(conversion, "x", (f"S{before}",), (f"S{behind}",), NAMES[before], "exchange")
    arguments = [{"shape": target.shape(SHAPE, rank), "source": source, "target": target} for rank in range(ranks)]
    found, expected = counted(conversion, shares_of(source), arguments), predicted(graph, splits, convert)
    if conversion == "all_to_all" and 0 in (source.dim, target.dim):
        # One side lies as it should, which the core cannot tell from two axes of one dimension, where neither does.
        assert all(one <= most for one, most in zip(found, expected, strict=True))
        kept = source if target.dim == 0 else target
        found = [max(one, units * WHOLE.nbytes // UNITS) for one, units in zip(found, kept.units, strict=True)]
    assert found == pytest.approx(expected)


def test_splits_that_are_equal_need_nothing_to_become_each_other(graph: _core.Graph) -> None:
    splits = {name: [5, 4, 3] for name in NAMES}
    assert predicted(graph, splits, Convert("re_split", "x", ("S1",), ("S4",), "b", "exchange")) == [0.0] * 3

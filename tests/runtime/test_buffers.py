"""What collectives hold beside their operands and results: as predicted, and as counted."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from dataclasses import dataclass, field
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
# By occurrence, the dimension: that of each of three axes, then of another split class of each.
DIMS = (0, 1, 2, 0, 1, 2)
NAMES = ("a", "b", "c", "a@2", "b@2", "c@2")
EXAMPLES = int(os.environ.get("HAP_TEST_EXAMPLES", "60"))
HOW = ("padded", "grouped", "exchange")


@dataclass(frozen=True)
class Case:
    """A tensor, and a step that returns it; its first dimension consists of one block, or of two."""

    blocks: pieces.Blocks
    whole: torch.Tensor = field(repr=False)
    graph: _core.Graph = field(repr=False)

    def along(self, occurrence: int, units: list[int]) -> Along:
        dim = DIMS[occurrence]
        return Along(dim, self.blocks if dim == 0 else ((1, 1),), tuple(units))


def case(blocks: pieces.Blocks) -> Case:
    first = UNITS * sum(outer * inner for outer, inner in blocks)
    whole = torch.randn((first, UNITS, UNITS), generator=torch.Generator().manual_seed(0))
    axes = [{"name": name, "size": UNITS, **({"of": i - 3} if i > 2 else {})} for i, name in enumerate(NAMES)]
    tensor = {"name": "x", "dtype": "float32", "bytes": float(whole.nbytes), "summable": True}
    tensor |= {"occurrences": [*range(6)], "scattered": len(blocks) > 1}
    ends = [{"kind": kind, "name": "x", "tensor": 0} for kind in ("input", "output")]
    step = {"format": "hap-graph-1", "axes": axes, "tensors": [tensor], "operators": []}
    step |= {"inputs": ends[:1], "outputs": [{**ends[1], "of": None}]}
    return Case(blocks, whole, _core.Graph(json.dumps(step).encode()))


CASES = st.sampled_from([case(((1, 1),)), case(((1, 2), (1, 1)))])


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


def shares_of(whole: torch.Tensor, along: Along, *, turned: bool = False) -> list[torch.Tensor]:
    """Each in memory of its own: in order, or not."""
    shares = [share.clone(memory_format=torch.contiguous_format) for share in pieces.split(whole, along, along.units)]
    return [share.mT.contiguous().mT if turned else share for share in shares]


def cuts(count: int) -> st.SearchStrategy[list[int]]:
    """Units of so many ranks, some maybe without any; no single ones, which lie in any order."""
    bounds = st.lists(st.integers(0, UNITS // 2).map(lambda half: 2 * half), min_size=count - 1, max_size=count - 1)
    bounds = bounds.map(sorted)
    return bounds.map(lambda inner: [b - a for a, b in zip([0, *inner], [*inner, UNITS], strict=True)])


@settings(max_examples=EXAMPLES)
@given(CASES, st.data(), st.integers(2, 4), st.integers(0, 5), st.sampled_from(HOW), st.booleans())
def test_gathers_and_scatters_need_what_is_predicted(
    case: Case, data: st.DataObject, ranks: int, occurrence: int, how: Any, even: bool
) -> None:
    units = [UNITS // ranks] * ranks if even else data.draw(cuts(ranks))
    along, shard, name = case.along(occurrence, units), (f"S{occurrence}",), NAMES[occurrence]
    shape, splits = case.whole.shape, {each: [UNITS // ranks] * ranks for each in NAMES} | {name: units}
    expected = predicted(case.graph, splits, Convert("all_gather", "x", shard, ("R",), name, how))
    # The own share stays until all are put together; where it lies in order, no copy of it is needed.
    stays = not along.leads(shape) and (how == "grouped" or (how == "exchange" and ranks == 2))
    arguments = [{"shape": shape, "along": along, "implementation": how}] * ranks
    found = counted("all_gather", shares_of(case.whole, along), arguments)
    own = [share * case.whole.nbytes // UNITS if stays else 0 for share in units]
    assert [bytes + kept for bytes, kept in zip(found, own, strict=True)] == pytest.approx(expected)
    if stays:
        found = counted("all_gather", shares_of(case.whole, along, turned=True), arguments)
        assert all(bytes <= most for bytes, most in zip(found, expected, strict=True))
    scatter = Convert("reduce_scatter", "x", ("P",), shard, name, how)
    summands = Convert("keep_one", "x", ("R",), ("P",), None, None)
    arguments = [{"shape": along.shape(shape, rank), "along": along, "implementation": how} for rank in range(ranks)]
    found = counted("reduce_scatter", [case.whole.clone() for _ in units], arguments)
    assert found == pytest.approx(predicted(case.graph, splits, summands, scatter))


@settings(max_examples=EXAMPLES)
@given(CASES, st.data(), st.integers(2, 4), st.permutations(range(6)))
def test_exchanges_need_what_is_predicted(case: Case, data: st.DataObject, ranks: int, order: list[int]) -> None:
    splits = {name: data.draw(cuts(ranks)) for name in NAMES}
    before, behind = order[:2]
    source, target = (case.along(it, splits[NAMES[it]]) for it in (before, behind))
    assume(source != target)
    shape = case.whole.shape
    conversion: Any = "re_split" if source.dim == target.dim else "all_to_all"
    convert = Convert(conversion, "x", (f"S{before}",), (f"S{behind}",), NAMES[before], "exchange")
    arguments = [{"shape": target.shape(shape, rank), "source": source, "target": target} for rank in range(ranks)]
    found = counted(conversion, shares_of(case.whole, source), arguments)
    expected = predicted(case.graph, splits, convert)
    leading = [along for along in (source, target) if along.leads(shape)]
    if conversion == "all_to_all" and leading:
        # One side lies as it should, which the core cannot tell from two axes of one dimension, where neither does.
        assert all(one <= most for one, most in zip(found, expected, strict=True))
        kept = source if target in leading else target
        held = [units * case.whole.nbytes // UNITS for units in kept.units]
        found = [*map(max, found, held)]
    assert found == pytest.approx(expected)


def test_splits_that_are_equal_need_nothing_to_become_each_other() -> None:
    splits = {name: [5, 4, 3] for name in NAMES}
    convert = Convert("re_split", "x", ("S1",), ("S4",), "b", "exchange")
    assert predicted(case(((1, 1),)).graph, splits, convert) == [0.0] * 3

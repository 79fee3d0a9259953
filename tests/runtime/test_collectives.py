"""Each conversion of each rank against slices of the whole tensor: in memory, and over gloo."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from hap.rules import pieces
from hap.runtime import collectives, lockstep
from hap.runtime.along import Along
from hap.runtime.group import Group
from tests.runtime.conversions import COLLECTIVES, LOCAL, case, random_units
from tests.runtime.launch import Launcher

SEEDS = st.integers(0, 2**32)


def same(result: torch.Tensor, expected: torch.Tensor) -> bool:
    return result.dtype == expected.dtype and torch.equal(result, expected)


@given(kind=st.sampled_from(COLLECTIVES), ranks=st.integers(1, 5), seed=SEEDS)
def test_collective_in_memory(kind: str, ranks: int, seed: int) -> None:
    example = case(kind, ranks, seed)
    before = [tensor.clone() for tensor in example.inputs]
    steps = collectives.STEPS[getattr(collectives, kind)]
    results = lockstep.run([steps(example.inputs[r], **example.arguments[r], rank=r) for r in range(ranks)])
    for result, expected in zip(results, example.expected, strict=True):
        assert same(result, expected)
    for tensor, copy in zip(example.inputs, before, strict=True):
        assert torch.equal(tensor, copy), "a collective wrote to its input"


def test_memory_that_is_sent_must_stay() -> None:
    """What lets tests in lock-step find graphs that write to it."""
    along = Along(0, ((1, 1),), (2, 2))

    def writes(rank: int, *, early: bool) -> lockstep.Run:
        graph = fx.Graph()
        share, group = graph.placeholder("share"), graph.placeholder("group")
        way = {"name": "share", "group": group, "shape": (4,), "along": along, "implementation": "padded"}
        started = graph.call_function(collectives.start, ("all_gather", share), way)
        if early:
            graph.call_function(torch.ops.aten.neg_.default, (share,))
        whole = graph.call_function(collectives.wait, (started,))
        graph.output([whole])
        return lockstep.interpret(graph, [torch.ones(2), lockstep.Here(rank, 2)], rank)

    assert [one.tolist() for (one,) in lockstep.run([writes(rank, early=False) for rank in range(2)])] == [
        [1.0] * 4
    ] * 2
    with pytest.raises(AssertionError, match="written to while a collective was under way"):
        lockstep.run([writes(rank, early=rank == 1) for rank in range(2)])


@given(ranks=st.integers(1, 4), seed=SEEDS, dim=st.integers(0, 1))
def test_exchange_of_axes_in_blocks(ranks: int, seed: int, dim: int) -> None:
    """Both axes stand in both blocks of one dimension, (c r d | c d)."""
    g = random.Random(seed)
    c, r, d = (g.randint(2, 4) for _ in range(3))
    source = Along(dim, ((1, r * d), (1, d)), random_units(c, ranks, g))
    target = Along(dim, ((c * r, 1), (c, 1)), random_units(d, ranks, g))
    shape = (2, c * r * d + c * d) if dim else (c * r * d + c * d, 2)
    whole = torch.arange(shape[0] * shape[1]).reshape(shape)
    expected = pieces.split(whole, target, target.units)
    steps = [
        collectives.all_to_all_steps(piece, shape=expected[rank].shape, source=source, target=target, rank=rank)
        for rank, piece in enumerate(pieces.split(whole, source, source.units))
    ]
    assert all(map(same, lockstep.run(steps), expected))


@given(ranks=st.integers(1, 4), seed=SEEDS, dim=st.integers(0, 1))
def test_re_split_of_an_axis_in_blocks(ranks: int, seed: int, dim: int) -> None:
    """The axis stands in both blocks of one dimension, (c r d | c d)."""
    g = random.Random(seed)
    c, r, d = (g.randint(2, 4) for _ in range(3))
    blocks = ((c, d), (1, d))
    source, target = (Along(dim, blocks, random_units(r, ranks, g)) for _ in range(2))
    shape = (2, c * r * d + r * d) if dim else (c * r * d + r * d, 2)
    whole = torch.arange(shape[0] * shape[1]).reshape(shape)
    expected = pieces.split(whole, target, target.units)
    steps = [
        collectives.re_split_steps(piece, shape=expected[rank].shape, source=source, target=target, rank=rank)
        for rank, piece in enumerate(pieces.split(whole, source, source.units))
    ]
    assert all(map(same, lockstep.run(steps), expected))


@given(kind=st.sampled_from(LOCAL), ranks=st.integers(1, 5), seed=SEEDS)
def test_local_step(kind: str, ranks: int, seed: int) -> None:
    example = case(kind, ranks, seed)
    results = [getattr(collectives, kind)(example.inputs[r], **example.arguments[r]) for r in range(ranks)]
    if kind == "slice_share":
        for result, expected in zip(results, example.expected, strict=True):
            assert same(result, expected)
            assert result.is_contiguous()
    else:  # summands of the whole
        total = results[0].clone()
        for result in results[1:]:
            total = total | result if total.dtype == torch.bool else total + result
        assert same(total, example.expected[0])


def _on_rank(rank: int, size: int, seeds: list[int]) -> list[str]:
    group = Group(torch.distributed.group.WORLD)
    wrong = []
    for seed in seeds:
        kind = COLLECTIVES[seed % len(COLLECTIVES)]
        example = case(kind, size, seed)
        result = getattr(collectives, kind)(example.inputs[rank], name="x", group=group, **example.arguments[rank])
        if not same(result, example.expected[rank]):
            wrong.append(f"{kind} seed {seed}: {example.arguments[rank]} {result.dtype}")
    return wrong


def _after_a_death(rank: int) -> str:
    group = Group(torch.distributed.group.WORLD)
    try:
        for _ in range(3):
            collectives.all_reduce(torch.ones(4), name="weights", group=group)
    except ValueError as error:
        return str(error)
    return "no error"


def test_collectives_over_gloo() -> None:
    for size in (2, 3):
        with Launcher(size, timeout=10.0) as launcher:
            for wrong in launcher.run(_on_rank, size, list(range(70))):
                assert wrong == []
            if size == 3:
                launcher.kill(2)
                for message in launcher.run(_after_a_death, limit=40.0, ranks=[0, 1]):
                    assert 'all_reduce of "weights"' in message
                    assert "ranks 0 to 2" in message

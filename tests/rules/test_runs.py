"""Runs of adjacent axes: their pieces, their names, what forbids them, and models that need them on many devices."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hap.cluster import Cluster, Device, Link
from hap.planning import plan_axes
from hap.program import Compute
from hap.rules import pieces
from hap.rules.axes import Factor
from hap.rules.pieces import Place
from hap.rules.runs import stands
from tests.runtime.one_device import Step, step
from tests.runtime.programs import random_program, random_splits

SIZES = st.lists(st.integers(2, 3), max_size=2)


@given(before=SIZES, own=st.lists(st.integers(2, 3), min_size=2, max_size=3), behind=SIZES, seed=st.integers(0, 99))
def test_pieces_are_slices_of_the_flattened_dimension(
    before: list[int], own: list[int], behind: list[int], seed: int
) -> None:
    run = tuple(map(Factor, own))
    whole = [*map(Factor, before), *run, *map(Factor, behind)]
    (stand,) = stands(whole, [run])
    assert (stand.first, stand.run) == (len(before), run)
    value = torch.arange(torch.Size([*before, *own, *behind]).numel())
    cut = Place(0, ((stand.outer, stand.inner),))
    flat = value.reshape(*before, -1, *behind)
    units = flat.shape[len(before)]
    start = random.Random(seed).randrange(units)
    for length in (0, units - start):
        expected = flat.narrow(len(before), start, length).reshape(-1)
        assert torch.equal(pieces.narrow(value, cut, start, length), expected)


class GroupedQueries(nn.Module):
    """Attention of two key heads, each repeated for four query heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(24, 8 * 40, bias=False)
        self.kv = nn.ModuleList(nn.Linear(24, 2 * 40, bias=False) for _ in range(2))
        self.out = nn.Linear(8 * 40, 24, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (part(x).view(batch, length, -1, 40).transpose(1, 2) for part in (self.q, *self.kv))
        k, v = (p[:, :, None].expand(batch, 2, 4, length, 40).reshape(batch, 8, length, 40) for p in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return F.mse_loss(self.out(mixed.transpose(1, 2).reshape(batch, length, -1)), y)


class Rows(nn.Module):
    """Two layers on the rows of all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(37, 41), nn.ReLU(), nn.Linear(41, 37))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.reshape(-1, 37)).square().sum()


def made(module: nn.Module, *shapes: tuple[int, ...]) -> Step:
    generator = torch.Generator().manual_seed(0)
    return step(
        module.double(), tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes), {}
    )


@pytest.fixture(scope="module")
def grouped() -> Step:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return made(GroupedQueries(), (2, 6, 24), (2, 6, 24))


@pytest.fixture(scope="module")
def rows() -> Step:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return made(Rows(), (2, 3, 37))


def cluster(*speeds: float) -> Cluster:
    """Devices whose links cost next to nothing."""
    devices = [Device(flops=s, memory_bandwidth=1e13, memory=1e12, launch_overhead=0.0) for s in speeds]
    return Cluster(devices, link=Link(bandwidth=1e15, latency=0.0))


def heads(whole: Step) -> str:
    """The run of the eight heads of the queries."""
    (name,) = (axis.name for axis in whole.axes.axes if [whole.axes.axes[part].size for part in axis.parts] == [2, 4])
    return name


def test_heads_of_grouped_queries_over_more_devices_than_key_heads(grouped: Step) -> None:
    run = heads(grouped)
    (axis,) = (axis for axis in grouped.axes.axes if axis.name == run)
    assert run == "*".join(grouped.axes.axes[part].name for part in axis.parts)
    singles = [one for number, one in enumerate(grouped.axes.axes) if not one.parts and number not in axis.parts]
    others = [one.name for one in singles]
    assert "batch" in others
    plan = plan_axes(grouped.axes, cluster(3e9, 2e9, 1e9, 1e9, 1e9), forbidden_axes=others)
    assert plan.splits[run] == [3, 2, 1, 1, 1]
    along = {i.operator: i.axis for i in plan.program.instructions if isinstance(i, Compute)}
    kinds = {operator.name: str(operator.target) for operator in grouped.axes.graph.operators}
    assert {axis for name, axis in along.items() if "sdpa" in kinds[name]} == {run}
    assert sum(axis == run for name, axis in along.items() if "mm" in kinds[name]) >= 4
    grouped.check(plan.program, plan.splits, 5, 1e-10)


def test_rows_of_all_samples_over_more_devices_than_samples_or_tokens(rows: Step) -> None:
    (run,) = (axis for axis in rows.axes.axes if axis.parts)
    assert (run.name.split("*")[0], run.size) == ("batch", 6)
    features = [a.name for a in rows.axes.axes if a.size in (37, 41)]
    plan = plan_axes(rows.axes, cluster(*[1e9] * 6), forbidden_axes=features)
    assert plan.splits[run.name] == [1] * 6
    along = [i.axis for i in plan.program.instructions if isinstance(i, Compute) and "mm" in i.target]
    assert set(along) == {run.name}
    rows.check(plan.program, plan.splits, 6, 1e-10)


@pytest.mark.parametrize("part", [0, 1])
def test_a_part_that_is_forbidden_forbids_the_run(rows: Step, part: int) -> None:
    (run,) = (axis for axis in rows.axes.axes if axis.parts)
    name = rows.axes.axes[run.parts[part]].name
    features = [a.name for a in rows.axes.axes if a.size in (37, 41)]
    plan = plan_axes(rows.axes, cluster(*[1e9] * 6), forbidden_axes=[*features, name])
    used = {i.axis for i in plan.program.instructions if isinstance(i, Compute)}
    assert not {name, run.name} & used


@pytest.mark.parametrize("model", ["grouped", "rows"])
def test_random_programs_equal_one_device(model: str, request: pytest.FixtureRequest) -> None:
    whole = request.getfixturevalue(model)
    singles = tuple(axis.name for axis in whole.axes.axes if not axis.parts)
    sharded = 0
    for seed in range(6):
        generator = random.Random(seed)
        ranks = generator.randint(2, 5)
        program = random_program(whole.axes, generator)
        sharded += sum("*" in (i.axis or "") for i in program.instructions if isinstance(i, Compute))
        whole.check(program, random_splits(whole.axes, ranks, generator), ranks, 1e-10)
    assert sharded > 10
    program = random_program(whole.axes, random.Random(0), forbidden_axes=singles)
    assert {i.axis for i in program.instructions if isinstance(i, Compute)} == {None}

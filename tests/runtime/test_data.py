"""Each rank's share of each global batch: together, in order, what one device sees; also after an interruption."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data import DistributedSampler as OneProcess
from torchdata.stateful_dataloader import StatefulDataLoader

import hap
from hap.errors import HapError
from hap.rules import BATCH
from hap.runtime.local_inputs import LocalInput
from tests import models
from tests.runtime.jobs import cluster

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
SIZE = 23


class Numbers(Dataset[dict[str, Any]]):
    """A sample holds its own number."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"number": index, "pair": (torch.full((2,), index), "text")}


@cache
def planned(ranks: int) -> hap.Plan:
    module, args, kwargs = models.mlp(batch=12)
    return hap.plan(module, devices=cluster(ranks), example_inputs=args, example_kwargs=kwargs)


def split(shares: list[int]) -> hap.Plan:
    """A plan for batches of 12, of which the ranks get these shares."""
    plan = planned(len(shares))
    (replica,) = plan.replicas
    stage = msgspec.structs.replace(replica.stages[0], splits={**plan.splits, BATCH: shares})
    return msgspec.structs.replace(plan, replicas=(msgspec.structs.replace(replica, stages=(stage,)),))


def numbers(batch: Any) -> list[int]:
    """Of a rank's share; its tensors agree."""
    text = batch["pair"][1]
    assert set(text) <= {"text"}
    values = batch["number"].tensor.tolist()
    assert batch["pair"][0].tensor.tolist() == [[value, value] for value in values]
    return values


def one_device(epoch: int, size: int, options: dict[str, Any]) -> list[list[int]]:
    """The batches of PyTorch's own sampler for one process."""
    sampler = OneProcess(Numbers(), num_replicas=1, rank=0, shuffle=options["shuffle"], seed=options["seed"])
    sampler.set_epoch(epoch)
    loader = DataLoader(Numbers(), sampler=sampler, batch_size=size, drop_last=options["drop_last"])
    return [batch["number"].tolist() for batch in loader]


def together(loaders: list[Iterator[Any]]) -> list[list[int]]:
    """What all ranks get of each global batch."""
    return [[number for share in shares for number in numbers(share)] for shares in zip(*loaders, strict=True)]


Make = Callable[..., Any]
WORKERS: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}


def loaders(plan: hap.Plan, make: Make, options: dict[str, Any], **more: Any) -> list[tuple[Any, Any]]:
    """For each rank its sampler and loader."""
    made = []
    for rank in range(len(plan.cluster.devices)):
        sampler = hap.DistributedSampler(Numbers(), plan, rank, **options)
        made.append((sampler, make(Numbers(), batch_sampler=sampler, collate_fn=sampler.collate, **more)))
    return made


@given(
    shares=st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any),
    batch_size=st.integers(1, SIZE + 1),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_all_ranks_see_what_one_device_sees(
    shares: list[int], batch_size: int, shuffle: bool, drop_last: bool, epoch: int
) -> None:
    options = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last, "seed": 5}
    made = loaders(split(shares), DataLoader, options)
    for sampler, _ in made:
        sampler.set_epoch(epoch)
    expected = one_device(epoch, batch_size, options)
    assert {len(loader) for _, loader in made} == {len(expected)}
    assert together([iter(loader) for _, loader in made]) == expected


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_loaders_with_workers() -> None:
    options: dict[str, Any] = {"shuffle": True, "drop_last": False, "seed": 5}
    made = loaders(split([7, 0, 5]), DataLoader, options, pin_memory=True, **WORKERS)
    for epoch in range(2):
        for sampler, _ in made:
            sampler.set_epoch(epoch)
        # Batches of as many samples as the plan is for.
        assert together([iter(loader) for _, loader in made]) == one_device(epoch, 12, options)
    share = next(iter(made[1][1]))
    assert share["pair"][0].shape == (0, 2)
    assert share["number"].dtype == torch.int64


@pytest.mark.parametrize("workers", [{}, WORKERS, {**WORKERS, "snapshot_every_n_steps": 3}], ids=str)
def test_an_epoch_goes_on_under_another_plan(workers: dict[str, Any]) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "drop_last": False, "seed": 5}
    for done in (0, 2, 6):
        made = loaders(split([3, 1, 0]), StatefulDataLoader, options, **workers)
        running = []
        for sampler, loader in made:
            sampler.set_epoch(3)
            running.append(iter(loader))
        expected = one_device(3, 4, options)
        assert together([iter([next(one) for _ in range(done)]) for one in running]) == expected[:done]
        if done == len(expected):
            assert all(next(one, None) is None for one in running)
        state = pickle.loads(pickle.dumps(made[1][1].state_dict()))

        again = loaders(split([1, 2]), StatefulDataLoader, options, **workers)
        for sampler, loader in again:
            loader.load_state_dict(state)
            sampler.set_epoch(4 if done == len(expected) else 3)
        if done < len(expected):
            assert together([iter(loader) for _, loader in again]) == expected[done:]
        for sampler, _ in again:
            sampler.set_epoch(4)
        assert together([iter(loader) for _, loader in again]) == one_device(4, 4, options)


def test_a_sampler_goes_on_by_its_own_state(tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "drop_last": False, "seed": 5}
    sampler, other = (hap.DistributedSampler(Numbers(), split([12]), **options) for _ in range(2))
    sampler.set_epoch(2)
    assert sampler.state_dict()["samples"] == 0
    running = iter(sampler)
    expected = one_device(2, 4, options)
    assert [next(running) for _ in range(2)] == expected[:2]
    state = sampler.state_dict()
    hap.save(tmp_path / "checkpoint", {"sampler": sampler})
    hap.load(tmp_path / "checkpoint", {"sampler": other})
    assert other.state_dict() == state
    assert (other.epoch, list(other)) == (2, expected[2:])
    assert list(other) == expected  # the epoch once more
    other.load_state_dict(state)
    other.set_epoch(1)
    assert list(other) == one_device(1, 4, options)
    # Batches of another size go on with the sample that comes next.
    larger = hap.DistributedSampler(Numbers(), split([12]), **options | {"batch_size": 10})
    larger.load_state_dict(state)
    assert [*chain(*larger)] == [*chain(*expected[2:])]
    for name, value in (("size", 24), ("shuffle", False), ("seed", 6)):
        with pytest.raises(HapError, match=f"of another order: its {name} is {value}"):
            sampler.load_state_dict(state | {name: value})


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_wrong_use() -> None:
    plan = split([7, 0, 5])
    with pytest.raises(HapError, match=r"got Stream, which only streams: .*model\.local_inputs"):
        hap.DistributedSampler(Stream(), plan)  # type: ignore[arg-type]
    with pytest.raises(HapError, match="rank: expected 0 to 2"):
        hap.DistributedSampler(Numbers(), plan, 3)
    with pytest.raises(HapError, match="batch_size: expected at least 1"):
        hap.DistributedSampler(Numbers(), plan, batch_size=0)
    model = hap.parallelize(models.mlp()[0], cluster(1))
    with pytest.raises(HapError, match="batch_size: expected the number of samples"):
        hap.DistributedSampler(Numbers(), model)
    sampler = hap.DistributedSampler(Numbers(), model, batch_size=2)
    for options in ({}, {"batch_size": 4, "collate_fn": sampler.collate}):
        with pytest.raises(HapError, match=r"whole batches: give it to the DataLoader as batch_sampler="):
            next(iter(DataLoader(Numbers(), sampler=sampler, **options)))
    # A loader may start its workers afresh, and send them the sampler.
    assert pickle.loads(pickle.dumps(sampler.collate))([Numbers()[3]])["number"].tensor.tolist() == [3]
    for samples in ([], [Numbers()[0]]):
        with pytest.raises(HapError, match="no dimensions"):
            sampler.collate(samples, lambda _: torch.tensor(1.0))
        with pytest.raises(HapError, match="neither a tensor nor a plain constant"):
            sampler.collate(samples, lambda _: object())


def test_local_inputs_in_containers() -> None:
    from transformers import BatchEncoding

    module, args, _ = models.mlp()
    model = hap.parallelize(module, cluster(1))
    whole = {"x": [torch.ones(2), (torch.ones(2, 3), None, "text")], "of": BatchEncoding({"ids": torch.ones(2, 5)})}
    found = model.local_inputs(whole)
    assert isinstance(found["of"], BatchEncoding)
    for value in (found["x"][0], found["x"][1][0], found["of"]["ids"]):
        assert isinstance(value, LocalInput)
    assert found["x"][1][1:] == (None, "text")
    assert model.local_inputs(found)["x"][0] is found["x"][0]
    with pytest.raises(HapError, match="neither a tensor nor a plain constant"):
        model.local_inputs(object())
    for wrong, text in (
        ((torch.ones(()), args[1]), "marked as a share of the batch, but has no dimensions"),
        ((args[0], args[1][:1]), "holds 1 samples of the batch, but"),
    ):
        with pytest.raises(HapError, match=text):
            model(*model.local_inputs(*wrong))
    assert torch.equal(model(*model.local_inputs(*args)), model(*args))

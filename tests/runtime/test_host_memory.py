"""A rank that makes its shards of a module on the meta device holds little beside them.

Two ranks are imagined one after the other, without processes: what is counted is the memory of the tensors. What the
process keeps of what was freed is measured by benches/host_memory.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hap.runtime.along import Along
from hap.runtime.materialise import materialise
from hap.runtime.placing import Layout
from hap.runtime.weights import Weights

LAYERS, WIDTH, SHARES = 60, 64, (3, 1)


class Layer(nn.Module):
    """Two matrices, which one method initialises."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(WIDTH, WIDTH))
        self.down = nn.Parameter(torch.empty(WIDTH, WIDTH))

    def reset_parameters(self) -> None:
        for weight in self.parameters():
            nn.init.kaiming_uniform_(weight)


class Counted(TorchDispatchMode):
    """Counts the bytes of the tensors that are alive, after every operator."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.sizes: list[int] = []
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        for value in tree_leaves((args, kwargs, result)):
            if isinstance(value, torch.Tensor) and not value.is_meta:
                storage = value.untyped_storage()
                if storage._cdata not in self._alive:
                    self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                    self.sizes.append(storage.nbytes())
        self.most = max(self.most, sum(size for _, size in self._alive.values()))
        return result


class Imagined:
    """A rank of two, whose collectives move nothing."""

    size = len(SHARES)

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def run(self, name: str, steps: Any) -> torch.Tensor:
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                return stop.value

    def settle(self, make: Callable[[], Any], what: str) -> Any:
        return make() if self.rank == 0 else None

    def together(self, make: Callable[[], Any], what: str) -> Any:
        return make()


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("stored", [False, True], ids=["initialised", "stored"])
def test_a_rank_holds_its_shards_and_one_part_more(rank: int, dim: int, stored: bool, tmp_path: Path) -> None:
    with torch.device("meta"):
        module = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    units = tuple(share * WIDTH // sum(SHARES) for share in SHARES)
    along = Along(dim, ((1, 1),), units)
    shapes = tuple(along.shape((WIDTH, WIDTH), other) for other in range(len(SHARES)))
    layouts = {name: Layout((WIDTH, WIDTH), shapes, along) for name, _ in module.named_parameters()}
    values = {name: torch.randn(WIDTH, WIDTH) for name in layouts}
    if stored:
        save_file(values, tmp_path / "model.safetensors")
    weights = Weights(tmp_path) if stored else None
    one: Any = Imagined(rank)
    with Counted() as counted:
        materialise(module, copy.deepcopy(module), layouts, one, one, torch.device("cpu"), weights)
    shards = sum(parameter.nbytes for parameter in module.parameters())
    whole = WIDTH * WIDTH * 4
    assert shards == 2 * LAYERS * whole * SHARES[rank] // sum(SHARES)
    assert shards <= counted.most <= 1.1 * shards
    if stored:
        assert counted.most - shards <= whole * SHARES[rank] / sum(SHARES), "one piece more"
        for name, parameter in module.named_parameters():
            assert torch.equal(parameter, values[name].split(units, dim)[rank])
    else:
        together = (2 if rank == 0 else 1) * whole
        # A quarter of a whole tensor and a little: which of its elements were written.
        assert counted.most - shards <= together + whole / 2
        assert sum(size >= whole for size in counted.sizes) == 1, "one memory for all whole tensors"
        if rank == 0:
            assert all(parameter.abs().max() > 0 for parameter in module.parameters())

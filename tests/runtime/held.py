"""Torch's own count of the bytes that tensors hold, and steps that are counted."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

import hap
from hap.balance import MemoryParts
from hap.runtime import group as group_module
from hap.runtime.group import Group
from tests.models import Built


class Held(TorchDispatchMode):
    """While it is entered: bytes of the memory that tensors hold, counted once however many view it.

    What a communication library makes and frees inside a collective is its own affair.

    Attributes:
        now: bytes of all tensors that were given or made, as far as they are alive.
        peak: the most so far.
    """

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()
        self._see(given)

    def _see(self, made: Any) -> None:
        for tensor in tree_leaves(made):
            if not isinstance(tensor, torch.Tensor):
                continue
            memory = tensor.untyped_storage()
            if memory._cdata not in self._seen:
                self._seen.add(memory._cdata)
                self.now += memory.nbytes()
                weakref.finalize(memory, self._forget, memory._cdata, memory.nbytes())
        self.peak = max(self.peak, self.now)

    def _forget(self, memory: int, size: int) -> None:
        self._seen.remove(memory)
        self.now -= size

    def __enter__(self) -> Held:
        issue = Group.issue

        def unseen(group: Group, requested: Any, **options: Any) -> Any:
            with _disable_current_modes():
                answer, works = issue(group, requested, **options)
            self._see(answer)
            return answer, works

        wait = group_module.wait

        def unseen_wait(works: Any) -> None:
            with _disable_current_modes():
                wait(works)

        self._patches = [
            mock.patch.object(Group, "issue", unseen),
            mock.patch.object(group_module, "wait", unseen_wait),
        ]
        for patch in self._patches:
            patch.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for patch in self._patches:
            patch.stop()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        self._see(made)
        return made


def count(
    built: Built,
    cluster: hap.Cluster,
    make_optimiser: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer] = torch.optim.Adam,
    **options: Any,
) -> tuple[MemoryParts, MemoryParts]:
    """What this rank holds in a step, the optimiser's included, as planned under these options: as predicted, and as
    counted.

    Counted ``activations`` are all that is held beside parameters and optimiser's state at the peak, gradients and
    buffers included. The step is the second, so that the optimiser's state is there.
    """
    module, args, kwargs = built
    like = make_optimiser([torch.nn.Parameter(torch.empty(1))])
    model: Any = hap.parallelize(module, cluster, args, kwargs, optimiser=like, **options)
    optimiser = make_optimiser(model.parameters())

    def step() -> None:
        loss = model(*args, **kwargs)
        (loss if isinstance(loss, torch.Tensor) else loss.loss).backward()

    step()
    optimiser.step()
    optimiser.zero_grad()
    given = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)]
    stored = [*model.parameters(), *model.buffers()]
    state = [value for one in optimiser.state.values() for value in one.values()]
    with Held([*given, *stored, *state]) as held:
        step()
        optimiser.step()
    parameters, optimised = Held(stored).now, Held(state).now
    rank = dist.get_rank() if dist.is_initialized() else 0
    return model.plan.memory_parts[rank], MemoryParts(
        parameters=parameters,
        gradients=0.0,
        optimiser=optimised,
        activations=held.peak - parameters - optimised,
        buffers=0.0,
    )

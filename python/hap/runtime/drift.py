"""Keeps what every device holds whole the same on all of them: parameters, their optimiser's state, buffers.

Devices of unlike kinds round differently, and those of one kind do where a kernel adds in no fixed order. A gradient
that comes out of a collective has the same bits on all ranks; one that each rank computes for itself has not, and the
optimiser's step itself is computed by each rank. So what is whole on every rank drifts apart, a little more with each
step:

* on like devices where no collective ends the gradient of a parameter, and in buffers;
* on unlike ones in everything.

Every so many steps of an optimiser rank 0's values are therefore broadcast. That takes less than the reduction of the
gradients takes in one step, three times that with Adam's state. How far the others had drifted is reported.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from hap.errors import HapError
from hap.profiling.machine import machine
from hap.runtime.accumulate import makers_of, summand
from hap.runtime.requests import AllReduce, Broadcasts, Steps
from hap.runtime.schedule import arrange

if TYPE_CHECKING:
    from hap.program import Program
    from hap.rules import AxisGraph
    from hap.runtime.agree import Control
    from hap.runtime.group import Group

logger = logging.getLogger("hap")

BUCKET = 2**25
"""About so many bytes are broadcast at once."""


@dataclass(frozen=True)
class Drift:
    """How far values that should be the same on all ranks had drifted from rank 0's when they were broadcast.

    Attributes:
        step: of the optimiser, counted from 1.
        name: the tensor that drifted most, by ``relative``; ``exp_avg of layers.0.weight`` for an optimiser's state.
        absolute: the largest difference of one of its elements.
        relative: that over the largest of its elements.
        tensors: how many tensors differed at all, of how many were broadcast.
    """

    step: int
    name: str
    absolute: float
    relative: float
    tensors: tuple[int, int]


class Equaliser:
    """Broadcasts what one parallel module holds whole.

    Args:
        interval: steps of an optimiser between broadcasts; ``None`` for none.
        alike: whether all ranks compute with the same kernels.
        state: the module's parameters and buffers by name.

    Attributes:
        latest: what the latest broadcast found.
    """

    def __init__(self, interval: int | None, *, alike: bool, state: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        self.interval, self.alike, self.state = interval, alike, state
        self.latest: Drift | None = None
        self._group: Group | None = None
        self._names: dict[str, None] = {}
        self._steps: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        if interval is not None:
            _watch()
            _EQUALISERS[next(_NUMBERS)] = self

    def add(self, axes: AxisGraph, program: Program, group: Group) -> None:
        """Watch what may drift under this program, which these ranks run."""
        if self.interval is not None and group.size > 1:
            self._group = group
            self._names.update(dict.fromkeys(drifting(axes, program, alike=self.alike)))

    def stepped(self, optimiser: torch.optim.Optimizer) -> None:
        """Called after each step of any optimiser, on all ranks."""
        step = self._steps[optimiser] = self._steps.get(optimiser, 0) + 1
        if self.interval is None or step % self.interval or self._group is None:
            return
        state = self.state()
        trained = {id(one) for entry in optimiser.param_groups for one in entry["params"]}
        if trained.isdisjoint(id(value) for value in state.values()):
            return
        tensors: dict[str, torch.Tensor] = {}
        for name in self._names:
            value = state[name]
            if id(value) in trained:
                tensors |= {f"{key} of {name}": one for key, one in _kept(optimiser, value)}
            if id(value) in trained or not isinstance(value, torch.nn.Parameter):
                tensors[name] = value.detach()
        if tensors:
            self.latest = equalise(tensors, step, self._group)
            if self._group.rank == 0:
                logger.info(
                    "step %d: of %d tensors that all ranks hold whole %d had drifted apart, most of all %s by %.3g, "
                    "%.3g of its largest element; all are rank 0's now",
                    step, self.latest.tensors[1], self.latest.tensors[0], self.latest.name, self.latest.absolute,
                    self.latest.relative,
                )  # fmt: skip


def check_interval(interval: int | None) -> None:
    """Raises ``HapError`` unless it is ``None`` or a number of steps."""
    if interval is not None and (isinstance(interval, bool) or not isinstance(interval, int) or interval < 1):
        raise HapError(f"drift_interval: expected a number of steps, 1 or more, or None for never, got {interval!r}")


def computes_alike(control: Control, device: torch.device) -> bool:
    """Whether all ranks compute with the same kernels, as far as can be seen. Called by all ranks."""
    here = machine(device)
    switches = (torch.backends.mkldnn.enabled, torch.get_float32_matmul_precision())
    return len(set(control.gather((here.name, here.threads, switches), "comparing kernels"))) == 1


def drifting(axes: AxisGraph, program: Program, *, alike: bool) -> list[str]:
    """Names of the parameters and buffers that every rank holds whole and that may drift apart."""
    graph, schedule = axes.graph, arrange(axes, program)
    whole = {given.gains.tensor for given in schedule.inputs if given.gains.placements == ("R",)}
    names = {
        entry.name: entry for entry in graph.inputs if entry.kind in ("parameter", "buffer") and entry.tensor in whole
    }
    if not alike:
        return list(names)
    makers = makers_of(schedule.backward)
    own = {
        graph.outputs[one.output].name for one in schedule.gradients if summand(axes, makers, one.needs) == one.needs
    }
    own |= {graph.outputs[one.output].name for one in schedule.outputs if graph.outputs[one.output].kind == "buffer"}
    return [name for name in names if name in own]


def equalise(tensors: Mapping[str, torch.Tensor], step: int, group: Group) -> Drift:
    """Make tensors, the same ones on all ranks, what they are on rank 0, in place. A collective."""
    found = group.run("broadcast of what all ranks hold whole", equalise_steps(list(tensors.values())))
    absolute, relative = found.tolist()
    names = list(tensors)
    worst = max(range(len(names)), key=lambda at: (relative[at], absolute[at]))
    differing = sum(one > 0.0 for one in absolute)
    return Drift(step, names[worst], absolute[worst], relative[worst], (differing, len(names)))


@torch.no_grad()
def equalise_steps(tensors: Sequence[torch.Tensor]) -> Steps:
    """See :func:`equalise`. The result has two rows, absolute and relative, with a column for each tensor."""
    found = torch.zeros(2, len(tensors), dtype=torch.float64, device=tensors[0].device)
    for bucket in _buckets(tensors):
        flat = torch.cat([tensors[at].reshape(-1) for at in bucket])
        yield Broadcasts(((0, flat),))
        for at, part in zip(bucket, torch.split(flat, [tensors[at].numel() for at in bucket]), strict=True):
            root = part.view(tensors[at].shape)
            found[:, at] = _difference(tensors[at], root)
            tensors[at].copy_(root)
    yield AllReduce(found, "max")
    return found


def _difference(value: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
    """The largest difference of an element from the root's, and that over the root's largest."""
    if not (value.is_floating_point() or value.is_complex()):
        value, root = value.double(), root.double()  # truth values have no difference, and bytes none below zero
    apart = (value != root) & ~(value.isnan() & root.isnan())
    largest = torch.where(apart, (value - root).abs(), 0.0).nan_to_num(nan=torch.inf, posinf=torch.inf).max()
    relative = torch.where(largest > 0.0, largest / root.abs().max(), 0.0).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return torch.stack([largest, relative])


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Indices of tensors of one type and place, in order, about ``BUCKET`` bytes of them at a time."""
    kinds: dict[object, list[int]] = {}
    for at, tensor in enumerate(tensors):
        if tensor.numel():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(at)
    for chosen in kinds.values():
        bucket: list[int] = []
        for at in chosen:
            bucket.append(at)
            if sum(tensors[one].nbytes for one in bucket) >= BUCKET:
                yield bucket
                bucket = []
        if bucket:
            yield bucket


def _kept(optimiser: torch.optim.Optimizer, parameter: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
    """What an optimiser keeps for a parameter beside it, and that is computed; by name."""
    kept = optimiser.state.get(parameter, {})
    for key in sorted(kept, key=str):
        value = kept[key]
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.device == parameter.device:
            yield str(key), value.detach()


# In the order in which they were made, which is the same on all ranks.
_EQUALISERS: weakref.WeakValueDictionary[int, Equaliser] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


@cache
def _watch() -> None:
    """From now on, look after every optimiser's steps."""
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimiser: torch.optim.Optimizer, *_: Any) -> None:
    for number in sorted(_EQUALISERS):
        if (equaliser := _EQUALISERS.get(number)) is not None:
            equaliser.stepped(optimiser)

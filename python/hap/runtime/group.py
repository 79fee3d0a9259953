"""The ranks of a job: carries the collectives' requests out through :mod:`torch.distributed`.

The only file that calls the communicating functions of ``torch.distributed``, whose names differ between versions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from hap.errors import CommunicationError
from hap.runtime.failure import entering, failed, leaving
from hap.runtime.requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcasts,
    Pending,
    Reduces,
    ReduceScatter,
    Request,
    Steps,
)

# Renamed in torch 2.13, where the old names warn.
_all_gather_single: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


_MOVABLE = {1: torch.uint8, 2: torch.bfloat16, 4: torch.int32, 8: torch.int64}
"""By bytes of an element, a type that every backend knows: neither gloo nor NCCL does those of 16 bits that count."""

_GROUPING = {"nccl"}
"""Backends that begin several operations at once."""


def _movable(buffer: torch.Tensor) -> torch.Tensor:
    """The buffer's memory in an element type that every backend can move."""
    return _summable(buffer) if buffer.is_complex() else buffer.view(_MOVABLE[buffer.dtype.itemsize])


def _summable(buffer: torch.Tensor) -> torch.Tensor:
    """The buffer's memory in an element type that every backend can add."""
    return torch.view_as_real(buffer) if buffer.is_complex() else buffer


class Group:
    """The ranks that run a plan, in the order of its devices.

    Args:
        process_group: their process group; ``None`` for a job of one process without one.
    """

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        self.process_group = process_group
        self.rank = 0 if process_group is None else dist.get_rank(process_group)
        self.size = 1 if process_group is None else dist.get_world_size(process_group)

    def run(self, name: str, steps: Steps) -> torch.Tensor:
        """Carry the requests of ``steps`` out and return its result.

        Raises:
            CommunicationError: the backend failed; names ``name`` and the ranks, and says where the others are.
        """
        return _Run(self, name, steps, asynchronous=False).wait()

    def failed(self, name: str, error: RuntimeError) -> CommunicationError:
        """With the rank in the job, as that of a group of some means nothing to anybody."""
        return failed(name, dist.get_rank(), dist.get_world_size(), error)

    def among(self, ranks: tuple[int, ...]) -> Group | None:
        """Some of the ranks, in ascending order, as a group; ``None`` on the others. A collective of all of them."""
        group = self.process_group
        if group is None or len(ranks) == self.size:
            return self
        backend = group._get_backend(next(iter(group._device_types)))
        members = [dist.get_global_rank(group, rank) for rank in ranks]
        made = dist.new_group(members, timeout=backend.options._timeout)
        return Group(made) if self.rank in ranks else None

    def close(self) -> None:
        """End a group that :meth:`among` has made; called by its ranks, once none is in a collective of it."""
        if self.process_group is not None:
            assert self.process_group is not dist.group.WORLD, "that of the job stays"
            dist.destroy_process_group(self.process_group)

    def fill(self, name: str, source: int, buffer: torch.Tensor) -> Pending:
        """Begin to fill a buffer of all ranks from that of ``source``."""

        def steps() -> Steps:
            yield Broadcasts(((source, buffer),))
            return buffer

        return self.start(name, steps())

    def start(self, name: str, steps: Steps) -> Pending:
        """Begin to carry the requests of ``steps`` out; whoever waits for the end gets its result, or the error."""
        return _Run(self, name, steps, asynchronous=True)

    def request(self, request: Request) -> Any:
        """Carry one request out, to its end, and return its answer."""
        answer, works = self.issue(request, asynchronous=False)
        wait(works)
        return answer

    def issue(self, request: Request, *, asynchronous: bool) -> tuple[Any, list[Any]]:
        """Ask the backend for a request. Its answer, valid once what is under way, listed, has been waited for."""
        group = self.process_group
        assert group is not None, "a job of one process moves nothing"
        match request:
            case AllGather(buffer):
                gathered = buffer.new_empty(self.size * buffer.numel())
                work = _all_gather_single(_movable(gathered), _movable(buffer), group=group, async_op=asynchronous)
                return gathered, [work]
            case ReduceScatter(buffer):
                part = buffer.new_empty(buffer.numel() // self.size)
                work = _reduce_scatter_single(_summable(part), _summable(buffer), group=group, async_op=asynchronous)
                return part, [work]
            case AllToAll(buffer, send, receive):
                received = buffer.new_empty(sum(receive))
                if buffer.is_complex():
                    send, receive = tuple(2 * n for n in send), tuple(2 * n for n in receive)
                out, into = _movable(buffer).reshape(-1), _movable(received).reshape(-1)
                work = dist.all_to_all_single(into, out, list(receive), list(send), group=group, async_op=asynchronous)
                return received, [work]
            case Broadcasts(buffers):
                return None, self._together(
                    buffers,
                    lambda rank, one: dist.broadcast(_movable(one), group_src=rank, group=group, async_op=True),
                )
            case Reduces(buffers):
                return None, self._together(
                    buffers, lambda rank, one: dist.reduce(_summable(one), group_dst=rank, group=group, async_op=True)
                )
            case AllReduce(buffer, op):
                reduction = dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX
                return None, [dist.all_reduce(_summable(buffer), op=reduction, group=group, async_op=asynchronous)]

    def _together(
        self, buffers: Sequence[tuple[int, torch.Tensor]], begin: Callable[[int, torch.Tensor], Any]
    ) -> list[Any]:
        """Begin one operation for each buffer, with the rank beside it. NCCL carries all out at once, as a group."""
        group = self.process_group
        assert group is not None
        device = buffers[0][1].device
        if len(buffers) == 1 or group._get_backend(device).name() not in _GROUPING:
            return [begin(rank, buffer) for rank, buffer in buffers]
        with _coalescing_manager(group=group, device=device, async_ops=True) as together:
            for rank, buffer in buffers:
                begin(rank, buffer)
        return [together]


def wait(works: list[Any]) -> None:
    """Wait for all that is under way."""
    for work in works:
        if work is not None:
            work.wait()


class _Run:
    """Steps under way, up to their next request or their end.

    Args:
        group: the ranks.
        name: stands in errors.
        steps: what is carried out.
        asynchronous: whether to return while a request is under way.
    """

    def __init__(self, group: Group, name: str, steps: Steps, *, asynchronous: bool) -> None:
        self._group, self._name, self._steps, self._asynchronous = group, name, steps, asynchronous
        # The request keeps its buffers alive while the backend works on them.
        self._under_way: tuple[Request, Any, list[Any]] | None = None
        self._result: torch.Tensor | None = None
        if not asynchronous:
            entering(name)
        self._advance(None)

    def _advance(self, answer: Any) -> None:
        """On to the next request, or the result."""
        try:
            request = self._steps.send(answer)
        except StopIteration as stop:
            self._under_way, self._result = None, stop.value
            return
        try:
            self._under_way = (request, *self._group.issue(request, asynchronous=self._asynchronous))
        except RuntimeError as error:
            raise self._group.failed(self._name, error) from error

    def wait(self) -> torch.Tensor:
        """See :class:`hap.runtime.requests.Pending`."""
        entering(self._name)
        while self._under_way is not None:
            answer, works = self._under_way[1:]
            try:
                wait(works)
            except RuntimeError as error:
                raise self._group.failed(self._name, error) from error
            # What was sent is freed before what has arrived is unpacked.
            del works
            self._under_way = None
            self._advance(answer)
        leaving()
        assert self._result is not None, "a collective is waited for once"
        result, self._result = self._result, None
        return result

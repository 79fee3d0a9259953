"""The ranks of a job: carries the collectives' requests out through :mod:`torch.distributed`.

The only file that calls the communicating functions of ``torch.distributed``, whose names differ between versions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from hap.runtime.failure import entering, failed, leaving
from hap.runtime.requests import AllGather, AllReduce, AllToAll, Broadcasts, Reduces, ReduceScatter, Request, Steps

# Renamed in torch 2.13, where the old names warn.
_all_gather_single: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _movable(buffer: torch.Tensor) -> torch.Tensor:
    """The buffer's memory in an element type that every backend can move."""
    if buffer.dtype.itemsize == 1:
        return buffer.view(torch.uint8)
    return _summable(buffer)


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
        answer: Any = None
        entering(name)
        while True:
            try:
                request = steps.send(answer)
            except StopIteration as stop:
                leaving()
                return stop.value  # type: ignore[no-any-return]
            try:
                answer = self.request(request)
            except RuntimeError as error:
                raise failed(name, self.rank, self.size, error) from error

    def start(self, buffer: torch.Tensor) -> Callable[[], object]:
        """Begins an all-reduce of a buffer in place; what is returned waits for its end."""
        assert self.process_group is not None, "a job of one process moves nothing"
        work = dist.all_reduce(buffer, group=self.process_group, async_op=True)
        return lambda: work is not None and work.wait()

    def request(self, request: Request) -> Any:
        """Carry one request out, to its end."""
        group = self.process_group
        assert group is not None, "a job of one process moves nothing"
        match request:
            case AllGather(buffer):
                gathered = buffer.new_empty(self.size * buffer.numel())
                _all_gather_single(_movable(gathered), _movable(buffer), group=group)
                return gathered
            case ReduceScatter(buffer):
                part = buffer.new_empty(buffer.numel() // self.size)
                _reduce_scatter_single(_summable(part), _summable(buffer), group=group)
                return part
            case AllToAll(buffer, send, receive):
                received = buffer.new_empty(sum(receive))
                if buffer.is_complex():
                    send, receive = tuple(2 * n for n in send), tuple(2 * n for n in receive)
                out, into = _movable(buffer).reshape(-1), _movable(received).reshape(-1)
                dist.all_to_all_single(into, out, list(receive), list(send), group=group)
                return received
            case Broadcasts(buffers):
                works = [
                    dist.broadcast(_movable(buffer), group_src=source, group=group, async_op=True)
                    for source, buffer in buffers
                ]
            case Reduces(buffers):
                works = [
                    dist.reduce(_summable(buffer), group_dst=destination, group=group, async_op=True)
                    for destination, buffer in buffers
                ]
            case AllReduce(buffer, op):
                reduction = dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX
                works = [dist.all_reduce(_summable(buffer), op=reduction, group=group, async_op=True)]
        for work in works:
            if work is not None:
                work.wait()
        return None

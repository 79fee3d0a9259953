"""Runs the lowered graphs of all ranks in one process, in lock-step.

Each rank's graph is interpreted up to its next collective; when all ranks stand at one, the requests of their steps are
answered in memory, and all go on. These are the very graphs and the very packing that real ranks run; only
``torch.distributed`` is left out.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from hap.runtime import collectives
from hap.runtime.collectives import STEPS
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

Run: TypeAlias = Generator[Request, Any, Any]


class Here:
    """Stands for the group in a graph that is interpreted: knows the rank, moves nothing itself."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def run(self, name: str, steps: Steps) -> torch.Tensor:
        """Not reached: the interpreter takes the steps of collectives itself."""
        raise AssertionError(f"{name} was called in a lock-step run")

    def start(self, name: str, steps: Steps) -> Pending:
        """Not reached either."""
        raise AssertionError(f"{name} was started in a lock-step run")


class _Answered:
    """A collective that was started, with its request and the answer."""

    def __init__(self, steps: Steps, request: Request, answer: Any) -> None:
        self._steps = steps
        self._answer = answer
        self._buffers = [(one, one.clone()) for one in _buffers_of(request)]

    def wait(self) -> torch.Tensor:
        """Its result. Asserts that nobody wrote meanwhile to memory that a real rank's backend still works on."""
        for buffer, before in self._buffers:
            assert torch.equal(buffer, before), "memory was written to while a collective was under way"
        self._buffers.clear()
        try:
            self._steps.send(self._answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        raise AssertionError("a collective that asks twice")


class _Done:
    """A collective that moved nothing."""

    def __init__(self, result: torch.Tensor) -> None:
        self._result = result

    def wait(self) -> torch.Tensor:
        """Its result."""
        return self._result


def interpret(graph: fx.Graph, arguments: Sequence[Any], rank: int) -> Run:
    """The graph's run on one rank as a generator that yields the requests of its collectives.

    Values are freed after their last use. Returns what the graph returns.
    """
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for used in node.all_input_nodes:
            last[used] = node
    values: dict[fx.Node, Any] = {}
    inputs = iter(arguments)
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = next(inputs)
            continue
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "output":
            return args[0]
        assert node.op == "call_function", f"{node.op} in a lowered graph"
        local = {key: value for key, value in kwargs.items() if key not in ("name", "group")}
        if node.target in STEPS:
            values[node] = yield from STEPS[node.target](*args, **local, rank=rank)
        elif node.target is collectives.start:
            values[node] = yield from _start(STEPS[getattr(collectives, args[0])](*args[1:], **local, rank=rank))
        else:
            values[node] = node.target(*args, **kwargs)
        for used in node.all_input_nodes:
            if last[used] is node:
                del values[used]
    raise AssertionError("a graph without an output")


def _start(steps: Steps) -> Generator[Request, Any, Pending]:
    """Ask for what a collective requests; what is unpacked later, as real ranks do."""
    try:
        request = next(steps)
    except StopIteration as stop:
        return _Done(stop.value)
    answer = yield request
    return _Answered(steps, request, answer)


def _buffers_of(request: Request) -> list[torch.Tensor]:
    """The bytes of all memory that a request names: also of padding, which may hold any."""
    if isinstance(request, (Broadcasts, Reduces)):
        buffers = [buffer for _, buffer in request.buffers]
    else:
        buffers = [request.buffer]
    return [buffer.reshape(-1).view(torch.uint8) for buffer in buffers]


def run(runs: Sequence[Run]) -> list[Any]:
    """Take all ranks' runs to their ends in lock-step and return their results, by rank.

    Asserts that all ranks ask for the same kind of request at the same time, as collectives need.
    """
    results: list[Any] = [None] * len(runs)
    answers: list[Any] = [None] * len(runs)
    while True:
        requests: list[Request] = []
        ended = 0
        for rank, steps in enumerate(runs):
            try:
                requests.append(steps.send(answers[rank]))
            except StopIteration as stop:
                results[rank] = stop.value
                ended += 1
        if ended:
            assert not requests, f"{ended} ranks have ended while {len(requests)} wait in a collective"
            return results
        answers = exchange(requests)


def exchange(requests: Sequence[Request]) -> list[Any]:
    """Answer one request of every rank in memory."""
    kinds = {type(request).__name__ for request in requests}
    assert len(kinds) == 1, f"ranks stand in different collectives: {sorted(kinds)}"
    size = len(requests)
    match requests[0]:
        case AllGather():
            whole = torch.cat([request.buffer for request in requests])  # type: ignore[union-attr]
            return [whole.clone() for _ in requests]
        case ReduceScatter():
            total = _sum([request.buffer for request in requests])  # type: ignore[union-attr]
            return [part.clone() for part in total.chunk(size)]
        case AllToAll():
            parts = [torch.split(r.buffer, list(r.send)) for r in requests if isinstance(r, AllToAll)]
            received = [[parts[source][rank] for source in range(size)] for rank in range(size)]
            for request, pieces in zip(requests, received, strict=True):
                assert isinstance(request, AllToAll)
                assert tuple(piece.numel() for piece in pieces) == request.receive, "sent and awaited sizes differ"
            return [torch.cat(pieces) for pieces in received]
        case AllReduce():
            buffers = [r.buffer for r in requests if isinstance(r, AllReduce)]
            ops = {r.op for r in requests if isinstance(r, AllReduce)}
            assert len(ops) == 1, f"ranks reduce differently: {sorted(ops)}"
            total = _sum(buffers) if ops == {"sum"} else torch.stack(buffers).amax(0)
            for buffer in buffers:
                buffer.copy_(total)
        case Broadcasts():
            for at, source in _matched([r.buffers for r in requests if isinstance(r, Broadcasts)]):
                for buffer in at:
                    buffer.copy_(at[source])
        case Reduces():
            for at, destination in _matched([r.buffers for r in requests if isinstance(r, Reduces)]):
                total = _sum(at)
                for rank, buffer in enumerate(at):
                    buffer.copy_(total if rank == destination else torch.full_like(buffer, -77))  # spoilt
    return [None] * size


def _matched(
    buffers: Sequence[tuple[tuple[int, torch.Tensor], ...]],
) -> list[tuple[list[torch.Tensor], int]]:
    """For each entry its buffers by rank, and the rank that all name."""
    matched = []
    for entries in zip(*buffers, strict=True):
        roots = {root for root, _ in entries}
        assert len(roots) == 1, f"ranks name different roots: {sorted(roots)}"
        matched.append(([buffer for _, buffer in entries], roots.pop()))
    return matched


def _sum(buffers: Sequence[torch.Tensor]) -> torch.Tensor:
    total = buffers[0].clone()
    for buffer in buffers[1:]:
        assert buffer.shape == total.shape, "ranks add buffers of different sizes"
        total += buffer
    return total

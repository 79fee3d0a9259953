"""The conversions of a tensor between placements, uneven shares and empty ones included.

Each conversion works along one occurrence of an axis (:mod:`hap.rules.pieces`), so that any axis of any dimension can
be sharded. A conversion is written once, as *steps*: a generator that packs, yields a request
(:mod:`hap.runtime.requests`) for what has to move, and unpacks. Real ranks carry the requests out through
:mod:`torch.distributed` (:class:`hap.runtime.group.Group`), the lock-step run in memory
(:mod:`hap.runtime.lockstep`): both pack the same way. While a request is under way, steps hold nothing that is not part
of it, but for the rank's own share in a gather along an inner axis; what was sent is freed before what has arrived is
unpacked.

The functions named after conversions carry one out to its end. Lowered graphs :func:`start` conversions as soon as the
operand is there and :func:`wait` for them at the first use of the result. None writes to the tensor that it is given,
but it must stay as it is until the end: what is sent may be its own memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from hap.program import Implementation
from hap.rules import pieces
from hap.runtime.along import Along, common, crossing
from hap.runtime.packing import (
    assemble,
    counts_at,
    flattened,
    packed,
    placed,
    selected,
    together,
    unpacked,
    write_shares,
)
from hap.runtime.requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcasts,
    Pending,
    Ranks,
    Reduces,
    ReduceScatter,
    Steps,
)


def all_gather_steps(
    tensor: torch.Tensor, *, shape: Sequence[int], along: Along, implementation: Implementation, rank: int
) -> Steps:
    """See :func:`all_gather`."""
    whole = math.prod(shape)
    if whole == 0:
        return tensor.new_empty(tuple(shape))
    counts, leads = along.counts(shape), along.leads(shape)
    if implementation == "padded":
        most = max(counts)
        if counts[rank] == most:
            buffer = flattened(tensor)
        else:
            buffer = tensor.new_empty(most)
            buffer[: counts[rank]].view(tensor.shape).copy_(tensor)
        del tensor
        gathered = yield AllGather(buffer)
        del buffer
        if leads and min(counts) == most:
            return gathered.view(tuple(shape))  # type: ignore[no-any-return]
        return assemble([gathered[r * most : r * most + count] for r, count in enumerate(counts)], along, shape)
    if implementation == "grouped":
        if leads:
            flat = tensor.new_empty(whole)
            parts = list(torch.split(flat, list(counts)))
            parts[rank].view(tensor.shape).copy_(tensor)
        else:
            parts = [flattened(tensor) if r == rank else tensor.new_empty(count) for r, count in enumerate(counts)]
        del tensor
        yield Broadcasts(tuple((source, part) for source, part in enumerate(parts) if counts[source]))
        return flat.view(tuple(shape)) if leads else assemble(parts, along, shape)
    if implementation == "exchange":
        if leads:
            send = flattened(tensor.expand(len(counts), *tensor.shape))
            del tensor
            flat = yield AllToAll(send, (counts[rank],) * len(counts), counts)
            return flat.view(tuple(shape))  # type: ignore[no-any-return]
        # The rank's own share is put into its place with what arrives: it need not go round.
        own = flattened(tensor)
        send = flattened(own.expand(len(counts) - 1, -1))
        if len(counts) > 2 and tensor.is_contiguous():
            # What is not sent itself may change on the way.
            own = own.clone()
        del tensor
        awaited = tuple(0 if r == rank else count for r, count in enumerate(counts))
        flat = yield AllToAll(send, tuple(0 if r == rank else counts[rank] for r in range(len(counts))), awaited)
        del send
        parts = list(torch.split(flat, list(awaited)))
        parts[rank] = own
        return assemble(parts, along, shape)
    raise AssertionError(f"no such all-gather: {implementation}")


def all_gather(
    tensor: torch.Tensor, *, name: str, shape: Sequence[int], along: Along, implementation: Implementation, group: Ranks
) -> torch.Tensor:
    """``Shard`` to ``Replicate``: every rank gets the whole tensor.

    Args:
        tensor: this rank's share.
        name: the tensor's name in the graph, for errors.
        shape: shape of the whole tensor.
        along: the occurrence that is gathered.
        implementation: ``padded`` (shares padded to the largest), ``grouped`` (one broadcast for each rank with a
            share) or ``exchange`` (an uneven all-to-all).
        group: the ranks.
    """
    steps = all_gather_steps(tensor, shape=shape, along=along, implementation=implementation, rank=group.rank)
    return group.run(_title("all_gather", name, implementation), steps)


def reduce_scatter_steps(
    tensor: torch.Tensor, *, shape: Sequence[int], along: Along, implementation: Implementation, rank: int
) -> Steps:
    """See :func:`reduce_scatter`."""
    if tensor.numel() == 0:
        return tensor.new_empty(tuple(shape))
    counts = along.counts(shape)
    if implementation == "padded":
        most = max(counts)
        if min(counts) == most:
            buffer = packed(tensor, along)
        else:
            buffer = tensor.new_empty(len(counts) * most)
            parts = [part[:count] for part, count in zip(torch.split(buffer, most), counts, strict=True)]
            write_shares(tensor, along, parts)
            # Zeros, as sums of whatever lies there may be slow.
            for place, count in enumerate(counts):
                if count < most:
                    buffer[place * most + count : (place + 1) * most].zero_()
            del parts
        del tensor
        flat = yield ReduceScatter(buffer)
        del buffer
        # Not a view, which would keep the padding.
        own = flat if counts[rank] == most else flat[: counts[rank]].clone()
        return own.view(tuple(shape))  # type: ignore[no-any-return]
    if implementation == "grouped":
        # Fresh buffers: a reduction writes into those of all ranks.
        buffers = [tensor.new_empty(count) for count in counts]
        write_shares(tensor, along, buffers)
        own = buffers[rank]
        del tensor
        yield Reduces(tuple((destination, buffer) for destination, buffer in enumerate(buffers) if counts[destination]))
        return own.view(tuple(shape))
    if implementation == "exchange":
        send = packed(tensor, along)
        del tensor
        flat = yield AllToAll(send, counts, (counts[rank],) * len(counts))
        del send
        return flat.view(len(counts), counts[rank]).sum(0, dtype=flat.dtype).view(tuple(shape))  # type: ignore[no-any-return]
    raise AssertionError(f"no such reduce-scatter: {implementation}")


def reduce_scatter(
    tensor: torch.Tensor, *, name: str, shape: Sequence[int], along: Along, implementation: Implementation, group: Ranks
) -> torch.Tensor:
    """``Partial`` to ``Shard``: every rank gets its share of the sum over the ranks.

    Args:
        tensor: this rank's summand, of the whole shape.
        name: the tensor's name in the graph, for errors.
        shape: shape of this rank's share.
        along: the occurrence that is scattered.
        implementation: ``padded`` (shares padded to the largest), ``grouped`` (one reduction for each rank with a
            share) or ``exchange`` (an uneven all-to-all and a local sum).
        group: the ranks.
    """
    steps = reduce_scatter_steps(tensor, shape=shape, along=along, implementation=implementation, rank=group.rank)
    return group.run(_title("reduce_scatter", name, implementation), steps)


def all_to_all_steps(tensor: torch.Tensor, *, shape: Sequence[int], source: Along, target: Along, rank: int) -> Steps:
    """See :func:`all_to_all`."""
    assert source != target, "an all-to-all goes between two axes of one tensor"
    if 0 in tensor.shape[: source.dim] + tensor.shape[source.dim + 1 :]:
        return tensor.new_empty(tuple(shape))
    if source.dim == target.dim:
        order, places = crossing(source, target, rank, tensor.device)
        send, sizes = selected(tensor, source.dim, order), counts_at(tensor.shape, source.dim, order)
        del tensor
        flat = yield AllToAll(send, sizes, counts_at(shape, source.dim, places))
        del send
        return placed(flat, shape, source.dim, places)
    send, sizes = packed(tensor, target), target.counts(tensor.shape)
    del tensor
    flat = yield AllToAll(send, sizes, source.counts(shape))
    del send
    return unpacked(flat, source, shape)


def all_to_all(
    tensor: torch.Tensor, *, name: str, shape: Sequence[int], source: Along, target: Along, group: Ranks
) -> torch.Tensor:
    """``Shard`` to ``Shard`` of another occurrence.

    Args:
        tensor: this rank's share along the source.
        name: the tensor's name in the graph, for errors.
        shape: shape of this rank's share along the target.
        source: the occurrence that becomes whole.
        target: the occurrence that becomes split.
        group: the ranks.
    """
    steps = all_to_all_steps(tensor, shape=shape, source=source, target=target, rank=group.rank)
    return group.run(_title("all_to_all", name), steps)


def re_split_steps(tensor: torch.Tensor, *, shape: Sequence[int], source: Along, target: Along, rank: int) -> Steps:
    """See :func:`re_split`."""
    assert source[:2] == target[:2], "a re-split stays with one axis of one dimension"
    if source == target:
        return tensor
    if 0 in tensor.shape[: source.dim] + tensor.shape[source.dim + 1 :]:
        return tensor.new_empty(tuple(shape))
    sent = source._replace(units=tuple(common(source, rank, target, other) for other in range(len(target.units))))
    received = target._replace(units=tuple(common(target, rank, source, other) for other in range(len(source.units))))
    send, sizes = packed(tensor, sent), sent.counts(tensor.shape)
    del tensor
    flat = yield AllToAll(send, sizes, received.counts(shape))
    del send
    return unpacked(flat, received, shape)


def re_split(
    tensor: torch.Tensor, *, name: str, shape: Sequence[int], source: Along, target: Along, group: Ranks
) -> torch.Tensor:
    """``Shard`` to ``Shard`` of the same axis in the same place, split otherwise; the tensor itself where it is not.

    Args:
        tensor: this rank's share by the one split.
        name: the tensor's name in the graph, for errors.
        shape: shape of this rank's share by the other split.
        source: the axis with the one split.
        target: the axis with the other split.
        group: the ranks.
    """
    steps = re_split_steps(tensor, shape=shape, source=source, target=target, rank=group.rank)
    return group.run(_title("re_split", name), steps)


def all_reduce_steps(tensor: torch.Tensor, *, op: Literal["sum", "max"] = "sum", rank: int) -> Steps:
    """See :func:`all_reduce`."""
    total = tensor.clone(memory_format=torch.contiguous_format)
    del tensor
    if total.numel():
        yield AllReduce(total, op)
    return total


def all_reduce(tensor: torch.Tensor, *, name: str, group: Ranks, op: Literal["sum", "max"] = "sum") -> torch.Tensor:
    """``Partial`` to ``Replicate``: every rank gets the sum over the ranks, or the largest, element by element."""
    return group.run(_title("all_reduce", name), all_reduce_steps(tensor, op=op, rank=group.rank))


def all_reduce_together_steps(tensors: Sequence[torch.Tensor], *, rank: int) -> Steps:
    """See :func:`all_reduce_together`."""
    total = together(tensors)
    del tensors
    if total.numel():
        yield AllReduce(total)
    return total


def all_reduce_together(tensors: Sequence[torch.Tensor], *, name: str, group: Ranks) -> torch.Tensor:
    """The sums over the ranks of tensors of one element type, flat, one after another: :func:`member` cuts them out."""
    steps = all_reduce_together_steps(tensors, rank=group.rank)
    return group.run(_title("all_reduce_together", name, more=len(tensors) - 1), steps)


def member(total: torch.Tensor, *, offset: int, shape: Sequence[int]) -> torch.Tensor:
    """One of the tensors that were reduced together, in the memory of all."""
    return total.narrow(0, offset, math.prod(shape)).view(tuple(shape))


def stack_steps(tensor: torch.Tensor, *, ranks: int, rank: int) -> Steps:
    """See :func:`stack`."""
    rows = (ranks, *tensor.shape)
    if tensor.numel() == 0:
        return tensor.new_empty(rows)
    buffer = flattened(tensor)
    del tensor
    gathered = yield AllGather(buffer)
    return gathered.reshape(rows)  # type: ignore[no-any-return]


def stack(tensor: torch.Tensor, *, name: str, ranks: int, group: Ranks) -> torch.Tensor:
    """Every rank gets the tensors of all ``ranks`` ranks, which have equal shapes, as rows ``[ranks, ...]``."""
    return group.run(f'stack in "{name}"', stack_steps(tensor, ranks=ranks, rank=group.rank))


def shift_steps(tensor: torch.Tensor, *, shape: Sequence[int], ranks: int, rank: int) -> Steps:
    """See :func:`shift`."""
    send, receive = [0] * ranks, [0] * ranks
    send[(rank + 1) % ranks] = tensor.numel()
    receive[(rank - 1) % ranks] = math.prod(shape)
    received = yield AllToAll(flattened(tensor), tuple(send), tuple(receive))
    return received.reshape(tuple(shape))  # type: ignore[no-any-return]


def shift(tensor: torch.Tensor, *, name: str, shape: Sequence[int], ranks: int, group: Ranks) -> torch.Tensor:
    """Every rank gets the tensor of the rank before it, which has this ``shape``; the first gets the last one's."""
    return group.run(f'shift in "{name}"', shift_steps(tensor, shape=shape, ranks=ranks, rank=group.rank))


def slice_share(tensor: torch.Tensor, *, along: Along, rank: int) -> torch.Tensor:
    """``Replicate`` to ``Shard``: this rank's share of a whole tensor. Moves nothing.

    A copy, also where it could be a view, which would keep the whole tensor.
    """
    share = tensor.new_empty(along.shape(tensor.shape, rank))
    pieces.read(tensor, along, along.offset(rank), share)
    return share


def keep_one(tensor: torch.Tensor, *, rank: int) -> torch.Tensor:
    """``Replicate`` to ``Partial``: rank 0 keeps the tensor, the others take zeros. Moves nothing."""
    return tensor if rank == 0 else torch.zeros_like(tensor)


def pad(tensor: torch.Tensor, *, shape: Sequence[int], along: Along, rank: int) -> torch.Tensor:
    """``Shard`` to ``Partial``: the share in its place among zeros, in the whole tensor's shape. Moves nothing."""
    whole = tensor.new_zeros(tuple(shape))
    pieces.write(whole, along, along.offset(rank), tensor)
    return whole


STEPS: dict[Callable[..., Any], Callable[..., Steps]] = {
    all_gather: all_gather_steps,
    reduce_scatter: reduce_scatter_steps,
    all_to_all: all_to_all_steps,
    re_split: re_split_steps,
    all_reduce: all_reduce_steps,
    all_reduce_together: all_reduce_together_steps,
    stack: stack_steps,
    shift: shift_steps,
}
"""The collectives among the functions that lowered graphs call, with their steps.

The steps take the function's arguments, but for ``name`` and ``group``, and ``rank``.
"""


def start(
    collective: str, tensor: torch.Tensor | Sequence[torch.Tensor], *, name: str, group: Ranks, **arguments: Any
) -> Pending:
    """Begin one of :data:`STEPS`, by the name of its function, with that function's arguments.

    All ranks start the same collectives in the same order. :func:`wait` gives the result.
    """
    steps = STEPS[globals()[collective]](tensor, **arguments, rank=group.rank)
    more = 0 if isinstance(tensor, torch.Tensor) else len(tensor) - 1
    return group.start(_title(collective, name, arguments.get("implementation"), more), steps)


def wait(pending: Pending) -> torch.Tensor:
    """The result of what was started, once it is there."""
    return pending.wait()


def moves(target: object) -> bool:
    """Whether a lowered graph that calls this meets the other ranks there."""
    return target is start or target in STEPS


def _title(collective: str, name: str, implementation: str | None = None, more: int = 0) -> str:
    """How errors call a collective of a tensor, and of some more."""
    others = f" and {more} more" if more else ""
    return f'{collective} of "{name}"{others}' + (f" ({implementation})" if implementation else "")

"""Operators without a line of hap's: lines made from PyTorch's single-dimension sharding strategies.

``DTensor`` keeps, for each of about a thousand operators, a function that says for one mesh dimension which placements
of the operands give which placements of the results. That interface is private and used in this file only; where a
version of PyTorch lacks it, such operators are replicated.

A strategy becomes a letter that stands where the strategy shards, or a mark where it passes partial sums. What a line
cannot say in the same sense is left out: strategies for operators that do not declare uneven shards as allowed, other
reductions than sums, whole results from sharded operands, dimensions of unequal sizes, and everything for operators
with size arguments, with lists of tensors, or that draw random numbers. Letters are shared along their outermost axis
only, because a strategy speaks of contiguous pieces of a dimension.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

from hap.graph import Ref
from hap.rules.call import Call, Rule, size_arguments

logger = logging.getLogger("hap")

Placed = tuple[str | int | None, ...]
"""A strategy as plain data, results first: the sharded dimension, ``"R"``, ``"P"``, or ``None`` for no such result."""

Strategy = Callable[[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]], list[list[Any]]]


@cache
def _registry() -> dict[torch._ops.OpOverload, Any]:
    """PyTorch's strategies by overload; empty, with a warning, where this version keeps them elsewhere."""
    try:
        from torch.distributed.tensor import DTensor

        found = DTensor._op_dispatcher.sharding_propagator.op_single_dim_strategy_funcs
        assert all(callable(info.func) and isinstance(info.allow_uneven_sharding, bool) for info in found.values())
    except (ImportError, AttributeError, AssertionError) as error:
        logger.warning(
            "PyTorch %s does not have the sharding strategies that hap reads for operators without a rule (%s): such"
            " operators are computed whole on every device",
            torch.__version__,
            error,
        )
        return {}
    return dict(found)


@cache
def adapted(target: torch._ops.OpOverload) -> Rule | None:
    """The rule that follows from PyTorch's strategies; ``None`` where they say nothing that can be used."""
    kinds = [str(argument.type) for argument in target._schema.arguments]
    if (
        target._schema.is_mutable
        or torch.Tag.nondeterministic_seeded in target.tags
        or size_arguments(target)
        or any("List" in kind and "Tensor" in kind for kind in kinds)
        or any(str(result.type) != "Tensor" or result.alias_info for result in target._schema.returns)
    ):
        return None
    info = _registry().get(target)
    if info is None or not info.allow_uneven_sharding:
        return None
    return Rule(partial(_line, info.func), outermost=True)


def _line(strategy: Strategy, call: Call) -> str | None:
    """The line of a call; ``None`` where no strategy can be used."""
    return line_of(strategies(strategy, call), call)


def strategies(strategy: Strategy, call: Call) -> list[Placed]:
    """What PyTorch offers for a call, operands in the order of :attr:`Operator.operands`."""
    from torch.distributed.tensor._dtensor_spec import TensorMeta
    from torch.distributed.tensor._ops.single_dim_strategy import _ShardingPlaceholder
    from torch.distributed.tensor.placement_types import Partial, Replicate, Shard

    operands = iter(call.operands[place] for place in call.order)

    def described(value: Any) -> Any:
        if not isinstance(value, Ref):
            return value
        tensor = next(operands)
        strides = torch.empty(tensor.shape, device="meta").stride()
        return TensorMeta(torch.Size(tensor.shape), strides, tensor.dtype)

    def plain(placement: Any) -> str | int | None:
        if isinstance(placement, (_ShardingPlaceholder, Shard)):
            return int(placement.dim)
        if type(placement) is Partial and placement.reduce_op == "sum":
            return "P"
        return "R" if isinstance(placement, Replicate) else None if placement is None else "other"

    args = tuple(described(value) for value in call.operator.args)
    kwargs = {name: described(value) for name, value in call.operator.kwargs.items()}
    offered = strategy(call.operator.target, args, kwargs)
    count = len(call.results) + len(call.operands)
    return [tuple(plain(p) for p in row) for row in offered if len(row) == count]


def line_of(offered: Sequence[Placed], call: Call) -> str | None:
    """The line that offers what strategies offer, as far as a line can say it; ``None`` where that is nothing."""
    results, count = call.results, len(call.results)
    shapes = [None if tensor is None else tensor.shape for tensor in results]
    shapes += [call.operands[place].shape for place in call.order]
    letters: list[list[str | None]] = [[None] * len(shape or ()) for shape in shapes]
    marks = [""] * len(call.operands)
    summed = False
    linear = [row for row in offered if _passes_sums(row, count)]
    single = [row for row in linear if row[count:].count("P") == 1]
    for row in single:
        marks[row[count:].index("P")] = "~"
    for number, row in enumerate(offered):
        if not _shares(row, count):
            continue
        held = [(i, p % len(letters[i])) for i, p in enumerate(row) if isinstance(p, int) and shapes[i] is not None]
        sizes = {(shapes[i] or ())[dim] for i, dim in held}
        if len(sizes) == 1 and all(letters[i][dim] is None for i, dim in held):
            summed |= "P" in row
            for i, dim in held:
                letters[i][dim] = f"l{number}"
    if not single and not summed:
        # several sums at once are sums of sums; beside letters that are summed over they would be asked for there too
        for row in linear[:1]:
            marks = ["+" if p == "P" else "" for p in row[count:]]
    if not any(marks) and not any(letter for tensor in letters for letter in tensor):
        return None
    blocked = iter(range(sum(len(tensor) for tensor in letters)))

    def pattern(tensor: list[str | None]) -> str:
        return " ".join(letter or f"b{next(blocked)}!" for letter in tensor) or "."

    texts = [pattern(tensor) for tensor in letters]
    operands = [""] * len(marks)
    for i, place in enumerate(call.order):
        operands[place] = marks[i] + texts[count + i]
    return f"{', '.join(operands)} -> {', '.join(texts[:count])}"


def _passes_sums(row: Placed, count: int) -> bool:
    """Whether partial operands, the others whole, make every result partial."""
    return "P" in row[count:] and set(row[count:]) <= {"P", "R"} and set(row[:count]) <= {"P", None}


def _shares(row: Placed, count: int) -> bool:
    """Whether sharded operands, the others whole, make every result sharded or partial."""
    return (
        any(isinstance(p, int) for p in row[count:])
        and all(p == "R" or isinstance(p, int) for p in row[count:])
        and all(p is None or p == "P" or isinstance(p, int) for p in row[:count])
    )

"""The instructions that follow from a bound line: every way to run an operator on all devices.

* *Shard* one leaf of a letter, or a run of its leaves as one (:mod:`hap.rules.runs`): operands that hold it are
  sharded, the others whole. A result that holds it is sharded; one that reads an operand with it but lacks it is
  partial; one that reads none is whole. Where a result is partial, the additive operands without the letter are partial
  too, or they would be counted once per device.
* *Pass a partial* through one linear operand (and all additive ones), or through all additive ones together.
* *Composite*: shard one leaf of a blocked letter, as a composite instruction of the line knows how
  (:mod:`hap.rules.composites`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import torch

from hap.graph import Tensor
from hap.placement import PARTIAL, REPLICATE, Partial, Placements, shard
from hap.rules.axes import Factor, leaves, width
from hap.rules.axes import axes as axes_of
from hap.rules.binding import Bound, Dims, Letters
from hap.rules.notation import blocks
from hap.rules.runs import Run, Runs, Stand, stands, tensor_stands

if TYPE_CHECKING:
    from hap.rules.local import LocalCode
    from hap.rules.localise import Site

Leaf = tuple[str, int]
"""One axis of a letter, counted from the outermost: a leaf, or an axis that stands in every block of a sum."""


@dataclass(frozen=True, slots=True)
class Inner:
    """A collective inside a composite choice, as far as its cost depends on it.

    Attributes:
        conversion: ``all_to_all`` stands for shares that are passed on round all devices (a ring). Gathers are padded.
        bytes: of the whole tensor; without an axis, of each device's.
        axis: the axis that is gathered or passed on; ``None`` for an all-reduce, and for an all-gather of tensors of
            equal size (:class:`hap.rules.local.Stack`).
    """

    conversion: Literal["all_reduce", "all_gather", "all_to_all"]
    bytes: float
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class Composite:
    """A way to run an operator across a letter that its line blocks.

    Placements follow from the line as if the letter were free, but for what stands here.

    Attributes:
        code: what a rank executes; also a rank with no share takes part in every collective inside.
        collectives: what is sent inside, from the bound line and the axis that is sharded.
        whole: results that lack the letter, and yet are whole on every rank, not partial.
        outermost: whether only the outermost leaf of the letter may be sharded, so that a rank has one stretch of it.
        together: letters that are sharded with it, where their leaves are of the same axis.
    """

    code: Callable[[Site], LocalCode]
    collectives: Callable[[Bound, int], tuple[Inner, ...]] = lambda bound, axis: ()
    whole: frozenset[int] = frozenset()
    outermost: bool = False
    together: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run an operator on all devices.

    Attributes:
        inputs: placement needed of each of the operator's operands.
        outputs: placement gained of each result that exists.
        axis: the axis that the work is shared along; ``None`` where every device does the whole of it.
        letter: the letter of the rule and its leaf that runs along that axis; the first one, where it is a run.
        leaves: how many leaves of the letter are sharded as one.
        composite: the name of the composite instruction that it is, if it is one.
        collectives: the collectives inside, in order.
    """

    inputs: tuple[Placements, ...]
    outputs: tuple[Placements, ...]
    axis: int | None = None
    letter: Leaf | None = None
    composite: str | None = None
    collectives: tuple[Inner, ...] = ()
    leaves: int = 1


def occurrence_map(dims: Dims, letters: Letters, factors: Mapping[str, Sequence[Factor]]) -> dict[Leaf, int]:
    """The occurrence of each leaf of the letters in one tensor, matched from both ends of each dimension.

    A leaf that a cut keeps apart from the tensor's own leaves has none.
    """
    found: dict[Leaf, int] = {}
    start = 0
    bound = [[factor for dim in dims for factor in dim]] if letters.flat else dims
    for group, dim in zip(letters.groups, bound, strict=True):
        own = leaves(dim)
        wanted = [(letter, i, leaf) for letter in group for i, leaf in _numbered(factors[letter])]
        places = [at for at, _ in _numbered(dim)]
        common = min(len(own), len(wanted))
        outer = 0
        while outer < common and own[outer] is wanted[outer][2]:
            outer += 1
        inner = 0
        while inner < common - outer and own[-1 - inner] is wanted[-1 - inner][2]:
            inner += 1
        for at in (*range(outer), *range(-inner, 0)):
            letter, i, leaf = wanted[at]
            for axis in range(width(leaf)):
                found[letter, i + axis] = start + places[at] + axis
        start += sum(width(leaf) for leaf in own)
    return found


def _numbered(factors: Sequence[Factor]) -> list[tuple[int, Factor]]:
    """Leaves with the number of the first axis of each."""
    found, count = [], 0
    for leaf in leaves(factors):
        found.append((count, leaf))
        count += width(leaf)
    return found


_ADDED = frozenset({
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
    torch.int8, torch.uint8, torch.int32, torch.int64,
})  # fmt: skip
"""What gloo and NCCL add up, complex numbers by their parts."""


def summable(dtype: torch.dtype) -> bool:
    """Whether tensors of such a type may be partial sums, which all backends have to be able to add up."""
    return dtype in _ADDED


def keeps_sums(source: torch.dtype, result: torch.dtype) -> bool:
    """Whether a sum of summands of one type may be taken after they have been turned into another.

    Not from floating point to integers (each summand would be truncated), nor through a narrowing cast (each summand
    would be rounded), nor from small integers to anything else (each summand may have wrapped round).
    """
    if result == torch.bool or (_inexact(source) and not _inexact(result)):
        return False
    if _inexact(source):
        return not _rounds(source, result)
    return source == result or (source.itemsize == 8 and (_inexact(result) or result.itemsize == 8))


def _inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _rounds(source: torch.dtype, result: torch.dtype) -> bool:
    """Whether a cast between types of floating-point or complex numbers may lose digits or overflow."""
    if not (_inexact(source) and _inexact(result)):
        return False
    fine, coarse = torch.finfo(source), torch.finfo(result)
    return coarse.eps > fine.eps or coarse.max < fine.max


def operator_choices(
    bound: Bound,
    operands: Sequence[Tensor],
    operand_dims: Sequence[Dims],
    result_dims: Sequence[Dims | None],
    axes: Mapping[Factor, int],
    composites: Mapping[str, Composite],
    runs: Runs,
) -> tuple[Choice, ...]:
    """All choices of an operator; the first is the replicated one.

    Args:
        bound: the operator's rule, bound.
        operands: in the order of :attr:`Operator.operands`.
        operand_dims: their factors.
        result_dims: factors of each of :attr:`Operator.results`.
        axes: the number of each leaf's axis.
        composites: the composite instructions that lines name.
        runs: the number of each run's axis.
    """
    results = [(i, tensor) for i, tensor in enumerate(bound.call.results) if tensor is not None]
    found = [Choice((REPLICATE,) * len(operands), (REPLICATE,) * len(results))]
    found += _pass_partial(bound, operands, results)
    operand_maps = [
        occurrence_map(d, held, bound.letters) for d, held in zip(operand_dims, bound.operands, strict=True)
    ]
    result_maps: dict[int, dict[Leaf, int]] = {}
    for i, _ in results:
        dims, letters = result_dims[i], bound.results[i]
        assert dims is not None
        assert letters is not None
        result_maps[i] = occurrence_map(dims, letters, bound.letters)
    for letter in bound.letters:
        if letter in bound.blocked:
            continue
        if bound.rule.lower is not None and not bound.rule.sums and _has_sum(bound.letters[letter]):
            continue
        own = axes_of(bound.letters[letter])
        for i, factor in enumerate(own[:1] if bound.rule.outermost else own):
            also = [(block, axes_of(bound.letters[block]).index(factor)) for block in blocks(letter)]
            placed = _shard([(letter, i), *also], bound, operands, results, operand_maps, result_maps)
            if placed is not None:
                found.append(Choice(*placed, axis=axes[factor], letter=(letter, i)))
    for letter, stand in _letter_stands(bound, runs):
        at = (letter, stand.first)
        in_operands = [_run_map(d, m, at, stand.run, runs) for d, m in zip(operand_dims, operand_maps, strict=True)]
        in_results = {i: _run_map(result_dims[i] or [], m, at, stand.run, runs) for i, m in result_maps.items()}
        placed = _shard([at], bound, operands, results, in_operands, in_results)
        if placed is not None:
            found.append(Choice(*placed, axis=runs[stand.run], letter=at, leaves=len(stand.run)))
    for letter, name in bound.composites:
        composite = composites[name]
        own = leaves(bound.letters[letter])
        if _has_sum(own):
            continue
        for i, leaf in enumerate(own[:1] if composite.outermost else own):
            sharded = [(letter, i), *((other, i) for other in composite.together)]
            if any(leaves(bound.letters[other]) != own for other, _ in sharded):
                continue
            placed = _shard(sharded, bound, operands, results, operand_maps, result_maps, composite.whole)
            if placed is not None:
                axis = axes[leaf]
                inner = composite.collectives(bound, axis)
                found.append(Choice(*placed, axis, (letter, i), name, inner))
    return tuple(found)


def _has_sum(factors: Sequence[Factor]) -> bool:
    return any(leaf.blocks is not None for leaf in leaves(factors))


def _letter_stands(bound: Bound, runs: Runs) -> list[tuple[str, Stand]]:
    """The runs that stand in letters that may be sharded along them."""
    return [
        (letter, stand)
        for letter, factors in bound.letters.items()
        if letter not in bound.blocked and not _has_sum(factors)
        for stand in stands(factors, runs)
        if stand.first == 0 or not bound.rule.outermost
    ]


def _run_map(dims: Dims, found: Mapping[Leaf, int], leaf: Leaf, run: Run, runs: Runs) -> dict[Leaf, int]:
    """The entry of a run of a letter, from ``leaf`` on, in one tensor; none where it is not in one dimension there."""
    letter, first = leaf
    places = [found.get((letter, first + i)) for i in range(len(run))]
    start = places[0]
    if start is None or places != list(range(start, start + len(run))):
        return {}
    before = [0, *accumulate(sum(width(own) for own in leaves(factors)) for factors in dims)]
    for entry, (dim, stand) in enumerate(tensor_stands(dims, runs)):
        if stand.run == run and before[dim] + _numbered(dims[dim])[stand.first][0] == start:
            return {leaf: before[-1] + entry}
    return {}


def _pass_partial(bound: Bound, operands: Sequence[Tensor], results: Sequence[tuple[int, Tensor]]) -> list[Choice]:
    additive = [i for i, mark in enumerate(bound.marks) if mark == "+"]
    linear = [i for i, mark in enumerate(bound.marks) if mark == "~"]
    found = []
    for partial in [{t, *additive} for t in linear] or ([set(additive)] if additive else []):
        outputs = []
        for i, tensor in results:
            read = partial & bound.reads[i]
            if not all(keeps_sums(operands[t].dtype, tensor.dtype) for t in read):
                break
            outputs.append(PARTIAL if read else REPLICATE)
        else:
            if all(summable(operands[t].dtype) for t in partial) and PARTIAL in outputs:
                inputs = tuple(PARTIAL if t in partial else REPLICATE for t in range(len(operands)))
                found.append(Choice(inputs, tuple(outputs)))
    return found


def _shard(
    sharded: Sequence[Leaf],
    bound: Bound,
    operands: Sequence[Tensor],
    results: Sequence[tuple[int, Tensor]],
    operand_maps: Sequence[Mapping[Leaf, int]],
    result_maps: Mapping[int, Mapping[Leaf, int]],
    whole: frozenset[int] = frozenset(),
) -> tuple[tuple[Placements, ...], tuple[Placements, ...]] | None:
    """Placements of operands and results that shard one leaf of a letter; ``None`` where that cannot be.

    ``sharded`` may name leaves of further letters, for tensors that lack the ones before; ``whole``: results without
    the letter that are whole, not partial.
    """
    held = [next((leaf for leaf in sharded if leaf[0] in letters), None) for letters in bound.operands]
    holders = {t for t, leaf in enumerate(held) if leaf is not None}
    inputs = [REPLICATE] * len(operands)
    for t, leaf in enumerate(held):
        if leaf is not None:
            if leaf not in operand_maps[t]:
                return None
            inputs[t] = shard(operand_maps[t][leaf])
    outputs: list[Placements] = []
    for i, tensor in results:
        letters = bound.results[i]
        assert letters is not None
        leaf = next((leaf for leaf in sharded if leaf[0] in letters), None)
        if leaf is not None:
            if leaf not in result_maps[i]:
                return None
            outputs.append(shard(result_maps[i][leaf]))
            continue
        read = holders & bound.reads[i]
        if not read or i in whole:
            outputs.append(REPLICATE)
        elif any(_rounds(operands[t].dtype, tensor.dtype) for t in read) or not summable(tensor.dtype):
            return None
        else:
            outputs.append(PARTIAL)
    if PARTIAL in outputs:
        for t, mark in enumerate(bound.marks):
            if mark == "+" and t not in holders:
                if not summable(operands[t].dtype):
                    return None
                inputs[t] = PARTIAL
    partial_inputs = {t for t, placements in enumerate(inputs) if isinstance(placements[0], Partial)}
    for (i, _), placements in zip(results, outputs, strict=True):
        if partial_inputs & bound.reads[i] and placements != PARTIAL:
            return None  # a summand would be taken for the whole
    return tuple(inputs), tuple(outputs)

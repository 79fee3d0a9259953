"""Makes an operator's call local: size arguments, generators, windows, and what a rank with no share does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch

from hap.graph import Ref
from hap.placement import PARTIAL, REPLICATE, Placements, Shard
from hap.rules import pieces
from hap.rules.binding import Bound
from hap.rules.call import Call, Shape
from hap.rules.choices import Choice, Leaf
from hap.rules.local import LocalCode, Value, Writer
from hap.rules.notation import blocks
from hap.rules.pieces import Blocks, Occurrence, Place

Occurrences = tuple[Occurrence, ...]
"""The flattened axes of a tensor."""


def local_shape(shape: Shape, occurrences: Occurrences, placements: Placements, share: int) -> Shape:
    """The shape of what a rank with ``share`` units holds."""
    (placement,) = placements
    if not isinstance(placement, Shard):
        return shape
    return pieces.local_shape(shape, occurrences[placement.occurrence], share)


@dataclass(frozen=True, slots=True)
class Site:
    """One operator in one placement on one rank.

    Attributes:
        leaf_sizes: sizes of the leaves of each letter.
        operand_occurrences, result_occurrences: flattened axes; results only where they exist.
        share, offset: units of the choice's axis on this rank, and on the ranks before it.
        units, rank: units of the choice's axis on every rank, and which rank this is.
    """

    call: Call
    bound: Bound | None
    choice: Choice
    leaf_sizes: Mapping[str, Sequence[int]]
    operand_occurrences: tuple[Occurrences, ...]
    result_occurrences: tuple[Occurrences | None, ...]
    share: int
    offset: int
    units: tuple[int, ...]
    rank: int
    placements: tuple[Placements | None, ...] = field(init=False)

    def __post_init__(self) -> None:
        outputs = iter(self.choice.outputs)
        object.__setattr__(self, "placements", tuple(None if r is None else next(outputs) for r in self.call.results))

    def size(self, letter: str) -> int:
        """Units of a letter on this rank."""
        assert self.bound is not None
        size = self.bound.sizes[letter]
        if self.choice.letter is None or letter not in (self.choice.letter[0], *blocks(self.choice.letter[0])):
            return size
        return size * self.share // sum(self.units)

    def whole(self, letter: str) -> int:
        """Units of a letter on one device."""
        assert self.bound is not None
        return self.bound.sizes[letter]

    def result(self, index: int) -> Shape:
        """Shape of a result on this rank."""
        tensor, occurrences, placements = (
            self.call.results[index],
            self.result_occurrences[index],
            self.placements[index],
        )
        assert tensor is not None
        assert occurrences is not None
        assert placements is not None
        return local_shape(tensor.shape, occurrences, placements, self.share)

    def operand(self, index: int) -> Shape:
        """Shape of one of :attr:`Operator.operands` on this rank."""
        tensor = self.call.operands[self.call.order[index]]
        return local_shape(tensor.shape, self.operand_occurrences[index], self.choice.inputs[index], self.share)

    def stretch(self, letter: str) -> list[int] | None:
        """This rank's share of a letter (:data:`hap.operators.stretch.Stretch`); ``None`` where it has all of it."""
        if self.choice.letter is None or self.choice.letter[0] != letter:
            return None
        sizes, at = self.leaf_sizes[letter], self.choice.letter[1]
        if self.share == sizes[at]:
            return None
        return [prod(sizes[:at]), sizes[at], prod(sizes[at + 1 :]), self.offset, self.share]

    def window(self, letters: Sequence[str], also: Mapping[Leaf, tuple[int, int]] | None = None) -> dict[str, Any]:
        """This rank's part of a tensor with these dimensions: sizes of its leaves, and a box in them.

        ``also``: the first unit and the units of further leaves that are narrowed.
        """
        narrowed = dict(also or {})
        if self.choice.letter is not None:
            narrowed.setdefault(self.choice.letter, (self.offset, self.share))
        leaves = [(letter, leaf) for letter in letters for leaf in range(len(self.leaf_sizes[letter]))]
        if not narrowed.keys() & set(leaves):
            return {}
        sizes = [self.leaf_sizes[letter][leaf] for letter, leaf in leaves]
        boxes = [narrowed.get(leaf, (0, size)) for leaf, size in zip(leaves, sizes, strict=True)]
        return {"sizes": sizes, "starts": [b[0] for b in boxes], "lengths": [b[1] for b in boxes]}


def local_code(site: Site) -> LocalCode:
    """The calls that a rank makes for an operator.

    A rank with no share does not call the kernel: kernels on empty inputs are wrong in silence, raise, or crash. Its
    sharded results are empty and its partial ones zeros. Results that are whole, and partial ones with additive
    operands, are computed on one unit of zeros, which adds nothing to them; where nothing linear is sharded (values
    that are put at sharded indices), what is linear is zeros as well.
    """
    code = Writer(len(site.operand_occurrences))
    operands = [Value(i) for i in range(len(site.operand_occurrences))]
    if site.choice.axis is None or site.share > 0 or not operands:
        values = _kernel(code, site, operands)
        return LocalCode(tuple(code.calls), tuple(values[i] for i, t in enumerate(site.call.results) if t is not None))
    assert site.bound is not None
    additive = {i for i, mark in enumerate(site.bound.marks) if mark == "+"}
    computed = {
        i
        for i, placements in enumerate(site.placements)
        if placements == REPLICATE or (placements == PARTIAL and additive & site.bound.reads[i])
    }
    made: list[Value] = []
    if computed:
        unit = replace(site, share=1, offset=0)
        blank = {i for i in range(len(operands)) if isinstance(site.choice.inputs[i][0], Shard)}
        linear = {i for i, mark in enumerate(site.bound.marks) if mark == "~"}
        if not blank & linear and any(site.placements[i] == PARTIAL for i in computed):
            assert all(site.placements[i] == PARTIAL for i in computed), "a whole result would lose its linear operands"
            blank |= linear
        zeros = [
            _zeros(code, value, unit.operand(i), None) if i in blank else value for i, value in enumerate(operands)
        ]
        made = _kernel(code, unit, zeros)
    results = []
    for i, tensor in enumerate(site.call.results):
        if tensor is not None:
            results.append(made[i] if i in computed else _zeros(code, operands[0], site.result(i), tensor.dtype))
    return LocalCode(tuple(code.calls), tuple(results))


def _zeros(code: Writer, like: Value, shape: Shape, dtype: torch.dtype | None) -> Value:
    kwargs: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    return code.add(torch.ops.aten.new_zeros.default, (like, list(shape)), kwargs, 1, False)[0]


def _kernel(code: Writer, site: Site, operands: Sequence[Value]) -> list[Value]:
    """Calls the operator on local operands; one value for each of its results."""
    call = site.call
    operator = call.operator
    target: Callable[..., Any] = operator.target
    changes: dict[str, Any] = {}
    if site.bound is not None:
        rule = site.bound.rule
        if rule.whole and site.choice.axis is not None:
            return _narrowed(code, site)
        for argument, groups in site.bound.line.sizes:
            changes[argument] = _local_sizes(site, call.arguments[argument], groups)
        if rule.lower is not None:
            target, lowered = rule.lower(call, site)
            changes.update(lowered)
        if rule.contiguous:
            operands = [code.add(torch.ops.aten.contiguous.default, (x,), {}, 1, False)[0] for x in operands]
    args, kwargs = call_arguments(call, changes, operands)
    return code.add(target, args, kwargs, len(operator.results), call.signature.sequence)


def _local_sizes(site: Site, value: Any, groups: tuple[tuple[str, ...], ...] | None) -> Any:
    if value is None:
        return None
    if groups is None:
        return list(site.result(0))
    sizes = [prod(site.size(letter) for letter in group) for group in groups]
    return sizes if isinstance(value, (list, tuple)) else prod(sizes)


def _narrowed(code: Writer, site: Site) -> list[Value]:
    """A generator made whole, then narrowed: its values depend on their position."""
    operator = site.call.operator
    assert len(operator.results) == 1, f"{operator.target} makes more than one tensor"
    whole = code.add(operator.target, operator.args, dict(operator.kwargs), 1, site.call.signature.sequence)[0]
    occurrences, placements = site.result_occurrences[0], site.placements[0]
    assert occurrences is not None
    assert placements is not None
    assert isinstance(placements[0], Shard)
    dim, _, blocks = occurrences[placements[0].occurrence]
    (share,) = code.add(narrow, (whole, dim, blocks, site.offset, site.share), {}, 1, False)
    return code.add(torch.ops.aten.contiguous.default, (share,), {}, 1, False)


def narrow(whole: torch.Tensor, dim: int, blocks: Blocks, start: int, length: int) -> torch.Tensor:
    """A rank's share of a whole tensor (:func:`hap.rules.pieces.narrow`)."""
    return pieces.narrow(whole, Place(dim, blocks), start, length)


def call_arguments(
    call: Call, changes: Mapping[str, Any], operands: Sequence[Value]
) -> tuple[list[Any], dict[str, Any]]:
    """The traced arguments with tensors replaced in order, and changed ones by name."""
    pending = iter(operands)

    def fill(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return next(pending)
        if isinstance(argument, (list, tuple)):
            return [fill(item) for item in argument] if any(isinstance(i, Ref) for i in argument) else argument
        return argument

    args = [fill(argument) for argument in call.operator.args]
    kwargs = {name: fill(argument) for name, argument in call.operator.kwargs.items()}
    names = call.signature.names
    for name, value in changes.items():
        if name in names and names.index(name) < len(args):
            args[names.index(name)] = value
        else:
            kwargs[name] = value
    return args, kwargs

"""A line bound to a call: which letters stand in which dimension of which tensor, and which factors they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from hap.rules.axes import Factor, leaves, product, total, unify
from hap.rules.call import Call, Inner, Rule, Shape
from hap.rules.notation import Broadcast, Flat, Group, Line, Mark, Pattern, Run, blocks, parse

Dims = list[list[Factor]]
"""The factors of a tensor, dimension by dimension."""


@dataclass(frozen=True, slots=True)
class Letters:
    """The letters of one tensor: a group for each dimension, or (``flat``) one for all of them together."""

    groups: tuple[Group, ...]
    flat: bool = False

    def __contains__(self, letter: str) -> bool:
        return any(letter in group for group in self.groups)


@dataclass(frozen=True, slots=True)
class Bound:
    """A line bound to a call.

    Attributes:
        operands: letters of each of :attr:`Operator.operands`.
        marks: their marks.
        results: letters of each of :attr:`Operator.results`; ``None`` where it does not exist.
        reads: the operands that each result reads.
        blocked: letters that nothing may be sharded along, but by the composites.
        composites: letters, and the names of the composites that cross them.
        letters: the factors of each letter.
        sizes: the sizes of each letter.
        cut: whether some dimension could not be matched to its letters.
    """

    call: Call
    rule: Rule
    line: Line
    operands: tuple[Letters, ...]
    marks: tuple[Mark, ...]
    results: tuple[Letters | None, ...]
    reads: tuple[frozenset[int], ...]
    blocked: frozenset[str]
    composites: tuple[tuple[str, str], ...]
    letters: Mapping[str, Sequence[Factor]]
    sizes: Mapping[str, int]
    cut: bool


def bind(
    call: Call, rule: Rule, operands: Sequence[Dims], results: Sequence[Dims | None], inner: Inner
) -> Bound | None:
    """Binds a rule to a call and unifies the factors of its tensors.

    Args:
        call: the call.
        rule: the rule of its operator.
        operands: factors of the tensors read, in the order of the schema.
        results: factors of the tensors written, where they exist.
        inner: see :class:`Inner`.

    Returns:
        ``None`` where the rule does not hold for this call (a guard fails, or sizes do not fit the line).
    """
    given: dict[str, int] = {}
    if isinstance(rule.line, str):
        text = rule.line
    else:
        written = rule.line(call, inner) if rule.soft else rule.line(call)
        if written is None:
            return None
        text, given = written if isinstance(written, tuple) else (written, {})
    line = parse(text)
    if not all(guard.holds(dict(call.arguments)) for guard in line.guards):
        return None
    patterns, kept = _present(call, line.operands)
    runs = _run_lengths(call, rule, line, patterns)
    if runs is None:
        return None
    output_letters = [
        None if tensor is None else _expand(pattern, runs)
        for tensor, pattern in zip(call.results, line.outputs, strict=True)
    ]
    first = next(
        ((t.shape, letters) for t, letters in zip(call.results, output_letters, strict=True) if t and letters), None
    )
    operand_letters = [_expand(p, runs, t.shape, first) for p, t in zip(patterns, call.operands, strict=True)]
    shapes: list[tuple[Letters, Shape, Dims]] = []
    for letters, tensor, dims in zip(
        [*operand_letters, *output_letters], [*call.operands, *call.results], [*operands, *results], strict=True
    ):
        if letters is None or tensor is None or dims is None:
            continue
        if not letters.flat and len(letters.groups) != len(tensor.shape):
            return None
        shapes.append((letters, tensor.shape, dims))
    sizes = _letter_sizes(call, line, shapes, given)
    if sizes is None:
        return None
    factors, cut, apart = _unify(shapes, sizes)
    every = frozenset(range(len(call.operands)))
    place = {pattern: place for place, pattern in enumerate(kept)}
    back = {place: index for index, place in enumerate(call.order)}
    return Bound(
        call=call,
        rule=rule,
        line=line,
        operands=tuple(operand_letters[i] for i in call.order),
        marks=tuple(patterns[i].mark for i in call.order),
        results=tuple(output_letters),
        reads=tuple(
            every if p.reads is None else frozenset(back[place[i]] for i in p.reads if i in place) for p in line.outputs
        ),
        blocked=frozenset(letter for name in sorted(line.blocked) for letter in _letters(name, runs)) | apart,
        composites=tuple((letter, name) for own, name in line.composite for letter in _letters(own, runs)),
        letters=factors,
        sizes=sizes,
        cut=cut,
    )


def _present(call: Call, patterns: tuple[Pattern, ...]) -> tuple[list[Pattern], list[int]]:
    """The patterns of the operands that are there, and their places in the line."""
    if len(patterns) == len(call.operands):
        return list(patterns), list(range(len(patterns)))
    tensors = call.signature.tensors
    assert len(patterns) == len(tensors), (
        f"{call.operator.target} takes {len(tensors)} tensors, its rule has {len(patterns)}"
    )
    kept = [i for i, name in enumerate(tensors) if call.has(name)]
    return [patterns[i] for i in kept], kept


def _run_lengths(call: Call, rule: Rule, line: Line, patterns: Sequence[Pattern]) -> dict[str, int] | None:
    """The length of each run: from the rule, then from the rank of a tensor in which it is the only unknown one."""
    lengths: dict[str, int] = {}
    if rule.runs is not None:
        known = rule.runs(call)
        if known is None:
            return None
        lengths.update(known)
    pairs = list(zip(patterns, call.operands, strict=True))
    pairs += [(p, t) for p, t in zip(line.outputs, call.results, strict=True) if t is not None]
    changed = True
    while changed:
        changed = False
        for pattern, tensor in pairs:
            unknown = [d.name for d in pattern.dims if isinstance(d, Run) and d.name not in lengths]
            if len(unknown) == 1:
                fixed = sum(
                    lengths[d.name] if isinstance(d, Run) else 1 for d in pattern.dims if not _is(d, unknown[0])
                )
                if len(tensor.shape) < fixed:
                    return None
                lengths[unknown[0]] = len(tensor.shape) - fixed
                changed = True
    for pattern, _ in pairs:
        for dim in pattern.dims:
            if isinstance(dim, Run) and lengths.get(dim.name, -1) < 0:
                return None
    return lengths


def _is(dim: object, run: str) -> bool:
    return isinstance(dim, Run) and dim.name == run


def _expand(
    pattern: Pattern, runs: Mapping[str, int], shape: Shape = (), first: tuple[Shape, Letters] | None = None
) -> Letters:
    """The letters of each dimension, runs written out and broadcasts aligned to the right of the first output."""
    groups: list[Group] = []
    for dim in pattern.dims:
        if isinstance(dim, Run):
            groups += [(f"{dim.name}{i}",) for i in range(runs[dim.name])]
        elif isinstance(dim, Flat):
            return Letters(((dim.letter,),), flat=True)
        elif isinstance(dim, Broadcast):
            if first is None:
                return Letters(tuple(() for _ in shape))
            out_shape, out = first
            skip = len(out_shape) - len(shape)
            if skip < 0:
                return Letters(())
            return Letters(
                tuple(
                    () if size == 1 and out_shape[skip + i] != 1 else out.groups[skip + i]
                    for i, size in enumerate(shape)
                )
            )
        else:
            groups.append(dim)
    return Letters(tuple(groups))


def _letters(name: str, runs: Mapping[str, int]) -> list[str]:
    """The letters that a name in a line stands for."""
    return [f"{name}{i}" for i in range(runs[name])] if name in runs else [name]


def _letter_sizes(
    call: Call, line: Line, shapes: Sequence[tuple[Letters, Shape, Dims]], given: Mapping[str, int]
) -> dict[str, int] | None:
    """The size of each letter: given, from an argument, from a dimension of its own, or what is left of a product."""
    sizes = dict(given)
    for letters, _, _ in shapes:
        for letter in (letter for group in letters.groups for letter in group if blocks(letter)):
            sizes[letter] = sum(sizes[block] for block in blocks(letter))
    for argument, groups in line.sizes:
        value = call.arguments[argument]
        if groups is not None and len(groups) == 1 and len(groups[0]) == 1 and isinstance(value, int):
            sizes.setdefault(groups[0][0], value)
    products: list[tuple[Group, int]] = []
    for letters, shape, _ in shapes:
        if letters.flat:
            products.append((letters.groups[0], prod(shape)))
            continue
        for group, size in zip(letters.groups, shape, strict=True):
            if len(group) != 1:
                products.append((group, size))
            elif sizes.setdefault(group[0], size) != size:
                return None
    for _ in range(len(products) + 1):
        for group, size in products:
            unknown = [letter for letter in group if letter not in sizes]
            known = prod(sizes[letter] for letter in group if letter in sizes)
            if len(unknown) == 1 and known and size % known == 0:
                sizes[unknown[0]] = size // known
    for group, size in products:
        if any(letter not in sizes for letter in group) or prod(sizes[letter] for letter in group) != size:
            return None
    return sizes


def _unify(
    shapes: Sequence[tuple[Letters, Shape, Dims]], sizes: Mapping[str, int]
) -> tuple[dict[str, Sequence[Factor]], bool, frozenset[str]]:
    """Makes each dimension one index with its letters.

    A sum comes after what its blocks are bound to. It is linked only to a dimension that has been found to be one
    (:func:`hap.rules.sums.find_sums`).

    Returns:
        the factors of each letter, whether some dimension could not be matched, and the letters that nothing may be
        sharded along because of sums: blocks alone, and sums that are not linked.
    """
    factors: dict[str, Sequence[Factor]] = {}
    cut = False
    apart: set[str] = set()
    sums: list[tuple[Group, list[Factor]]] = []
    for letters, _, dims in shapes:
        bound: Dims = [[factor for dim in dims for factor in dim]] if letters.flat else dims
        for group, dim in zip(letters.groups, bound, strict=True):
            if any(blocks(letter) for letter in group):
                sums.append((group, dim))
            else:
                cut |= not _link(group, dim, factors, sizes, free=not letters.flat)
    for group, dim in sums:
        own = leaves(dim)
        for letter in group:
            parts = blocks(letter)
            apart.update(parts)
            for part in parts:
                factors.setdefault(part, (Factor(sizes[part]),))
            if parts and len(own) == 1 and own[0].blocks is not None and own[0].size == sizes[letter]:
                cut |= not unify(own, [total([product(factors[part]) for part in parts])])
                factors[letter] = dim
            elif parts:
                apart.add(letter)
        cut |= not _link(group, dim, factors, sizes, free=True)
    return factors, cut, frozenset(apart)


def _link(
    group: Group, dim: Sequence[Factor], factors: dict[str, Sequence[Factor]], sizes: Mapping[str, int], free: bool
) -> bool:
    """Makes a dimension one index with its letters; ``free``: a new letter may stand for the dimension itself."""
    if free and len(group) == 1 and group[0] not in factors:
        factors[group[0]] = dim
        return True
    whole: list[Factor] = []
    for letter in group:
        whole.extend(factors.setdefault(letter, (Factor(sizes[letter]),)))
    return not group or unify(dim, whole)

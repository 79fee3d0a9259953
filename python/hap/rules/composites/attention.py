"""Attention over a sharded sequence.

*Keys* sharded, queries whole: each rank attends to its own keys; the log-sum-exps of all ranks say what its output adds
to the whole one. The gradients need nothing of the kind: from the given log-sum-exp each key's share follows alone.

*Ring* (Liu et al. 2023): queries and keys sharded alike; blocks of keys and values go round all ranks, and in the
backward their gradients travel along and come home. A mask with columns but no rows travels too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from hap.operators.merging import merged, summand
from hap.rules.binding import Bound
from hap.rules.call import broadcast
from hap.rules.choices import Composite, Inner
from hap.rules.composites.statistics import local_shape, value_of
from hap.rules.families.attention import score_letters
from hap.rules.local import LocalCode, Shift, Stack, Value, Writer
from hap.rules.localise import Site, narrow
from hap.rules.pieces import Blocks, Place, write

aten, own = torch.ops.aten, torch.ops.hap


def written(whole: torch.Tensor, dim: int, blocks: Blocks, start: int, piece: torch.Tensor) -> torch.Tensor:
    """A whole tensor with a piece in its place (:func:`hap.rules.pieces.write`)."""
    write(whole, Place(dim, blocks), start, piece)
    return whole


def _letters(site: Site, name: str) -> tuple[str, ...]:
    """The letters that an operand holds; none where it is not there."""
    assert site.bound is not None
    if not site.call.has(name):
        return ()
    groups = site.bound.operands[site.call.order.index(site.call.names.index(name))].groups
    return tuple(letter for group in groups for letter in group)


def _value(site: Site, name: str) -> Value | None:
    return value_of(site, site.call.names.index(name)) if site.call.has(name) else None


def _exist(site: Site, code: Writer, *results: Value | None) -> LocalCode:
    """The code, with the results that the graph reads."""
    kept = [value for value, tensor in zip(results, site.call.results, strict=True) if tensor is not None]
    assert None not in kept
    return code.finish(*(value for value in kept if value is not None))


class _Sequence:
    """The axis of the sequence as a rank sees it: whose keys stand where."""

    def __init__(self, site: Site) -> None:
        assert site.choice.letter is not None
        letter, self.leaf = site.choice.letter
        sizes = site.leaf_sizes[letter]
        self.sizes = (prod(sizes[: self.leaf]), sizes[self.leaf], prod(sizes[self.leaf + 1 :]))
        self.units = site.units

    def part(self, rank: int) -> tuple[int, int]:
        """A rank's first unit and its units."""
        return sum(self.units[:rank]), self.units[rank]

    def stretch(self, rank: int) -> list[int]:
        """A rank's :data:`hap.operators.stretch.Stretch`."""
        return [*self.sizes, *self.part(rank)]

    def elements(self, rank: int) -> int:
        """Keys of a rank."""
        return self.sizes[0] * self.units[rank] * self.sizes[2]

    def after(self, rank: int, other: int) -> bool:
        """Whether all positions of ``other`` come after those of ``rank``."""
        return self.sizes[0] == 1 and sum(self.units[:other]) >= sum(self.units[: rank + 1])


def _call(
    code: Writer, site: Site, tensors: Sequence[Value | None], sequence: _Sequence, keys: int, ring: bool
) -> list[Value]:
    """Attention, or its backward, of this rank's queries with the keys of one rank."""
    call, backward = site.call, site.call.has("grad")
    attributes = [call[name] for name in ("p", "causal", "scale", "gqa", "index")]
    if backward:
        attributes.append(call["mask_grad"])
    keywords: dict[str, Any] = {}
    if call.has("rng"):
        part = sequence.part(keys)
        keywords |= site.window(score_letters(call), {("t", sequence.leaf): part})
    if call["causal"]:
        keywords["keys"] = sequence.stretch(keys)
        if ring:
            keywords["queries"] = sequence.stretch(site.rank)
    target, count = (own.sdpa_backward.default, 4) if backward else (own.sdpa.default, 2)
    return code.add(target, [*tensors, *attributes], keywords, count, True)


# ---- keys sharded, queries whole


def _over_keys(site: Site) -> LocalCode:
    code, sequence = Writer(len(site.call.operands)), _Sequence(site)
    tensors = [_value(site, name) for name in ("q", "k", "v", "mask", "rng")]
    out, lse = _call(code, site, tensors, sequence, site.rank, ring=False)
    every = code.call(Stack(), lse)
    return _exist(site, code, *code.add(summand, (out, every, site.rank), {}, 2, True))


def _lse_bytes(bound: Bound, axis: int) -> tuple[Inner, ...]:
    q, k = (bound.call.shape_of(name) for name in ("q", "k"))
    outer = q[:-2] if bound.call["gqa"] else broadcast(q[:-2], k[:-2])
    size = max(bound.call.operands[0].dtype.itemsize, torch.float32.itemsize)
    return (Inner("all_gather", float(prod(outer) * q[-2] * 2 * size)),)


# ---- the ring


class _Ring:
    """The blocks of keys and values, and of what goes with them, on their way round the ranks."""

    def __init__(self, site: Site, code: Writer) -> None:
        self.site, self.code, self.sequence = site, code, _Sequence(site)
        self.count = len(site.units)
        mask = _letters(site, "mask")
        self.mask_rows, self.mask_columns = "s" in mask, "t" in mask
        names = ["k", "v"] + ["mask"] * (self.mask_columns and not self.mask_rows)
        self.names = names
        self.block: dict[str, Value] = {}
        for name in names:
            value = _value(site, name)
            assert value is not None
            self.block[name] = value

    def source(self, step: int) -> int:
        """Whose block is here after so many steps."""
        return (self.site.rank - step) % self.count

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """Shape of a rank's block of a tensor."""
        place = self.site.call.names.index(name)
        here = local_shape(self.site, place)
        # The keys are the last dimension but one, or a mask's last.
        dim = len(here) - (1 if name == "mask" else 2)
        return tuple(self.sequence.elements(rank) if n == dim else size for n, size in enumerate(here))

    def shift(self, values: dict[str, Value], step: int) -> None:
        """Passes blocks on that are shaped as the tensors of these names, the ``step``-th time."""
        for name, value in values.items():
            values[name] = self.code.call(Shift(self.shape(name, self.source(step))), value)

    def computes(self, step: int) -> bool:
        """Whether this rank's queries see any key of the block."""
        rank, other = self.site.rank, self.source(step)
        invisible = self.site.call["causal"] and self.sequence.after(rank, other)
        return bool(self.sequence.units[rank] and self.sequence.units[other] and not invisible)

    def columns(self) -> Place:
        """Where the keys lie in the mask."""
        outer, _, inner = self.sequence.sizes
        return Place(len(self.site.call.shape_of("mask")) - 1, ((outer, inner),))

    def mask(self, step: int) -> Value | None:
        """The mask of this rank's queries and the block's keys."""
        if "mask" in self.block:
            return self.block["mask"]
        value = _value(self.site, "mask")
        if value is None or not self.mask_columns:
            return value
        return self.code.call(narrow, value, *self.columns(), *self.sequence.part(self.source(step)))

    def attend(self, before: Sequence[Value | None], after: Sequence[Value | None], step: int) -> list[Value]:
        """Attention or its backward with the block; ``before`` and ``after`` are its operands beside k, v and mask."""
        tensors = [*before, self.block["k"], self.block["v"], *after, self.mask(step), _value(self.site, "rng")]
        return _call(self.code, self.site, tensors, self.sequence, self.source(step), ring=True)


def _ring(site: Site) -> LocalCode:
    code = Writer(len(site.call.operands))
    ring = _Ring(site, code)
    q = _value(site, "q")
    out: Value | None = None
    lse: Value | None = None
    for step in range(ring.count):
        if step:
            ring.shift(ring.block, step)
        if not ring.computes(step):
            continue
        new_out, new_lse = ring.attend([q], [], step)
        if out is None or lse is None:
            out, lse = new_out, new_lse
        else:
            out, lse = code.add(merged, (out, lse, new_out, new_lse), {}, 2, True)
    if out is None:
        dtypes = [tensor.dtype if tensor else None for tensor in site.call.results]
        made = [
            None if dtype is None else code.call(aten.new_zeros.default, q, list(site.result(i)), dtype=dtype)
            for i, dtype in enumerate(dtypes)
        ]
        return _exist(site, code, *made)
    return _exist(site, code, out, lse)


def _ring_backward(site: Site) -> LocalCode:
    code = Writer(len(site.call.operands))
    ring = _Ring(site, code)
    first = [_value(site, name) for name in ("grad", "q")]
    given = [_value(site, name) for name in ("out", "lse")]
    learned = site.call.results[3] is not None
    q, mask = _value(site, "q"), _value(site, "mask")
    grad_q = code.call(aten.zeros_like.default, q)
    travelling = {name: code.call(aten.zeros_like.default, ring.block[name]) for name in ("k", "v")}
    if learned and "mask" in ring.block:
        contiguous = {"memory_format": torch.contiguous_format}
        travelling["mask"] = code.call(aten.zeros_like.default, ring.block["mask"], **contiguous)
    grad_mask = None
    if learned and "mask" not in ring.block:
        shape = local_shape(site, site.call.names.index("mask"))
        grad_mask = code.call(aten.new_zeros.default, mask, list(shape))
    for step in range(ring.count):
        if step:
            ring.shift(ring.block, step)
            ring.shift(travelling, step)
        if not ring.computes(step):
            continue
        made = ring.attend(first, given, step)
        grad_q = code.call(aten.add.Tensor, grad_q, made[0])
        parts = {"k": made[1], "v": made[2], "mask": made[3]}
        for name, value in travelling.items():
            travelling[name] = code.call(aten.add.Tensor, value, parts[name])
        if grad_mask is not None and ring.mask_columns:
            start, _ = ring.sequence.part(ring.source(step))
            grad_mask = code.call(written, grad_mask, *ring.columns(), start, made[3])
        elif grad_mask is not None:
            grad_mask = code.call(aten.add.Tensor, grad_mask, made[3])
    ring.shift(travelling, ring.count)
    return _exist(site, code, grad_q, travelling["k"], travelling["v"], travelling.get("mask", grad_mask))


def _ring_bytes(bound: Bound, axis: int) -> tuple[Inner, ...]:
    """Keys and values go round, in the backward their gradients too; so does a mask that has columns alone."""
    call = bound.call
    names = ["k", "v"]
    if call.has("mask"):
        letters = bound.operands[call.order.index(call.names.index("mask"))]
        names += ["mask"] * ("t" in letters and "s" not in letters)
    sizes = [float(call.operands[call.names.index(name)].bytes) for name in names]
    if call.has("grad"):
        sizes += sizes if call.results[3] is not None else sizes[:2]
    return tuple(Inner("all_to_all", size, axis) for size in sizes)


COMPOSITES = {
    "attention_keys": Composite(_over_keys, _lse_bytes, whole=frozenset({1})),
    "attention_ring": Composite(_ring, _ring_bytes, together=("t",)),
    "attention_ring_backward": Composite(_ring_backward, _ring_bytes, together=("t",)),
}

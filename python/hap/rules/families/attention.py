"""Scaled dot-product attention.

Letters: b batch dimensions, g heads, j and r the heads of queries to each of keys and values (grouped queries), s
queries, t keys, e and f features of a head; "parts" are the two numbers of a log-sum-exp. Batch dimensions broadcast.
Queries may be shared also under a causal mask, which is told where they stand; how keys are, says
:mod:`hap.rules.composites.attention`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hap.rules.call import Call, Local, Lowered, Rule, Shape, Table, broadcast


@dataclass(frozen=True, slots=True)
class _Letters:
    """Dims of the tensors of one attention."""

    q: list[str]
    k: list[str]
    v: list[str]
    out: list[str]
    lse: list[str]
    scores: list[str]


def _aligned(shape: Shape, whole: Shape, letters: list[str]) -> list[str]:
    """The letters of a tensor that broadcasts to ``whole``, whose letters are given."""
    skip = len(whole) - len(shape)
    return ["_" if n == 1 and whole[skip + i] != 1 else letters[skip + i] for i, n in enumerate(shape)]


def _head_letters(q: int, k: int, v: int) -> tuple[str, str, str] | None:
    """Letters of the heads of queries, keys and values where each head of one serves several of another."""
    few, more = sorted((k, v))
    if not few or more % few or q % more:
        return None
    queries = f"(g{' j' if more != few else ''}{' r' if q != more else ''})"
    larger = "(g j)" if more != few else "g"
    return "g" if q == few else queries, "g" if k == few else larger, "g" if v == few else larger


def _letters(call: Call) -> _Letters | None:
    shapes = [call.shape_of(name) for name in ("q", "k", "v")]
    own: list[list[str]] = [[], [], []]
    batches = [shape[:-2] for shape in shapes]
    if call["gqa"]:
        heads = _head_letters(*(shape[-3] for shape in shapes))
        if heads is None:
            return None
        own = [[letter] for letter in heads]
        batches = [shape[:-3] for shape in shapes]
    whole = broadcast(*batches)
    outer = [f"b{i}" for i in range(len(whole))]
    q, k, v = (_aligned(batch, whole, outer) + heads for batch, heads in zip(batches, own, strict=True))
    scored = broadcast(*batches[:2])
    scores = _aligned(scored, whole, outer) + own[0]
    return _Letters(
        q=[*q, "s", "e!"],
        k=[*k, "t!", "e!"],
        v=[*v, "t!", "f!"],
        out=[*outer, *own[0], "s", "f!"],
        lse=[*scores, "s", "parts!"],
        scores=[*scores, "s", "t!"],
    )


def _scores_shape(call: Call) -> Shape:
    q, k = call.shape_of("q"), call.shape_of("k")
    batch = (q[-3],) if call["gqa"] else ()
    skip = 2 + len(batch)
    return (*broadcast(q[:-skip], k[:-skip]), *batch, q[-2], k[-2])


def _mask(call: Call, letters: _Letters) -> str:
    return " ".join(_aligned(call.shape_of("mask"), _scores_shape(call), letters.scores)) or "."


def _extra(call: Call, letters: _Letters) -> list[str]:
    """Patterns of the mask and of the state of the random numbers, where they are there."""
    patterns = [_mask(call, letters)] if call.has("mask") else []
    return patterns + (["state!"] if call.has("rng") else [])


def _forward(call: Call) -> str | None:
    letters = _letters(call)
    if letters is None:
        return None
    q, k, v, out, lse = (" ".join(dims) for dims in (letters.q, letters.k, letters.v, letters.out, letters.lse))
    read = "0 1 3" if call.has("mask") else "0 1"
    line = f"{', '.join([q, k, '~' + v, *_extra(call, letters)])} -> {out}, {lse}{{{read}}}"
    return f"{line} composite t=attention_keys, s=attention_ring"


def _backward(call: Call) -> str | None:
    letters = _letters(call)
    if letters is None:
        return None
    q, k, v, out, lse = (" ".join(dims) for dims in (letters.q, letters.k, letters.v, letters.out, letters.lse))
    mask = _mask(call, letters) if call.has("mask") else "."
    line = f"{', '.join(['~' + out, q, k, v, out, lse, *_extra(call, letters)])} -> {q}, {k}, {v}, {mask}"
    # From the log-sum-exp over all keys, each key's share of the gradients follows without the others.
    return f"{line.replace('t!', 't')} composite s=attention_ring_backward"


def score_letters(call: Call) -> list[str]:
    """The letters of the scores, dimension by dimension."""
    letters = _letters(call)
    assert letters is not None
    return [letter for dim in letters.scores if dim != "_" for letter in dim.strip("()!").split()]


def _where(call: Call, local: Local) -> Lowered:
    """The rank's part of the scores where there is dropout, of the sequences where the mask is causal."""
    changes = local.window(score_letters(call)) if call.has("rng") else {}
    if call["causal"]:
        stretches = {"queries": local.stretch("s"), "keys": local.stretch("t")}
        changes |= {name: stretch for name, stretch in stretches.items() if stretch is not None}
    return call.operator.target, changes


RULES: Table = {
    "hap.sdpa.default": Rule(_forward, lower=_where),
    "hap.sdpa_backward.default": Rule(_backward, lower=_where),
}

"""Scaled dot-product attention.

Letters: b batch dimensions, g heads of keys and values, r query heads to each of them (grouped queries), s queries, t
keys, e and f features of a head. A causal mask compares the positions of queries with those of keys and blocks both.
"""

from __future__ import annotations

from hap.rules.call import Call, Local, Lowered, Rule, Shape, Table


def _letters(call: Call) -> dict[str, list[str]] | None:
    """Dims of queries, keys, values and scores; ``None`` where batch dimensions broadcast."""
    query, key, value = (call.shape_of(name) for name in ("q", "k", "v"))
    if not len(query) == len(key) == len(value) or len(query) < 2:
        return None
    batch = len(query) - 2
    if call["gqa"] and batch and query[-3] != key[-3]:
        heads, kept = ["(g r)"], ["g"]
        batch -= 1
        if key[-3] != value[-3] or query[-3] % key[-3]:
            return None
    else:
        heads, kept = [], []
    if not query[:batch] == key[:batch] == value[:batch]:
        return None
    outer = [f"b{i}" for i in range(batch)]
    queries = "s!" if call["causal"] else "s"
    return {
        "q": [*outer, *heads, queries, "e!"],
        "k": [*outer, *kept, "t!", "e!"],
        "v": [*outer, *kept, "t!", "f!"],
        "out": [*outer, *heads, queries, "f!"],
        "lse": [*outer, *heads, queries],
        "scores": [*outer, *heads, queries, "t!"],
    }


def _scores_shape(call: Call) -> Shape:
    return (*call.shape_of("q")[:-1], call.shape_of("k")[-2])


def _mask(call: Call, scores: list[str]) -> str:
    """The letters of a mask that broadcasts into the scores."""
    shape, whole = call.shape_of("mask"), _scores_shape(call)
    skip = len(whole) - len(shape)
    return " ".join("_" if n == 1 and whole[skip + i] != 1 else scores[skip + i] for i, n in enumerate(shape)) or "."


def _extra(call: Call, scores: list[str]) -> list[str]:
    """Patterns of the mask and of the state of the random numbers, where they are there."""
    patterns = [_mask(call, scores)] if call.has("mask") else []
    return patterns + (["state!"] if call.has("rng") else [])


def _forward(call: Call) -> str | None:
    letters = _letters(call)
    if letters is None:
        return None
    q, k, v, out, lse = (" ".join(letters[name]) or "." for name in ("q", "k", "v", "out", "lse"))
    extra = _extra(call, letters["scores"])
    read = "0 1 3" if call.has("mask") else "0 1"
    return f"{', '.join([q, k, '~' + v, *extra])} -> {out}, {lse}{{{read}}}"


def _backward(call: Call) -> str | None:
    letters = _letters(call)
    if letters is None:
        return None
    q, k, v, out, lse = (" ".join(letters[name]) or "." for name in ("q", "k", "v", "out", "lse"))
    extra = _extra(call, letters["scores"])
    mask = _mask(call, letters["scores"]) if call.has("mask") else "."
    return f"{', '.join(['~' + out, q, k, v, out, lse, *extra])} -> {q}, {k}, {v}, {mask}"


def _window(call: Call, local: Local) -> Lowered:
    """Where there is dropout, the rank's part of the scores."""
    if not call.has("rng"):
        return call.operator.target, {}
    letters = _letters(call)
    assert letters is not None
    names = [letter for dim in letters["scores"] for letter in dim.strip("()!").split()]
    return call.operator.target, local.window(names)


RULES: Table = {
    "hap.sdpa.default": Rule(_forward, lower=_window),
    "hap.sdpa_backward.default": Rule(_backward, lower=_window),
}

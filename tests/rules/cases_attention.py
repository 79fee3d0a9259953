"""Cases of attention: masks, causal, grouped queries, dropout, batch dimensions that broadcast."""

from __future__ import annotations

import torch

from hap.graph import Ref
from tests.rules.sketch import Sketch, add

aten, own = torch.ops.aten, torch.ops.hap


def state(s: Sketch) -> Ref:
    return s.constant(torch.tensor([s.rng.randrange(100), 3]))


def attention(
    s: Sketch,
    *,
    q: str = "b h s e",
    k: str = "b h t e",
    v: str = "b h t e",
    mask: str = "",
    hidden: float = 0.0,
    p: float = 0.0,
    causal: bool = False,
    gqa: bool = False,
    ring: bool = False,
    backward: bool = False,
) -> None:
    """Tensors are given by their dimensions: letters, one beside another for a product, ``_`` for a size of one.

    ``hidden``: the mask has this number at half of its places and in whole rows, and minus infinity at some of each.
    ``ring``: queries and keys are of one sequence, so that its axis stands twice in the scores.
    """
    size = dict(zip("abghjrstuef", s.sizes(11), strict=True)) | {"_": 1}
    if causal or ring:
        size["t"] = size["s"]

    def tensor(dims: str, dtype: torch.dtype = torch.float64) -> Ref:
        return s.product(*(tuple(size[letter] for letter in dim) for dim in dims.split()), dtype=dtype)

    query, key, value = (tensor(dims) for dims in (q, k, v))
    if ring:
        sums = [s.call(aten.sum.dim_IntList, x, [0, 1]) for x in (query, key)]
        s.call(aten.add.Tensor, *sums)
    dtype = torch.bool if mask.startswith("?") else torch.float64
    bias = tensor(mask.strip("?"), dtype) if mask else None
    if bias and hidden:
        for number, one_of, rows in (
            (hidden, 2, False),
            (-torch.inf, 5, False),
            (hidden, 3, True),
            (-torch.inf, 4, True),
        ):
            *outer, columns = s.shape(bias)
            there = s.call(aten.eq.Scalar, s.integers(one_of, *outer, 1 if rows else columns), 0)
            bias = s.call(aten.masked_fill.Scalar, bias, there, number)
    rng = state(s) if p else None
    out, lse = s.call(own.sdpa.default, query, key, value, bias, rng, p, causal, 0.5, gqa, 7)
    if backward:
        grad = s.constant(torch.randn(s.shape(out), generator=s.generator, dtype=torch.float64))
        learned = bool(mask) and dtype != torch.bool
        s.call(
            own.sdpa_backward.default, grad, query, key, value, out, lse, bias, rng, p, causal, 0.5, gqa, 7, learned
        )  # fmt: skip


def _forward(expected: str, **options: object) -> None:
    add("hap.sdpa.default", expected, lambda s: attention(s, **options))  # type: ignore[arg-type]


def _backward(expected: str, **options: object) -> None:
    add("hap.sdpa_backward.default", expected, lambda s: attention(s, backward=True, **options))  # type: ignore[arg-type]


_PLAIN = "S0 S0 S0 -> S0 S0, S1 S1 S1 -> S1 S1, S2 R R -> S2 S2, R R P -> P R, R S2 S2 -> P R attention_keys"
_PLAIN_BACKWARD = (
    "S0 S0 S0 S0 S0 S0 -> S0 S0 S0, S1 S1 S1 S1 S1 S1 -> S1 S1 S1, S2 S2 R R S2 S2 -> S2 P P,"
    "R R S2 S2 R R -> P S2 S2, P R R R R R -> P P P"
)
_forward(_PLAIN)
_forward(_PLAIN, causal=True)
_forward(_PLAIN, v="b h t f")
_backward(_PLAIN_BACKWARD)
_backward(_PLAIN_BACKWARD, causal=True)
_backward(_PLAIN_BACKWARD, v="b h t f", causal=True)

# ---- masks and dropout

_forward(
    "S0 S0 S0 S0 -> S0 S0, S1 S1 S1 R -> S1 S1, S2 R R S1 -> S2 S2, R R P R -> P R,R S2 S2 S2 -> P R attention_keys",
    mask="b _ s t",
)
_forward(
    "S0 S0 S0 R -> S0 S0, S1 S1 S1 R -> S1 S1, S2 R R S0 -> S2 S2, R R P R -> P R, R S2 S2 S1 -> P R attention_keys",
    mask="?s t", causal=True,
)  # fmt: skip
_forward(
    "S0 S0 S0 R -> S0 S0, S1 S1 S1 S0 -> S1 S1, S2 R R S1 -> S2 S2, R R P R -> P R, R S2 S2 R -> P R attention_keys",
    mask="_ h s _",
)
_forward(
    "S0 S0 S0 R -> S0 S0, S1 S1 S1 R -> S1 S1, S2 R R R -> S2 S2, R R P R -> P R, R S2 S2 R -> P R attention_keys",
    p=0.4, causal=True,
)  # fmt: skip
_forward(
    # the sequence is a product: a share of one of its axes is no stretch of positions
    "S0 S0 S0 -> S0 S0, S1 R R -> S1 S1, S2 R R -> S2 S2, R R P -> P R,"
    "R S1 S1 -> P R attention_keys, R S2 S2 -> P R attention_keys, S4 R R -> S4 S4",
    q="b su e", k="b su e", v="b su e", causal=True,
)  # fmt: skip
_backward(
    "S0 S0 S0 S0 S0 S0 S0 R -> S0 S0 S0 S0, S1 S1 S1 S1 S1 S1 R R -> S1 S1 S1 P,"
    "S2 S2 R R S2 S2 S1 R -> S2 P P S1, R R S2 S2 R R S2 R -> P S2 S2 S2, P R R R R R R R -> P P P P",
    mask="b _ s t", p=0.4, causal=True,
)  # fmt: skip
_backward(
    "S0 S0 S0 S0 S0 S0 R -> S0 S0 S0 P, S1 S1 S1 S1 S1 S1 S0 -> S1 S1 S1 S0,"
    "S2 S2 R R S2 S2 R -> S2 P P P, R R S2 S2 R R S1 -> P S2 S2 S1, P R R R R R R -> P P P P",
    mask="_ h _ t",
)  # fmt: skip
_backward(
    "S0 S0 S0 S0 S0 S0 R -> S0 S0 S0, S1 S1 S1 S1 S1 S1 R -> S1 S1 S1,"
    "S2 S2 R R S2 S2 S0 -> S2 P P, R R S2 S2 R R S1 -> P S2 S2, P R R R R R R -> P P P",
    mask="?s t",
)  # fmt: skip
_backward(
    "S0 S0 S0 S0 S0 S0 -> S0 S0 S0, S1 S1 R R S1 S1 -> S1 P P, S2 S2 R R S2 S2 -> S2 P P,"
    "R R S1 S1 R R -> P S1 S1, R R S2 S2 R R -> P S2 S2, P R R R R R -> P P P,"
    "S4 S4 R R S4 S4 -> S4 P P, R R S4 S4 R R -> P S4 S4",
    q="b su e", k="b su e", v="b su e", causal=True,
)  # fmt: skip

# ---- grouped queries: heads of keys, and the queries to each

_GROUPED = (
    "S0 S0 S0 S0 R -> S0 S0, S1 S1 S1 R R -> S1 S1, S2 R R R R -> S2 S2, S3 R R S1 R -> S3 S3, R R P R R -> P R,"
    "R S2 S2 S2 R -> P R attention_keys"
)
_GROUPED_BACKWARD = (
    "S0 S0 S0 S0 S0 S0 S0 R -> S0 S0 S0 S0, S1 S1 S1 S1 S1 S1 R R -> S1 S1 S1 P,"
    "S2 S2 R R S2 S2 R R -> S2 P P P, S3 S3 R R S3 S3 S1 R -> S3 P P S1,"
    "R R S2 S2 R R S2 R -> P S2 S2 S2, P R R R R R R R -> P P P P"
)
_forward(_GROUPED, q="b gr s e", k="b g t e", v="b g t e", mask="b _ s t", p=0.4, gqa=True)
_backward(
    _GROUPED_BACKWARD,
    q="b gr s e", k="b g t e", v="b g t e", mask="b _ s t", p=0.4, gqa=True,
)  # fmt: skip
_forward(
    # more heads of keys than of values; the batch broadcasts
    "S0 R R -> S0 S0, S1 S0 S0 -> S1 S1, S2 S1 R -> S2 S2, S3 R R -> S3 S3, S4 R R -> S4 S4, R R P -> P R,"
    "R S2 S1 -> P R attention_keys",
    q="b gjr s e", k="_ gj t e", v="_ g t e", gqa=True,
)  # fmt: skip
_backward(
    "S0 S0 R R S0 S0 -> S0 P P, S1 S1 S0 S0 S1 S1 -> S1 S0 S0, S2 S2 R S1 S2 S2 -> S2 P S1,"
    "S3 S3 R R S3 S3 -> S3 P P, S4 S4 R R S4 S4 -> S4 P P, R R S1 S2 R R -> P S1 S2, P R R R R R -> P P P",
    q="b gjr s e", k="_ g t e", v="_ gj t e", gqa=True, causal=True,
)  # fmt: skip

# ---- batch dimensions that broadcast, or of another number than two

_forward(
    # one head of keys and values for all queries
    "S0 S0 S0 S0 -> S0 S0, S1 R R R -> S1 S1, S2 R R S1 -> S2 S2, R R P R -> P R,"
    "R S1 S1 S2 -> P R attention_keys",
    k="b _ t e", v="b _ t e", mask="b _ s t",
)  # fmt: skip
_backward(
    "S0 S0 S0 S0 S0 S0 R -> S0 S0 S0, S1 S1 R R S1 S1 R -> S1 P P, S2 S2 R R S2 S2 R -> S2 P P,"
    "R R S1 S1 R R R -> P S1 S1, P R R R R R R -> P P P",
    k="b _ t e", v="b _ t e", p=0.4, causal=True,
)  # fmt: skip
_forward(
    # the batch stands in the values alone, or in the keys alone: then the scores have it, or not
    "R R S0 -> S0 R, S0 S0 S1 -> S1 S0, S1 R R -> S2 S1, R R P -> P R,"
    "R S1 S2 -> P R attention_keys",
    q="h s e", k="h t e",
)  # fmt: skip
_forward(
    "R S0 R R -> S0 S0, S0 S1 S0 R -> S1 S1, S1 R R R -> S2 S2, R R P R -> P R, R S2 S1 R -> P R attention_keys",
    q="_ h s e", v="h t e", p=0.4,
)  # fmt: skip
_backward(
    "S0 R R S0 S0 R -> P P S0, S1 S0 S0 S1 S1 S0 -> S0 S0 S1, S2 S1 R R S2 S1 -> S1 P P,"
    "R R S1 S2 R R -> P S1 S2, P R R R R R -> P P P",
    q="h s e", k="h t e",
)  # fmt: skip
_forward("S0 R R -> S0 S0, R R P -> P R, R S0 S0 -> P R attention_keys", q="s e", k="t e", v="t f")
_forward(
    "S0 S0 S0 S0 -> S0 S0, S1 S1 S1 R -> S1 S1, S2 S2 S2 S1 -> S2 S2, S3 R R S2 -> S3 S3, R R P R -> P R,"
    "R S3 S3 S3 -> P R attention_keys",
    q="a b h s e", k="a b h t e", v="a b h t e", mask="a _ h s t",
)  # fmt: skip

# ---- the sequence sharded in queries and keys at once: a ring

for _causal in (False, True):
    _forward(f"{_PLAIN}, S2 S2 S2 -> S2 S2 attention_ring", ring=True, causal=_causal)
    _backward(f"{_PLAIN_BACKWARD}, S2 S2 S2 S2 S2 S2 -> S2 S2 S2 attention_ring_backward", ring=True, causal=_causal)
# the sequence is a product
_forward(
    "S0 S0 S0 -> S0 S0, S1 S1 S1 -> S1 S1, S2 R R -> S2 S2, S3 R R -> S3 S3, R R P -> P R,"
    "R S2 S2 -> P R attention_keys, R S3 S3 -> P R attention_keys,"
    "S2 S2 S2 -> S2 S2 attention_ring, S3 S3 S3 -> S3 S3 attention_ring, S5 R R -> S5 S5",
    ring=True, q="b h su e", k="b h su e", v="b h su e", causal=True,
)  # fmt: skip
_backward(
    "S0 S0 S0 S0 S0 S0 -> S0 S0 S0, S1 S1 S1 S1 S1 S1 -> S1 S1 S1, S2 S2 R R S2 S2 -> S2 P P,"
    "S3 S3 R R S3 S3 -> S3 P P, R R S2 S2 R R -> P S2 S2, R R S3 S3 R R -> P S3 S3, P R R R R R -> P P P,"
    "S2 S2 S2 S2 S2 S2 -> S2 S2 S2 attention_ring_backward, S3 S3 S3 S3 S3 S3 -> S3 S3 S3 attention_ring_backward,"
    "S5 S5 R R S5 S5 -> S5 P P, R R S5 S5 R R -> P S5 S5",
    ring=True, q="b h su e", k="b h su e", v="b h su e", causal=True,
)  # fmt: skip
_forward(
    f"{_GROUPED}, S3 S2 S2 S1 R -> S3 S3 attention_ring",
    ring=True, q="b gr s e", k="b g t e", v="b g t f", gqa=True, mask="b _ s t", p=0.4,
)  # fmt: skip
_backward(
    f"{_GROUPED_BACKWARD}, S3 S3 S2 S2 S3 S3 S1 R -> S3 S2 S2 S1 attention_ring_backward",
    ring=True, q="b gr s e", k="b g t e", v="b g t f", gqa=True, mask="b _ s t", p=0.4,
)  # fmt: skip
# a mask of the keys travels with them, and so does its gradient
_forward(
    "S0 S0 S0 S0 R -> S0 S0, S1 S1 S1 R R -> S1 S1, S2 R R R R -> S2 S2, R R P R R -> P R,"
    "R S2 S2 S1 R -> P R attention_keys, S2 S2 S2 S1 R -> S2 S2 attention_ring",
    ring=True, mask="?b _ _ t", p=0.4, causal=True,
)  # fmt: skip
_forward(
    "S0 S0 S0 S0 -> S0 S0, S1 S1 S1 R -> S1 S1, S2 R R R -> S2 S2, R R P R -> P R,"
    "R S2 S2 S1 -> P R attention_keys, S2 S2 S2 S1 -> S2 S2 attention_ring",
    ring=True, mask="b _ _ t",
)  # fmt: skip
_backward(
    "S0 S0 S0 S0 S0 S0 S0 R -> S0 S0 S0 S0, S1 S1 S1 S1 S1 S1 R R -> S1 S1 S1 P, S2 S2 R R S2 S2 R R -> S2 P P P,"
    "R R S2 S2 R R S1 R -> P S2 S2 S1, P R R R R R R R -> P P P P,"
    "S2 S2 S2 S2 S2 S2 S1 R -> S2 S2 S2 S1 attention_ring_backward",
    ring=True, mask="b _ _ t", p=0.4, causal=True,
)  # fmt: skip
_backward(
    "S0 S0 S0 S0 S0 S0 R -> S0 S0 S0 P, S1 S1 S1 S1 S1 S1 S0 -> S1 S1 S1 S0, S2 S2 R R S2 S2 S1 -> S2 P P S1,"
    "R R S2 S2 R R R -> P S2 S2 P, P R R R R R R -> P P P P,"
    "S2 S2 S2 S2 S2 S2 S1 -> S2 S2 S2 S1 attention_ring_backward",
    ring=True, mask="_ h s _",
)  # fmt: skip
_backward(
    "S0 S0 S0 S0 S0 S0 R -> S0 S0 S0 P, S1 S1 S1 S1 S1 S1 S0 -> S1 S1 S1 S0, S2 S2 R R S2 S2 R -> S2 P P P,"
    "R R S2 S2 R R R -> P S2 S2 P, P R R R R R R -> P P P P,"
    "S2 S2 S2 S2 S2 S2 R -> S2 S2 S2 P attention_ring_backward",
    ring=True, mask="_ h _ _",
)  # fmt: skip

# ---- keys hidden by large numbers or by minus infinity, whole rows too

for _hidden in (-1e4, torch.finfo(torch.float32).min, torch.finfo(torch.float64).min):
    _forward(
        "S0 S0 S0 S0 -> S0 S0, S1 S1 S1 R -> S1 S1, S2 R R S1 -> S2 S2, R R P R -> P R,"
        "R S2 S2 S2 -> P R attention_keys, S2 S2 S2 S1 -> S2 S2 attention_ring",
        ring=True, mask="b _ s t", hidden=_hidden,
    )  # fmt: skip
    _backward(
        "S0 S0 S0 S0 S0 S0 S0 -> S0 S0 S0 S0, S1 S1 S1 S1 S1 S1 R -> S1 S1 S1 P, S2 S2 R R S2 S2 S1 -> S2 P P S1,"
        "R R S2 S2 R R S2 -> P S2 S2 S2, P R R R R R R -> P P P P,"
        "S2 S2 S2 S2 S2 S2 S1 -> S2 S2 S2 S1 attention_ring_backward",
        ring=True, mask="b _ s t", hidden=_hidden, causal=True,
    )  # fmt: skip

for _hidden in (-1e9, -torch.inf):
    # with dropout
    _forward(
        "S0 S0 S0 S0 R -> S0 S0, S1 S1 S1 R R -> S1 S1, S2 R R S1 R -> S2 S2, R R P R R -> P R,"
        "R S2 S2 S2 R -> P R attention_keys",
        mask="b _ s t", hidden=_hidden, p=0.4,
    )  # fmt: skip
    _backward(
        "S0 S0 S0 S0 S0 S0 S0 R -> S0 S0 S0 S0, S1 S1 S1 S1 S1 S1 R R -> S1 S1 S1 P,"
        "S2 S2 R R S2 S2 S1 R -> S2 P P S1, R R S2 S2 R R S2 R -> P S2 S2 S2, P R R R R R R R -> P P P P",
        mask="b _ s t", hidden=_hidden, p=0.4,
    )  # fmt: skip
    # without a batch
    _forward(
        "S0 S0 S0 S0 -> S0 S0, S1 R R S1 -> S1 S1, R R P R -> P R, R S1 S1 S2 -> P R attention_keys",
        q="h s e", k="h t e", v="h t e", mask="h s t", hidden=_hidden,
    )  # fmt: skip
    _backward(
        "S0 S0 S0 S0 S0 S0 S0 -> S0 S0 S0 S0, S1 S1 R R S1 S1 S1 -> S1 P P S1, R R S1 S1 R R S2 -> P S1 S1 S2,"
        "P R R R R R R -> P P P P",
        q="h s e", k="h t e", v="h t e", mask="h s t", hidden=_hidden,
    )  # fmt: skip

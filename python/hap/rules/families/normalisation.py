"""Normalisation over the last dimensions.

Letters: a what is normalised apart, d what is normalised over, u size one.
"""

from __future__ import annotations

from hap.rules.call import Call, Rule, Table


def _runs(call: Call) -> dict[str, int]:
    count = len(call["normalized_shape"])
    return {"d": count, "u": count}


RULES: Table = {
    "aten.native_layer_norm.default": Rule("*a *d!, *d!, *d! -> *a *d!, *a *u!{0}, *a *u!{0}", runs=_runs),
    "aten.native_layer_norm_backward.default": Rule(
        "~*a *d!, *a *d!, *a *u!, *a *u!, *d!, *d! -> *a *d!{0 1 2 3 4}, *d!{0 1 2 3}, *d!{0}",
        runs=_runs,
    ),
    "aten.native_group_norm.default": Rule("n c! *x!, c!, c! -> n c! *x!, n g!{0}, n g!{0} size N=n"),
}

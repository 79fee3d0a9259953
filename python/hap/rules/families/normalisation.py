"""Normalisation over the last dimensions, and over the channels of a group.

Letters: a what is normalised apart, d what is normalised over, u size one; n samples, g groups, c channels of a group,
x pixels.
"""

from __future__ import annotations

from hap.rules.call import Call, Rule, Table


def _runs(call: Call) -> dict[str, int]:
    count = len(call["normalized_shape"])
    return {"d": count, "u": count}


RULES: Table = {
    "aten.native_layer_norm.default": Rule(
        "*a *d!, *d!, *d! -> *a *d!, *a *u!{0}, *a *u!{0} composite d=norm", runs=_runs
    ),
    "aten.native_layer_norm_backward.default": Rule(
        "~*a *d!, *a *d!, *a *u!, *a *u!, *d!, *d! -> *a *d!{0 1 2 3 4}, *d!{0 1 2 3}, *d!{0}"
        " composite d=norm_backward",
        runs=_runs,
    ),
    "aten.native_group_norm.default": Rule(
        "n (g c!) *x!, (g c), (g c) -> n (g c) *x, n g{0}, n g{0} size N=n, C=(g c), group=g composite c=norm, x=norm",
        contiguous=True,
    ),
    "aten.native_group_norm_backward.default": Rule(
        "~n (g c!) *x!, n (g c) *x, n g, n g, (g c) -> n (g c) *x, (g c){0 1 2 3}, (g c){0}"
        " size N=n, C=(g c), group=g composite c=norm_backward, x=norm_backward",
        contiguous=True,
    ),
}

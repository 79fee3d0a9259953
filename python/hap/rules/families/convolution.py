"""Convolutions. Letters: n batch, g groups, c input and o output channels of a group, x, k, y positions."""

from __future__ import annotations

from hap.rules.call import Call, Rule, Table


def _forward(call: Call) -> str | None:
    if len(call.shape(0)) != len(call.shape(1)):
        return None
    if call["transposed"]:
        return "~n (g c) *x!, ~(g c) o *k!, +(g o) -> n (g o) *y! size groups=g"
    return "~n (g c) *x!, ~(g o) c *k!, +(g o) -> n (g o) *y! size groups=g"


def _backward(call: Call) -> str | None:
    if len(call.shape(1)) != len(call.shape(2)):
        return None
    weight = "(g c) o *k!" if call["transposed"] else "(g o) c *k!"
    return (
        f"~n (g o) *y!, n (g c) *x!, {weight} -> n (g c) *x!{{0 2}}, {weight}{{0 1}}, (g o){{0}}"
        " size groups=g, bias_sizes=(g o)"
    )


RULES: Table = {
    "aten.convolution.default": Rule(_forward),
    "aten.convolution_backward.default": Rule(_backward),
}

"""Fourier transforms: linear, the transformed dimensions stay whole. Complex numbers as pairs."""

from __future__ import annotations

from hap.rules.call import Call, Rule, Table


def _transform(call: Call) -> str:
    taken = {d % len(call.shape()) for d in call["dim"]}
    operand = " ".join(f"d{i}!" if i in taken else f"d{i}" for i in range(len(call.shape())))
    # one-sided transforms have another number of frequencies than of samples
    result = " ".join(f"f{i}!" if i in taken else f"d{i}" for i in range(len(call.shape())))
    return f"~{operand} -> {result}"


RULES: Table = {
    "aten._fft_c2c.default": Rule(_transform),
    "aten._fft_r2c.default": Rule(_transform),
    "aten._fft_c2r.default": Rule(_transform),
    "aten.view_as_real.default": Rule("~*d -> *d pair!"),
    "aten.view_as_complex.default": Rule("~*d pair! -> *d"),
}

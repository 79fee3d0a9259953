"""hap's own random operators: functions of the step's state and the position in the whole tensor."""

from __future__ import annotations

from hap.rules.call import Call, Local, Lowered, Rule, Table


def _window(call: Call, local: Local) -> Lowered:
    return call.operator.target, local.window([f"d{i}" for i in range(len(call.result_shape()))])


RULES: Table = {
    "hap.dropout.default": Rule("~*d, state! -> *d", lower=_window),
    "hap.rand.default": Rule("state! -> *d size size=result", lower=_window),
    "hap.randn.default": Rule("state! -> *d size size=result", lower=_window),
    "hap.bernoulli.default": Rule("state! -> *d size size=result", lower=_window),
    "hap.randint.default": Rule("state! -> *d size size=result", lower=_window),
}

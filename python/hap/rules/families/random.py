"""hap's own random operators: functions of (seed, step) and position, so that a mask does not depend on the split."""

from __future__ import annotations

from hap.rules.call import Call, Local, Lowered, Rule, Table


def _window(call: Call, local: Local) -> Lowered:
    return call.operator.target, local.window([f"d{i}" for i in range(len(call.shape()))])


RULES: Table = {
    "hap.dropout.default": Rule("~*d, state! -> *d", lower=_window),
}

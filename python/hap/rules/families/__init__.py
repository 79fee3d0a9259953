"""The rules, one table for each family."""

from __future__ import annotations

from functools import cache

import torch

from hap.rules import adapter
from hap.rules.call import Rule, Table
from hap.rules.families import (
    attention,
    contraction,
    convolution,
    creation,
    fourier,
    indexing,
    joining,
    linalg,
    normalisation,
    order,
    pointwise,
    pooling,
    random,
    recurrent,
    reduction,
    resampling,
    strided,
    view,
)

FAMILIES = (
    pointwise,
    reduction,
    contraction,
    view,
    joining,
    indexing,
    convolution,
    pooling,
    normalisation,
    attention,
    random,
    recurrent,
    creation,
    order,
    resampling,
    strided,
    fourier,
    linalg,
)

RULES: Table = {}
for _family in FAMILIES:
    _twice = RULES.keys() & _family.RULES.keys()
    assert not _twice, f"operators in two families: {sorted(_twice)}"
    RULES.update(_family.RULES)


REGISTERED: Table = {}
"""Users' rules (:func:`hap.register_rule`); they come before hap's own."""


@cache
def _name(target: torch._ops.OpOverload) -> str:
    return str(target)


def written_rule_of(target: torch._ops.OpOverload) -> Rule | None:
    """The user's or hap's own rule of an overload, if there is one."""
    name = _name(target)
    return REGISTERED.get(name) or RULES.get(name) or pointwise.generated(target)


def rule_of(target: torch._ops.OpOverload) -> Rule | None:
    """The rule of an overload: the user's, hap's own, or what follows from PyTorch's strategies; if there is one."""
    return written_rule_of(target) or adapter.adapted(target)


def every_rule() -> Table:
    """All rules of hap, those that follow from PyTorch's tags included, by overload."""
    return dict(sorted({**pointwise.every_generated(), **RULES}.items()))

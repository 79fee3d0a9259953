"""Composite instructions: ways across a letter that a rule's line blocks, by the name that the line calls them by.

Each is a :class:`hap.rules.choices.Composite`. Its local code may call :class:`hap.rules.local.Collective`; what it
sends has its cost (:class:`hap.rules.choices.Inner`).
"""

from __future__ import annotations

from hap.rules.choices import Composite
from hap.rules.composites import attention, normalisation, reduction, softmax

COMPOSITES: dict[str, Composite] = {}
for _module in (attention, softmax, normalisation, reduction):
    _twice = COMPOSITES.keys() & _module.COMPOSITES.keys()
    assert not _twice, f"composites in two modules: {sorted(_twice)}"
    COMPOSITES.update(_module.COMPOSITES)

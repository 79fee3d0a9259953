"""Why a plan is as it is, as plain data: what is split over which devices, what devices wait for, what else there is.

:func:`explain` reads a plan alone, and :func:`compare` two. What the search weighed for one operator
(:func:`alternatives`), and what a plan would be without an axis or a choice, or with a placement pinned or forbidden
(:func:`without_axis`, :func:`without_choice`, :func:`with_pins`), need the model again: its traced graph with axes, as
:func:`graph_of` makes it.
"""

from hap.explain.data import Alternative, AxisUse, DeviceUse, Difference, Explanation, OperatorUse, WhatIf
from hap.explain.difference import compare
from hap.explain.operator import alternatives
from hap.explain.use import explain
from hap.explain.without import with_pins, without_axis, without_choice
from hap.planning.made_for import graph_of

__all__ = [
    "Alternative",
    "AxisUse",
    "DeviceUse",
    "Difference",
    "Explanation",
    "OperatorUse",
    "WhatIf",
    "alternatives",
    "compare",
    "explain",
    "graph_of",
    "with_pins",
    "without_axis",
    "without_choice",
]

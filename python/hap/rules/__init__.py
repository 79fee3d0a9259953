"""Axes and operator rules: how each operator of a graph may be split over devices.

:func:`annotate` is the way in. The notation of the rules is described in :mod:`hap.rules.notation`, the rules
themselves are in :mod:`hap.rules.families`.
"""

from hap.rules.annotate import AxisGraph, Occurrence, annotate
from hap.rules.choices import Choice
from hap.rules.classes import divided
from hap.rules.local import LocalCall, LocalCode, Value
from hap.rules.naming import BATCH, Axis

__all__ = [
    "BATCH",
    "Axis",
    "AxisGraph",
    "Choice",
    "LocalCall",
    "LocalCode",
    "Occurrence",
    "Value",
    "annotate",
    "divided",
]

"""A plan as one HTML file for people: shares, a step by the clock, memory, the program, baselines.

:func:`hap.report.data.contents` says what is in it, as plain data; :mod:`hap.report.page` makes the page of that.
"""

from __future__ import annotations

import os

from hap.files import write_whole
from hap.planning.plan import Plan
from hap.report.data import contents
from hap.report.page import render

__all__ = ["html", "write"]


def html(plan: Plan) -> str:
    """The report of a plan: one page that needs nothing else. Equal plans give equal text.

    Raises:
        PlanError: the plan has no details, as it comes of an older version.
    """
    return render(contents(plan))


def write(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes :func:`html` to a file. Raises ``OSError`` where that cannot be written, and ``PlanError`` as it does."""
    write_whole(path, html(plan))

"""A plan in one line: what is split how, and which collectives a step has."""

from __future__ import annotations

import re
from collections import Counter

import hap
from hap.program import Convert

MOST = 4
"""Axes that are named; alike ones of repeated modules count as one."""


def in_a_line(plan: hap.Plan) -> str:
    """Axes by how many instructions go along them, with the ranks' units of the first of its kind."""
    used = Counter(axis for step in plan.program.instructions if (axis := getattr(step, "axis", None)) is not None)
    kinds: dict[str, list[str]] = {}
    for axis in sorted(used):
        kinds.setdefault(re.sub(r"\.\d+\.", ".*.", axis), []).append(axis)
    by_use = sorted(kinds.items(), key=lambda kind: (-sum(used[axis] for axis in kind[1]), kind[0]))
    splits = [f"{kind} {':'.join(map(str, plan.units(axes[0])))}" for kind, axes in by_use[:MOST]]
    if len(by_use) > MOST:
        splits.append(f"{len(by_use) - MOST} more")
    collectives = Counter(
        (step.conversion if step.implementation == "builtin" else f"{step.conversion}/{step.implementation}")
        for step in _carried_out(plan)
    )
    counts = [f"{count} {name}" for name, count in sorted(collectives.items())]
    left_out = f"; without ranks {', '.join(map(str, plan.left_out))}" if plan.left_out else ""
    return f"{', '.join(splits) or 'nothing split'}; {', '.join(counts) or 'no collectives'}{left_out}"


def _carried_out(plan: hap.Plan) -> list[Convert]:
    """The collectives of the program; those of a bucket are one."""
    found, buckets = [], set()
    for step in plan.program.instructions:
        if isinstance(step, Convert) and step.implementation is not None and step.bucket not in buckets:
            found.append(step)
            if step.bucket is not None:
                buckets.add(step.bucket)
    return found

"""Two plans side by side."""

from __future__ import annotations

from hap.explain.data import Changed, Difference
from hap.explain.use import conversions, first_runs
from hap.planning.plan import Plan
from hap.program import Compute, InputInstruction


def compare(one: Plan, other: Plan) -> Difference:
    """What differs between two plans, of one model or of two."""
    split = [plan.split_units for plan in (one, other)]
    stored = [_stored(plan) for plan in (one, other)]
    runs = [first_runs(plan.program) for plan in (one, other)]
    counts = [conversions(plan) for plan in (one, other)]
    both = [name for name in runs[0] if name in runs[1] and _shown(runs[0][name]) != _shown(runs[1][name])]
    return Difference(
        same_graph=one.fingerprints.graph == other.fingerprints.graph,
        devices=([each.name for each in one.cluster.devices], [each.name for each in other.cluster.devices]),
        step=(one.predicted_time, other.predicted_time),
        memory=(list(one.predicted_memory), list(other.predicted_memory)),
        units={
            name: (split[0].get(name), split[1].get(name))
            for name in dict.fromkeys([*split[0], *split[1]])
            if split[0].get(name) != split[1].get(name)
        },
        stored={
            name: (stored[0].get(name), stored[1].get(name))
            for name in dict.fromkeys([*stored[0], *stored[1]])
            if stored[0].get(name) != stored[1].get(name)
        },
        operators=[
            Changed(name, (runs[0][name].axis, runs[1][name].axis), (_shown(runs[0][name]), _shown(runs[1][name])))
            for name in both
        ],
        only=([name for name in runs[0] if name not in runs[1]], [name for name in runs[1] if name not in runs[0]]),
        conversions={
            kind: (counts[0].get(kind, 0), counts[1].get(kind, 0))
            for kind in sorted({*counts[0], *counts[1]})
            if counts[0].get(kind, 0) != counts[1].get(kind, 0)
        },
    )


def _stored(plan: Plan) -> dict[str, str]:
    inputs = (each for each in plan.program.instructions if isinstance(each, InputInstruction))
    return {each.tensor: ",".join(each.placement) for each in inputs}


def _shown(run: Compute) -> str:
    """Placements of operands and results, and the axis, such as ``S0 R -> S0 along batch``."""
    reads, writes = (" ".join(",".join(placement) for _, placement in side) for side in (run.inputs, run.outputs))
    return f"{reads} -> {writes}{'' if run.axis is None else f' along {run.axis}'}"

"""What is asserted of optimal programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import dedent

from hap.cluster import Cluster
from hap.planning import Plan, plan_axes
from hap.planning.engine import Constraints, Prices
from hap.planning.setup import make_problem
from hap.program import InputInstruction, Splits
from tests.planning.pictures import picture
from tests.runtime.one_device import Step


def optimum(whole: Step, machines: Cluster, tolerance: float = 1e-10) -> Plan:
    """The fastest plan, proven, which equals one device, and is faster than splitting the batch alone."""
    plan = plan_axes(whole.axes, machines)
    assert plan.search_gap == 0.0
    # The bound leaves open how many gradients share a bucket, and with it one latency.
    assert plan.predicted_time - plan.lower_bound <= 1.000001 * machines.collectives["all_reduce/builtin"].latency
    data_parallel = plan.baselines["ddp_even"]
    assert data_parallel is not None
    assert plan.predicted_time < 0.999 * data_parallel
    whole.check(plan.program, plan.splits, len(machines.devices), tolerance)
    return plan


def shown(whole: Step, plan: Plan, expected: str, names: Mapping[str, str] | None = None) -> list[Counter[str]]:
    """Compares the program's picture, and counts the collectives in its forward and in its backward."""
    found = picture(whole.axes, plan.program, names)
    assert found == dedent(expected).strip()
    return [Counter(re.findall(r" = (all_\w+|reduce_scatter)\(", part)) for part in found.split("\nbackward\n")]


def stored(plan: Plan, *names: str) -> list[str]:
    """The placements that parameters are stored in."""
    found = {i.tensor: i.placement[0] for i in plan.program.instructions if isinstance(i, InputInstruction)}
    return [found[name] for name in names]


def without(whole: Step, machines: Cluster, plan: Plan, axes: Sequence[str]) -> None:
    """It takes longer where nothing may be split along one of these axes."""
    for axis in axes:
        other = plan_axes(whole.axes, machines, forbidden_axes=[axis])
        assert other.search_gap == 0.0
        assert other.predicted_time > 1.001 * plan.predicted_time, axis


def restricted(
    whole: Step, machines: Cluster, splits: Splits, placements: Mapping[str, tuple[str, ...]]
) -> tuple[float, float]:
    """Simulated seconds and peak bytes of the best program that makes tensors in these placements, on equal devices."""
    count = len(machines.devices)
    engine = make_problem(whole.axes, machines).engine
    constraints = Constraints(placements=dict(placements))
    synthesis = engine.synthesise(splits, Prices((1.0 / count,) * count), constraints)
    assert synthesis.search_gap == 0.0
    simulation = engine.simulate(synthesis.program, splits)
    return simulation.seconds, max(simulation.memory)

"""What a plan was made for, found again: the graph of its module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hap.cluster import Cluster, Device
from hap.errors import PlanError
from hap.planning.plan import Plan

if TYPE_CHECKING:
    from torch import nn

    from hap.rules import AxisGraph


def graph_of(plan: Plan, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> AxisGraph:
    """The graph that a plan was made for, with axes, from its model and example inputs.

    Raises:
        PlanError: it was made for another model, or other inputs.
        TraceError: the model cannot be traced.
    """
    from hap.rules import annotate
    from hap.trace import trace

    axes = annotate(trace(module, args, kwargs, sharded_outputs=plan.sharded_outputs))
    plan.check_graph(axes.fingerprint)
    return axes


def cluster_of(plan: Plan, devices: Cluster | Sequence[str | Device | Cluster] | None, function: str) -> Cluster:
    """The plan's cluster, or as many other devices; ``function`` names in errors who asks.

    Raises:
        PlanError: ``plan`` is no plan, or the number of devices is another.
        ClusterError: a device is unknown or a figure is wrong.
    """
    if not isinstance(plan, Plan):
        raise PlanError(f"{function}: plan: expected a hap.Plan, got {plan!r}; hap.Plan.load reads one from a file")
    cluster = plan.cluster if devices is None else Cluster.of(devices)
    if len(cluster.devices) != len(plan.cluster.devices):
        raise PlanError(
            f"{function}: devices: expected {len(plan.cluster.devices)}, as the plan has, got {len(cluster.devices)}"
        )
    return cluster

"""The linear program of a plan's shares, in a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from hap import balance
from hap.balance.highs import check_path
from hap.cluster import Cluster, Device
from hap.errors import PlanError
from hap.planning.engine import Engine
from hap.planning.made_for import cluster_of, graph_of
from hap.planning.plan import Plan

if TYPE_CHECKING:
    from hap.rules import AxisGraph


def write_linear_program(
    plan: Plan,
    module: torch.nn.Module,
    path: str | os.PathLike[str],
    *,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    devices: Cluster | Sequence[str | Device | Cluster] | None = None,
) -> None:
    """Writes the linear program that balances a plan's shares to a file in LP format, for a look or another solver.

    It is that of the plan's program, linearised at the plan's splits. Columns are ``share.AXIS.D``, the share of the
    axis that device ``D`` has, and every other device like it, and ``seconds.N``, how long the block of stages ``N``
    takes as a fraction of its largest term. Rows are ``busy.N.D`` (a block takes as long as the device needs),
    ``whole.AXIS`` (the shares sum to 1) and ``memory.D`` (as a fraction of the device's memory). Comments at the head
    say what the objective is in seconds, which devices are alike, and which axis is meant where its name is changed.

    Args:
        plan: the plan.
        module: the module that it was made for.
        path: the file to write, ``.lp``.
        example_inputs: as for :func:`hap.plan`.
        example_kwargs: as for :func:`hap.plan`.
        devices: as many others as the plan has, to see what balances them; by default the plan's.

    Raises:
        PlanError: the plan was made for another module or other inputs, the number of devices is another, the plan's
            program, edited by hand, does not compute the module, no share changes anything, or the file cannot be
            written or its name does not end in ``.lp``.
        ClusterError: a device is unknown or a figure is wrong.
        TraceError: the module or the inputs cannot be traced.
    """
    # Before a model is traced for nothing.
    check_path(Path(path))
    cluster = cluster_of(plan, devices, "write_linear_program")
    write_shares(plan, graph_of(plan, module, example_inputs, example_kwargs), cluster, path)


def write_shares(plan: Plan, axes: AxisGraph, cluster: Cluster, path: str | os.PathLike[str]) -> None:
    """The same for a plan's graph, which :func:`hap.planning.made_for.graph_of` finds again.

    Raises:
        PlanError: as there.
    """
    from hap import _core
    from hap.rules import divided

    axes = divided(axes, plan.classes)
    shares = balance.fractions(plan.splits)
    try:
        engine = Engine(_core.Graph(axes.to_json()), cluster.without(plan.left_out), optimiser=plan.optimiser)
        stages = engine.stages(msgspec.json.encode(plan.program).decode(), shares)
    except ValueError as error:
        raise PlanError(f"write_linear_program: the plan does not hold: {error}") from error
    if not stages.axes:
        raise PlanError("write_linear_program: the plan's program splits nothing: there are no shares to balance")
    balance.write_linear_program(stages, shares, engine.machine.capacity, path, ranks=plan.stage.devices)

"""What if: the plan made anew under one constraint more."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hap.errors import PlanError
from hap.explain.data import WhatIf
from hap.planning.api import plan_axes
from hap.planning.pins import Pins, allowed, as_given, read_pins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hap.planning.plan import Plan
    from hap.rules import AxisGraph


def without_axis(plan: Plan, axes: AxisGraph, axis: str) -> WhatIf:
    """The plan where nothing may be split along an axis, nor along a further class of it.

    Raises:
        PlanError: there is no such axis.
    """
    whole = plan.classes[axis].axis if axis in plan.classes else axis
    if whole not in plan.axes:
        raise PlanError(f'there is no axis "{axis}"')
    return _again(plan, axes, f"nothing is split along {whole}", (*plan.forbidden_axes, whole))


def without_choice(plan: Plan, axes: AxisGraph, operator: str, axis: str | None) -> WhatIf:
    """The plan where one operator may not share its work along an axis, nor along a further class of it.

    To be whole on every device (``None``) is always allowed, and is no choice that can be left out.

    Raises:
        PlanError: there is no such operator.
    """
    if axis is None:
        obstacle = "any operator may be whole on every device: this cannot be ruled out"
        constraint = f"{operator} is not whole on every device"
        return WhatIf(constraint=constraint, before=plan.predicted_time, after=None, obstacle=obstacle)
    whole = plan.classes[axis].axis if axis in plan.classes else axis
    names = [each.name for each in axes.graph.operators]
    if operator not in names:
        raise PlanError(f'there is no operator "{operator}"')
    place = names.index(operator)
    left = tuple(each for each in axes.choices[place] if each.axis is None or axes.axes[each.axis].name != whole)
    choices = (*axes.choices[:place], left, *axes.choices[place + 1 :])
    constraint = f"{operator} does not share its work along {whole}"
    return _again(plan, replace(axes, choices=choices), constraint, plan.forbidden_axes)


def with_pins(plan: Plan, axes: AxisGraph, pin: Pins, forbid: Pins) -> WhatIf:
    """The plan where further tensors must have these placements, or must not; in place of what it says of the names.

    Raises:
        PlanError: an entry is no placement that a tensor of the model can have.
    """
    pins = read_pins(pin, forbid)
    # That there are such tensors and placements.
    allowed(axes, pins, plan.forbidden_axes)
    constraint = " and ".join(map(str, pins))
    return _again(plan, axes, f"bound by {constraint}", plan.forbidden_axes, pin, forbid)


def _again(
    plan: Plan,
    axes: AxisGraph,
    constraint: str,
    forbidden: Sequence[str],
    pin: Pins | None = None,
    forbid: Pins | None = None,
) -> WhatIf:
    """The plan with the arguments that it was made with and these, for these axes."""
    try:
        after = plan_axes(
            axes,
            plan.cluster,
            forbidden_axes=forbidden,
            required_axis=plan.required_axis,
            pin={**as_given(plan.pin), **(pin or {})},
            forbid={**as_given(plan.forbid), **(forbid or {})},
            optimiser=plan.optimiser,
            # Files of before it was stored hold only whom it left out.
            active=plan.active or (plan.stage.devices if plan.left_out and plan.with_all is None else None),
        )
    except PlanError as error:
        return WhatIf(constraint=constraint, before=plan.predicted_time, after=None, obstacle=str(error))
    return WhatIf(constraint=constraint, before=plan.predicted_time, after=after.predicted_time)

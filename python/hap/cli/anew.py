"""What of an explanation a plan file does not hold, and needs the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hap.errors import HapError

if TYPE_CHECKING:
    import hap
    from hap.explain import Explanation
    from hap.planning.pins import Pins


def with_model(
    plan: hap.Plan,
    found: Explanation,
    model: str,
    op: str | None,
    axis: str | None,
    what_if: bool,
    pins: tuple[Pins, Pins] | None,
) -> Explanation:
    """The explanation with what the search weighed for its one operator, and with the plan without what was named.

    Raises:
        HapError: ``op`` fits several operators, or none.
    """
    import msgspec

    from hap import explain as of
    from hap.cli.arguments import read_model
    from hap.planning.progress import Progress

    if op is not None and len(found.operators) != 1:
        names = ", ".join(each.name for each in found.operators[:10])
        raise HapError(f"--op: alternatives are told of one operator; {op} fits {len(found.operators)}: {names}")
    module, args, kwargs = read_model(model)
    with Progress() as shown:
        shown.update("tracing")
        axes = of.graph_of(plan, module, args, kwargs)
    again = []
    if op is None and axis is not None and what_if:
        again = [of.without_axis(plan, axes, axis)]
    if pins is not None:
        again = [of.with_pins(plan, axes, *pins)]
    if op is None:
        return msgspec.structs.replace(found, what_if=again)
    (operator,) = found.operators
    if what_if:
        again = [of.without_choice(plan, axes, operator.name, operator.axis)]
    alternatives = of.alternatives(plan, axes, operator.name)
    return msgspec.structs.replace(found, what_if=again, alternatives=alternatives)

"""Results as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hap.units import bytes_text, listed, seconds_text

if TYPE_CHECKING:
    from rich.console import Console

    from hap.cli import results
    from hap.explain import Alternative, Difference, Explanation


def table(console: Console, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table without borders; all columns but the first are numbers."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate(titles):
        shown.add_column(title, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


def devices(console: Console, found: results.Devices) -> None:
    """Of ``hap devices``."""
    if found.cluster:
        members(console, found.cluster)
        return
    rows = (
        (each.name, f"{each.flops['float32'] / 1e12:.3g}", f"{each.flops['bfloat16'] / 1e12:.3g}",
         f"{each.memory_bandwidth / 1e9:.4g}", f"{each.memory / 1e9:.3g}")
        for each in found.accelerators
    )  # fmt: skip
    table(console, ("accelerator", "TFLOP/s float32", "bfloat16", "GB/s", "GB"), rows)
    console.print()
    links = ((each.name, f"{each.bandwidth / 1e9:.4g}", seconds_text(each.latency)) for each in found.links)
    table(console, ("link", "GB/s", "latency"), links)
    for each in found.here:
        name = each.known_as or "not in the table above: hap profile measures it"
        console.print(f"here: {each.name} ({name}), {bytes_text(each.free)} of {bytes_text(each.memory)} free")


def members(console: Console, cluster: Sequence[results.Member]) -> None:
    """The devices of a cluster."""
    rows = (
        (f"{rank} {each.name}", f"{each.flops / 1e12:.3g}", f"{each.memory_bandwidth / 1e9:.4g}",
         f"{each.usable_memory / 1e9:.3g}", "measured" if each.measured else "")
        for rank, each in enumerate(cluster)
    )  # fmt: skip
    table(console, ("device", "TFLOP/s float32", "GB/s", "usable GB", ""), rows)


def simulated(console: Console, found: results.Simulated) -> None:
    """Of ``hap simulate``."""
    console.print(f"step {seconds_text(found.seconds)}, collectives {seconds_text(found.communication)}")
    rows = (
        (str(rank), seconds_text(seconds), f"{bytes_text(held)} of {bytes_text(usable)}")
        for rank, (seconds, held, usable) in enumerate(
            zip(found.compute, found.memory, found.usable_memory, strict=True)
        )
    )
    table(console, ("device", "computes", "memory"), rows)
    if found.trace is not None:
        console.print(f"wrote {found.trace}: open it at https://ui.perfetto.dev")


def checked(console: Console, found: results.Checked) -> None:
    """Of ``hap check``."""
    worst = sorted(found.errors.items(), key=lambda entry: -(float("inf") if entry[1] is None else entry[1]))
    rows = ((name, "infinite" if error is None else f"{error:.2e}") for name, error in worst[:10])
    table(console, ("largest errors", ""), rows)
    if found.replicated:
        console.print(f"no rule, whole on every device: {listed(found.replicated)}")
    verdict = "equal" if found.equal else "NOT equal"
    console.print(
        f"{verdict} to one device within {found.tolerance:g}: {found.programs} programs, "
        f"{found.sharded_flops:.1%} of FLOPs shared"
    )


_LIMITS = {
    "compute": "its own computation",
    "link": "collectives",
    "others": "waiting for other devices",
    "memory": "memory is nearly full",
    "idle": "left out",
}
_SHARES = {
    "even": "even shares",
    "speed": "in proportion to float32 speed",
    "memory": "in proportion to memory",
    "other": "as balanced by the linear program",
}


def explanation(console: Console, found: Explanation) -> None:
    """Of ``hap explain PLAN``."""
    console.print(f"step {seconds_text(found.step)}; under these splits at least {seconds_text(found.lower_bound)}")
    console.print()
    rows = [
        (each.name, " ".join(map(str, each.units)), _SHARES[each.shares], str(each.operators), f"{each.work:.1%}",
         str(each.collectives), seconds_text(each.communication))
        for each in found.axes
    ]  # fmt: skip
    table(console, ("axis", "units by device", "which are", "operators", "of work", "collectives", "take"), rows)
    console.print()
    times = [
        (f"{each.rank} {each.name}", *map(seconds_text, (each.computing, each.both, each.communicating, each.waiting)),
         f"{bytes_text(each.memory)} of {bytes_text(each.usable)}", _LIMITS[each.limit])
        for each in found.devices
    ]  # fmt: skip
    table(console, ("device", "computes", "and sends", "sends", "waits", "memory", "limited by"), times)
    for each in found.operators:
        along = "whole on every device" if each.axis is None else f"along {each.axis}"
        reads, writes = (
            ", ".join(f"{tensor}: {placement}" for tensor, placement in side) for side in (each.inputs, each.outputs)
        )
        console.print(f"\n{each.name} = {each.target}, {along}", markup=False)
        console.print(
            f"  {each.phase} of {each.module or 'the model'}; {each.source or 'no source line'}", markup=False
        )
        console.print(f"  {reads} -> {writes}; {' '.join(map(seconds_text, each.seconds))}", markup=False)
    if found.alternatives:
        alternatives(console, found.alternatives)
    for what in found.what_if:
        after = (
            what.obstacle if what.after is None else f"{seconds_text(what.after)} ({what.after / what.before:.2f} x)"
        )
        console.print(f"\nwhat if {what.constraint}: {after}", markup=False)


def alternatives(console: Console, found: Sequence[Alternative]) -> None:
    """What the search weighed for an operator."""
    console.print("\nalternatives: the step with all else as in the plan, and with all else chosen anew")
    rows = [
        ("* " * each.chosen + (each.axis or "whole"), f"{' '.join(each.inputs)} -> {' '.join(each.outputs)}",
         seconds_text(max(each.compute)) if each.step is not None else "",
         seconds_text(sum(move.seconds for move in each.conversions)) if each.step is not None else "",
         "impossible" if each.step is None else seconds_text(each.step),
         "impossible" if each.free_step is None else seconds_text(each.free_step))
        for each in found
    ]  # fmt: skip
    table(console, ("along (* chosen)", "placements", "computes", "converts", "step", "all else anew"), rows)


def difference(console: Console, found: Difference) -> None:
    """Of ``hap explain PLAN OTHER``."""
    first, second = found.step
    console.print(
        f"step {seconds_text(first)} -> {seconds_text(second)} ({second / first:.2f} x)" if first else "step 0"
    )
    if not found.same_graph:
        console.print("the plans are for different graphs: operators are compared by name")
    if found.devices[0] != found.devices[1]:
        console.print(f"devices {', '.join(found.devices[0])} -> {', '.join(found.devices[1])}")
    peaks = (" ".join(map(bytes_text, memory)) for memory in found.memory)
    console.print(f"memory {' -> '.join(peaks)}")
    for name, (one, other) in found.units.items():
        console.print(f"split {name}: {one or 'not'} -> {other or 'not'}", markup=False)
    for name, (before, after) in found.stored.items():
        console.print(f"stored {name}: {before or 'not there'} -> {after or 'not there'}", markup=False)
    for kind, (less, more) in found.conversions.items():
        console.print(f"{kind}: {less} -> {more}")
    for changed in found.operators:
        console.print(f"{changed.name}: {changed.placements[0]} => {changed.placements[1]}", markup=False)
    for names, which in zip(found.only, ("first", "second"), strict=True):
        if names:
            console.print(f"only in the {which}: {', '.join(names[:20])}{', ...' * (len(names) > 20)}")

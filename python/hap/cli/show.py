"""Results as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from hap.cli import results
from hap.units import bytes_text, counted, listed, runs_text, seconds_text

if TYPE_CHECKING:
    from rich.console import Console

    from hap.explain import Alternative, DeviceUse, Difference, Explanation, OperatorUse, WhatIf


def table(console: Console, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table without borders; all columns but the first are numbers."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate(titles):
        shown.add_column(title, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


def devices(console: Console, found: results.Devices | results.Profile) -> None:
    """Of ``hap devices`` and ``hap profile``."""
    if isinstance(found, results.Profile) or found.cluster:
        members(console, found)
        if found.output is not None:
            console.print(f"wrote {found.output}")
        return
    rows = (
        (each.name, f"{each.flops['float32'] / 1e12:.4g}", f"{each.flops['bfloat16'] / 1e12:.4g}",
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


def planned(console: Console, found: results.Planned, lines: Sequence[str]) -> None:
    """Of ``hap plan``; the lines are the plan's own."""
    console.print("\n".join(lines))
    if found.output is not None:
        console.print(f"wrote {found.output}: hap explain says why it is so, hap report shows it")


def members(console: Console, found: results.Devices | results.Profile) -> None:
    """The devices of a cluster, its measured collectives, and which hardware was measured."""
    rows = (
        (f"{rank} {each.name}", f"{each.flops / 1e12:.3g}", f"{each.memory_bandwidth / 1e9:.4g}",
         f"{each.usable_memory / 1e9:.3g}", "measured" if each.measured else "")
        for rank, each in enumerate(found.cluster)
    )  # fmt: skip
    table(console, ("device", "TFLOP/s float32", "GB/s", "usable GB", ""), rows)
    if found.collectives:
        console.print()
        measured = (
            (each.name, seconds_text(each.latency), f"{each.bandwidth / 1e9:.4g}",
             "" if each.error is None else f"{each.error:.0%}")
            for each in found.collectives
        )  # fmt: skip
        table(console, ("collective", "latency", "GB/s", "off by"), measured)
    if found.fingerprint is not None:
        console.print(f"measured on hardware with the fingerprint {found.fingerprint}")


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
    if found.linear_program is not None:
        console.print(f"wrote {found.linear_program}: comments at its head say what is what")


def checked(console: Console, found: results.Checked) -> None:
    """Of ``hap check``."""
    worst = sorted(found.errors.items(), key=lambda entry: -(float("inf") if entry[1] is None else entry[1]))
    rows = ((name, "infinite" if error is None else f"{error:.2e}") for name, error in worst[:10])
    table(console, ("largest errors", ""), rows)
    if found.replicated:
        console.print(f"no rule, whole on every device: {listed(found.replicated)}")
    verdict = "equal" if found.equal else "NOT equal"
    own = "" if found.precision == "float64" else f", as the model itself computes in {found.precision}"
    console.print(
        f"{verdict} to one device within {found.tolerance:.3g}{own}: {found.programs} "
        f"program{'s' * (found.programs != 1)}, {found.sharded_flops:.1%} of FLOPs shared"
    )


# Of more operators than this, each has a line.
DETAILED = 4
PLACEMENTS = (
    "S0: each device has its part, along the tensor's axis 0 (S1: 1, ...); R: each has all of it; "
    "P: the devices have summands of it"
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
    for note in found.notes:
        console.print(note)
    if found.axes:
        rows = [
            (each.name, " ".join(map(str, each.units)), _SHARES[each.shares], str(each.operators), f"{each.work:.1%}",
             str(each.collectives), seconds_text(each.communication))
            for each in found.axes
        ]  # fmt: skip
        titles = ("axis", "units by device", "which are", "operators", "of work", "collectives", "take")
        console.print()
        table(console, titles, rows)
    console.print()
    devices = groupby(found.devices, key=_spent)
    titles = ("device", "computes", "sends meanwhile", "only sends", "waits", "memory at peak", "limited by")
    table(console, titles, ((_alike([*group]), *spent) for spent, group in devices))
    if len(found.operators) > DETAILED:
        operators(console, found.operators)
    else:
        for each in found.operators:
            operator(console, each)
    if found.alternatives:
        alternatives(console, found.alternatives)
    if found.operators:
        console.print(f"\n{PLACEMENTS}")
    for what in found.what_if:
        console.print(f"\nwhat if {what.constraint}: {_outcome(what)}")


def _spent(device: DeviceUse) -> tuple[str, ...]:
    """How a device spends the step, its memory, and what limits it."""
    times = (device.computing + device.both, device.both, device.communicating, device.waiting)
    memory = f"{bytes_text(device.memory)} of {bytes_text(device.usable)}"
    return *map(seconds_text, times), memory, _LIMITS[device.limit]


def _alike(devices: Sequence[DeviceUse]) -> str:
    """Devices in rank order, such as ``0-1 V100, 2 P100``."""
    kinds = [(name, [each.rank for each in group]) for name, group in groupby(devices, key=lambda each: each.name)]
    return ", ".join(f"{runs_text(ranks)} {name}" for name, ranks in kinds)


def operator(console: Console, found: OperatorUse) -> None:
    """One operator, in four lines."""
    along = "whole on every device" if found.axis is None else f"along {found.axis}"
    reads, writes = (
        ", ".join(f"{tensor}: {placement}" for tensor, placement in side) for side in (found.inputs, found.outputs)
    )
    console.print(f"\n{found.name} = {found.target}, {along}")
    console.print(f"  {found.phase} of {found.module or 'the model'}; {found.source or 'no source line'}")
    console.print(f"  {reads} -> {writes}")
    console.print(f"  computes {', '.join(counted(map(seconds_text, found.seconds)))}, by device")


def operators(console: Console, found: Sequence[OperatorUse]) -> None:
    """Many operators, a line each."""
    rows = (
        (each.name, each.module or "-", each.phase, each.axis or "whole",
         f"{_placements(each.inputs)} -> {_placements(each.outputs)}", seconds_text(max(each.seconds)))
        for each in found
    )  # fmt: skip
    console.print("\noperators, with their longest time on a device; --op NAME tells more of one")
    table(console, ("operator", "module", "phase", "along", "placements", "computes"), rows)


def _placements(side: Sequence[tuple[str, str]]) -> str:
    return " ".join(placement for _, placement in side)


def _outcome(what: WhatIf) -> str:
    """The step of the plan so made, beside the plan."""
    if what.after is None:
        return str(what.obstacle)
    better = "; faster than the plan, which is therefore not the best there is" if what.after < what.before else ""
    return f"{seconds_text(what.after)} ({what.after / what.before:.2f} x{better})"


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
    peaks = (", ".join(counted(map(bytes_text, memory))) for memory in found.memory)
    console.print(f"memory {' -> '.join(peaks)}")
    for name, (one, other) in found.units.items():
        console.print(f"split {name}: {one or 'not'} -> {other or 'not'}")
    for name, (before, after) in found.stored.items():
        console.print(f"stored {name}: {before or 'not there'} -> {after or 'not there'}")
    for kind, (less, more) in found.conversions.items():
        console.print(f"{kind}: {less} -> {more}")
    for changed in found.operators:
        console.print(f"{changed.name}: {changed.placements[0]} => {changed.placements[1]}")
    for names, which in zip(found.only, ("first", "second"), strict=True):
        if names:
            console.print(f"only in the {which}: {', '.join(names[:20])}{', ...' * (len(names) > 20)}")

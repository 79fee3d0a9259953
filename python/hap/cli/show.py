"""Results as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hap.units import bytes_text, listed, seconds_text

if TYPE_CHECKING:
    from rich.console import Console

    from hap.cli import results


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

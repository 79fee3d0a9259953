"""What was measured, as docs/benchmarks.json and as text for docs/benchmarks.md."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benches.cluster.clusters import CLUSTERS, unequal
from benches.cluster.pairs import PAIRS
from benches.document import write_part

DOCS = Path(__file__).parents[2] / "docs"
BEGIN = "<!-- benches/cluster writes from here -->"
TITLES = {
    "hap": "hap",
    "ddp_even": "DDP, even",
    "ddp_proportional": "DDP, proportional",
    "fsdp2": "FSDP2",
    "tensor": "tensor parallel",
}
# Predictions that differ by more say which of two systems is faster.
DIFFERENT = 1.1

Results = Mapping[str, Mapping[str, Any]]
"""By name of a pair what :func:`benches.cluster.bench.measured` gives."""


def records(results: Results) -> list[dict[str, Any]]:
    """One for each system of each pair; without seconds where it did not fit into memory."""
    found = []
    for name, result in results.items():
        pair = PAIRS[name]
        for system in pair.systems:
            one = result["systems"].get(system, {"seconds": [], "predicted": None, "loss": []})
            found.append(
                {
                    "cluster": pair.cluster,
                    "unequal": unequal(CLUSTERS[pair.cluster]),
                    "workload": pair.kind,
                    "system": system,
                    "seconds": one["seconds"],
                    "predicted": one["predicted"],
                    "loss": one["loss"],
                }
            )
    return found


def text(results: Results) -> str:
    """The summary, the tables and the plans."""
    lines = [*summary(results), ""]
    for cluster, names in itertools.groupby(results, key=lambda name: PAIRS[name].cluster):
        lines += [f"### {cluster}", "", *_head("workload", "system", *_COLUMNS)]
        kept = list(names)
        for name in kept:
            lines += _rows(PAIRS[name].kind, PAIRS[name].systems, results[name]["systems"])
        lines.append("")
        lines += [f"* {PAIRS[name].kind}: {results[name]['plan']}" for name in kept]
        lines.append("")
    return "\n".join(lines)


_COLUMNS = ("step, ms", "quartiles", "hap is faster by", "predicted, ms", "error")


def _head(*titles: str) -> list[str]:
    return [f"| {' | '.join(titles)} |", "|---|---|" + "---:|" * (len(titles) - 2)]


def _rows(kind: str, systems: Sequence[str], measured: Mapping[str, Any]) -> list[str]:
    own = medians(measured)
    lines = []
    for system in systems:
        cells = [kind, TITLES[system]]
        if system not in own:
            cells += ["does not fit", "", "", "", ""]
        else:
            low, middle, high = (1e3 * value for value in quartiles(measured[system]["seconds"]))
            cells += [f"{middle:,.0f}", f"{low:,.0f} to {high:,.0f}"]
            cells.append("" if system == "hap" else f"{own[system] / own['hap']:.2f} x")
            predicted = measured[system]["predicted"]
            if predicted is None:
                cells += ["would not fit", ""]
            else:
                cells += [f"{1e3 * predicted:,.0f}", f"{predicted / own[system] - 1:+.0%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def summary(results: Results) -> list[str]:
    """The figures that the whole list is for."""
    best, equal, errors, right = {}, {}, [], []
    difference = 0.0
    for name, result in results.items():
        measured, own = result["systems"], medians(result["systems"])
        rivals = [seconds for system, seconds in own.items() if system != "hap"]
        group = best if unequal(CLUSTERS[PAIRS[name].cluster]) else equal
        group[name] = min(rivals) / own["hap"]
        predicted = {system: one["predicted"] for system, one in measured.items() if one["predicted"] is not None}
        errors += [abs(seconds / own[system] - 1) for system, seconds in predicted.items()]
        right += orders({system: own[system] for system in predicted}, predicted)
        difference = max([difference, *(differences(one["loss"], result["reference"]) for one in measured.values())])
    every = {**best, **equal}
    lines = [f"* hap against the best of the others: {min(every.values()):.2f} x ({_which(every, min)}) at least."]
    if best:
        mean = math.exp(statistics.fmean(map(math.log, best.values())))
        lines.append(
            f"* On unequal devices: {mean:.2f} x as a geometric mean, {max(best.values()):.2f} x "
            f"({_which(best, max)}) at most."
        )
    if equal:
        lines.append(f"* On equal devices: {', '.join(f'{ratio:.2f} x ({name})' for name, ratio in equal.items())}.")
    lines.append(
        f"* Predictions are off by {statistics.median(errors):.0%} in the median and by {max(errors):.0%} at most; "
        f"they name the faster one in {sum(right)} of {len(right)} pairs of systems that differ by more than "
        f"{DIFFERENT - 1:.0%}."
    )
    lines.append(f"* Losses differ from those of one device by {difference:.1e} of them at most, in the first steps.")
    return lines


def _which(ratios: Mapping[str, float], choose: Any) -> str:
    return choose(ratios, key=lambda name: ratios[name])


def medians(measured: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of a step by system, of those that fit into memory."""
    return {system: statistics.median(one["seconds"]) for system, one in measured.items() if one["seconds"]}


def quartiles(seconds: Sequence[float]) -> list[float]:
    """The lower one, the median and the upper one."""
    return statistics.quantiles(seconds, n=4, method="inclusive")


def orders(measured: Mapping[str, float], predicted: Mapping[str, float]) -> list[bool]:
    """Of each two systems whose measured times differ, whether the predicted times differ in the same direction."""
    return [
        (measured[one] < measured[other]) == (predicted[one] < predicted[other])
        for one, other in itertools.combinations(measured, 2)
        if max(measured[one], measured[other]) > DIFFERENT * min(measured[one], measured[other])
    ]


def differences(losses: Sequence[float], reference: Sequence[float]) -> float:
    """The largest difference of the first losses, as a part of them."""
    return max(abs(own / other - 1) for own, other in zip(losses, reference, strict=False))


def write(results: Results) -> None:
    """Both documents; they say what has not been measured."""
    missing = [f"* Not measured yet: {name}." for name in PAIRS if name not in results]
    entries = ",\n".join(json.dumps(record) for record in records(results))
    (DOCS / "benchmarks.json").write_text(f"[\n{entries}\n]\n")
    write_part(DOCS / "benchmarks.md", BEGIN, "\n".join([*missing, text(results)]))

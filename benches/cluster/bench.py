"""Measures the list of pairs, each unless it has been measured, and writes docs/benchmarks.json and .md.

    python -m benches.cluster.bench                  # all; goes on where it was cut short
    python -m benches.cluster.bench --quick          # one cluster, two workloads
    python -m benches.cluster.bench "100:30; gpt2"   # some; with --fresh again
    python -m benches.cluster.bench --kept           # writes what has been measured so far

Where only some are asked for the text goes to the standard output instead.

What has been measured is kept in target/cluster-bench: a profile for each cluster, a result for each pair. What is
kept is not measured again: remove it when hap has changed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benches.cluster import report
from benches.cluster.clusters import CLUSTERS, PLENTY, RESERVE
from benches.cluster.emulate import MemoryOverrunError, emulated, say
from benches.cluster.pairs import PAIRS

import hap

ROOT = Path(__file__).parents[2]
# Losses of the first steps may differ from those of one device by this part of them.
TOLERANCE = 1e-4
KEPT = ROOT / "target" / "cluster-bench"
QUICK = ("100:30; gpt2", "100:30; vgg")
# Seconds that the turns of a pair take, about; and until a job is given up.
TURNS, QUICK_TURNS, PATIENCE = 40.0, 30.0, 420.0
# Turns of each system, at least; one where time is short.
LEAST, QUICK_LEAST = 2, 1


def file_of(name: str, kind: str) -> Path:
    """Where something of this name is kept."""
    return KEPT / kind / ("".join(part if part.isalnum() else "_" for part in name) + ".json")


def profiled(name: str) -> Path:
    """The profile of a cluster, measured on it the first time.

    Memory is what the cluster's file says; to measure takes more than a device may have.
    """
    file = file_of(name, "profiles")
    if file.exists():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    asked, raw = CLUSTERS[name], file.with_suffix(".part")
    with emulated(with_memories(asked, [PLENTY] * len(asked.devices))) as cluster:
        cluster.run([sys.executable, "-m", "hap.profiling", "--device", "cpu", str(raw)], timeout=PATIENCE)
    with_memories(hap.Cluster.load(raw), [device.memory for device in asked.devices]).save(raw)
    raw.replace(file)
    return file


def with_memories(cluster: hap.Cluster, memories: Sequence[float]) -> hap.Cluster:
    """The cluster with so much memory on each device, and what a process needs by itself left out of it."""
    text, rest = json.loads(cluster.to_json()), iter(memories)

    def visit(group: dict[str, Any]) -> None:
        for member in group["members"]:
            if "group" in member:
                visit(member["group"])
            else:
                member["device"] |= {"memory": next(rest), "reserve": RESERVE}

    visit(text["root"])
    return hap.Cluster.from_json(json.dumps(text))


def reference(name: str, profile: Path, plan: Path) -> dict[str, Any]:
    """The losses of a pair on one device, and all systems' steps as hap predicts them."""
    file = file_of(name, "references")
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benches.cluster.reference", name, str(profile), str(plan), str(file)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE)
    return json.loads(file.read_text())


def measured(name: str, *, fresh: bool, seconds: float) -> dict[str, Any]:
    """The result of a pair, measured the first time."""
    # What is measured for a shorter time is no result of the list.
    file = file_of(name, "results" if seconds >= TURNS else "short")
    if file.exists() and not fresh:
        return json.loads(file.read_text())
    file.parent.mkdir(parents=True, exist_ok=True)
    pair, profile = PAIRS[name], profiled(PAIRS[name].cluster)
    began = time.monotonic()
    groups = [list(pair.systems)] if pair.together else [[system] for system in pair.systems]
    found: dict[str, Any] = {"systems": {}, "plan": None}
    for group in groups:
        say(f"{name}: {', '.join(group)}")
        request = {"pair": name, "systems": group, "profile": str(profile), "seconds": seconds / len(groups)}
        one = _job(request | {"turns": LEAST if seconds >= TURNS else QUICK_LEAST}, file)
        if one is not None:
            found["systems"] |= one["systems"]
            found["plan"] = found["plan"] or one["plan"]
    alone = reference(name, profile, file.with_suffix(".plan"))
    found["reference"] = alone["losses"]
    for system, one in found["systems"].items():
        difference = report.differences(one["loss"], found["reference"])
        simulated = alone["predicted"][system]
        one["predicted"] = None if simulated is None else simulated + one["optimising"]
        if not difference < TOLERANCE:
            raise ValueError(f"{name}: {system}: losses differ from those of one device by {difference:.1e} of them")
    found["took"] = time.monotonic() - began
    file.write_text(json.dumps(found))
    return found


def _job(request: dict[str, Any], file: Path) -> dict[str, Any] | None:
    """What one job measures; ``None`` if it needed more memory than there is, where that is to be seen."""
    asked, answer = file.with_suffix(".request"), file.with_suffix(".part")
    asked.write_text(json.dumps(request))
    pair = PAIRS[request["pair"]]
    with emulated(pair.machines) as cluster:
        try:
            command = [sys.executable, "-m", "benches.cluster.measure", str(asked), str(answer)]
            cluster.run(command, timeout=PATIENCE)
        except MemoryOverrunError as error:
            # hap has been told of the memory.
            if pair.together or "hap" in request["systems"]:
                raise
            say(str(error))
            return None
    return json.loads(answer.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description="hap beside other systems on emulated clusters.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PAIRS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="one cluster, two workloads")
    parser.add_argument("--fresh", action="store_true", help="measure again what has been measured")
    parser.add_argument("--kept", action="store_true", help="measure nothing, write what has been measured")
    parser.add_argument("--seconds", type=float, help="of the turns of a pair")
    options = parser.parse_args()
    seconds = options.seconds or (QUICK_TURNS if options.quick else TURNS)
    names = options.names or (QUICK if options.quick else list(PAIRS))
    results = {}
    if options.kept:
        names = [name for name in PAIRS if file_of(name, "results").exists()]
    for name in names:
        results[name] = measured(name, fresh=options.fresh, seconds=seconds)
        say(f"{name}: took {results[name]['took']:.0f} s")
    if options.kept or list(results) == list(PAIRS):
        report.write(results)
        return
    sys.stdout.write(report.text(results))


if __name__ == "__main__":
    main()

"""Measures every graph and problem of the benches, beside toulbar2 and HiGHS, for the table of benches/README.md.

    pip install --group bench                    # toulbar2
    python benches/table.py                      # all rows that are not measured yet: up to an hour
    python benches/table.py --seconds 10 --fresh # measured anew, the other solvers for 10 s each: some minutes
    python benches/table.py bert_12 llama32      # some of them

Each measurement runs in a process of its own, which reads the problem, so that its peak memory can be told. What has
been measured is kept in target/table: a run that was cut short goes on where it was.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import itertools
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from benches.document import write_part

HERE = Path(__file__).parent

# The graphs that are solved with prices of memory, too, as in synthesis.rs; and what their rows are called.
MEMORY = "_memory"
WITH_MEMORY = ("gpt2_12", "llama_8")
# Times that are compared: the first is to be so many times the second at most.
RATIOS = (("bert_12_1024", "bert_12"), ("gpt3_175b_96", "gpt3_175b_24"))

KEPT = HERE.parent / "target" / "table"
README = HERE / "README.md"
BEGIN = "<!-- benches/table.py writes from here -->"
# Of these the first are left out: the memory that a synthesis takes is kept for the next one.
RUNS, FIRST = 13, 4
# Seconds for the search of a plan, which takes many syntheses.
PLAN_SECONDS = 300
OTHERS = {"toulbar2": "toulbar2", "highs": "HiGHS"}


def core():
    """The core by itself: the package around it imports torch, which takes memory."""
    (path,) = (HERE.parent / "python" / "hap").glob("_core*.so")
    spec = importlib.util.spec_from_file_location("hap._core", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def paths():
    """By name, the files: graphs first."""
    folders = (HERE / "graphs", HERE / "instances")
    return {path.name.removesuffix(".json.gz"): path for folder in folders for path in sorted(folder.glob("*.json.gz"))}


def rows():
    """Names of all rows: graphs, those with prices of memory, instances."""
    names = list(paths())
    instances = [name for name in names if not is_graph(name)]
    return [*filter(is_graph, names), *(name + MEMORY for name in WITH_MEMORY), *instances]


def path(name):
    return paths()[name.removesuffix(MEMORY)]


def is_graph(name):
    return path(name).parent.name == "graphs"


def read(name):
    return gzip.decompress(path(name).read_bytes())


def speeds(name):
    """As in synthesis.rs: eight devices of two kinds, or 1,024 of four."""
    kinds, each = (4, 256) if name.endswith("_1024") else (2, 4)
    return [speed for speed in range(kinds, 0, -1) for _ in range(each)]


def cluster(name):
    figures = {"memory": 1e15, "launch_overhead": 1e-5}
    members = [
        {"device": {"name": f"{n}", "flops": {"default": 7e12 * speed}, "memory_bandwidth": 4e11 * speed, **figures}}
        for n, speed in enumerate(speeds(name))
    ]
    root = {"link": {"bandwidth": 1.25e9, "latency": 5e-5}, "members": members}
    return json.dumps({"format": "hap-cluster-1", "root": root, "collectives": {}, "overlap": 0.0})


def request(name, axes):
    """Every axis split in proportion to speed; with prices of memory where the name says so."""
    shares = speeds(name)
    ends = [sum(shares[:rank]) for rank in range(len(shares) + 1)]

    def units(size):
        bounds = [size * end // ends[-1] for end in ends]
        return [end - start for start, end in itertools.pairwise(bounds)]

    asked = {"splits": {axis["name"]: units(axis["size"]) for axis in axes}}
    if name.endswith(MEMORY):
        priced = {"seconds_per_byte": [1e-12] * len(shares), "between": 1.0, "optimiser_tensors": 2}
        asked["prices"] = {"memory": priced}
    return json.dumps(asked)


def axes_of(name):
    return json.loads(read(name))["axes"]


def solver_graph(name):
    return core().Graph(read(name))


def problem(name):
    """The weighted constraint problem, as JSON."""
    if not is_graph(name):
        return read(name).decode()
    return solver_graph(name).problem(cluster(name), request(name, axes_of(name)))


def measure_hap(name, seconds):
    """Seconds (median), states, table entries, search gap and cost; and the peak memory of all that."""
    text, solver = read(name), core()
    if is_graph(name):
        asked = request(name, json.loads(text)["axes"])
        graph = solver.Graph(text)
        replies = [json.loads(graph.synthesise(cluster(name), asked)) for _ in range(RUNS)]
    else:
        replies = [json.loads(solver.solve(text.decode(), "{}")) for _ in range(RUNS)]
    last = replies[-1]
    return {
        "seconds": statistics.median(reply["seconds"] for reply in replies[FIRST:]),
        "states": last["states"],
        "table_entries": last["table_entries"],
        "search_gap": last["search_gap" if is_graph(name) else "gap"],
        "cost": last["cost"],
        "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def measure_pair(name, seconds):
    """How many times as long as the other graph of its pair this one takes; in turns, as a machine's speed varies."""
    replies = {}
    asked = {
        each: (solver_graph(each), cluster(each), request(each, axes_of(each))) for each in (name, dict(RATIOS)[name])
    }
    for _ in range(RUNS):
        for each, (graph, machines, wanted) in asked.items():
            replies.setdefault(each, []).append(json.loads(graph.synthesise(machines, wanted))["seconds"])
    large, small = (statistics.median(replies[each][FIRST:]) for each in asked)
    return {"ratio": large / small}


def measure_plan(name, seconds):
    """The optimality gap of the search for splits and program, without memory limit."""
    from hap import _core
    from hap.cluster import Cluster
    from hap.planning.engine import Constraints, Engine
    from hap.planning.optimisers import OptimiserMemory
    from hap.planning.outer import search
    from hap.planning.problem import Problem
    from hap.planning.progress import Progress
    from hap.rules import BATCH

    text = read(name)
    graph = json.loads(text)
    sizes = {axis["name"]: axis["size"] for axis in graph["axes"]}
    stored = [graph["tensors"][each["tensor"]] for each in graph["inputs"] if each["kind"] == "parameter"]
    machines = Cluster.from_json(cluster(name))
    asked = Problem(
        engine=Engine(_core.Graph(text), machines, optimiser=OptimiserMemory(2)),
        job=machines,
        devices=tuple(range(len(machines.devices))),
        settled=True,
        sizes=sizes,
        parameters={
            tensor["name"]: tuple(graph["axes"][axis]["name"] for axis in tensor["occurrences"]) for tensor in stored
        },
        constraints=Constraints(),
        constrain=lambda pins: Constraints(),
        batch=BATCH if BATCH in sizes else None,
    )
    started = time.perf_counter()
    found = search(asked, Progress())
    taken = time.perf_counter() - started
    return {"gap": max(0.0, found.best.simulation.seconds / found.bound - 1.0), "seconds": taken}


def measure_highs(name, seconds):
    from tests.planning import ilp

    return ilp.solve(json.loads(problem(name)), seconds)._asdict()


def measure_toulbar2(name, seconds):
    import pytoulbar2

    text = problem(name)
    asked = json.loads(text)
    optimum = json.loads(core().solve(text, "{}"))["cost"]
    # Costs become integers. A factor errs by at most half a unit: by 1e-7 of the optimum, all together.
    scale = 10.0 ** math.ceil(math.log10(5e6 * len(asked["factors"]) / optimum))
    network = pytoulbar2.CFN()
    for variable, size in enumerate(asked["domains"]):
        network.AddVariable(f"v{variable}", range(size))
    for factor in asked["factors"]:
        costs = [math.inf if cost is None else round(cost * scale) for cost in factor["costs"]]
        network.AddFunction(factor["scope"], costs)
    started = time.perf_counter()
    found = network.Solve(timeLimit=math.ceil(seconds))
    taken = time.perf_counter() - started
    cost = math.inf if found is None else found[1] / scale
    bound = cost if taken < seconds else network.GetDDualBound() / scale
    return {"cost": cost, "bound": bound, "seconds": taken}


def measured(kind, name, seconds, fresh):
    """A measurement that is kept, or is made in a process of its own; none where that takes too long or fails."""
    kept = KEPT / f"{name}.{kind}.json"
    if kept.exists() and not fresh:
        return json.loads(kept.read_text())
    command = [sys.executable, __file__, "--measure", kind, "--seconds", str(seconds), name]
    sys.stderr.write(f"{name}: {kind}\n")
    try:
        limit = PLAN_SECONDS if kind == "plan" else 2 * seconds + 60
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=limit)
        result = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        result = None
    KEPT.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(result))
    return result


def described(result, optimum, seconds):
    """The seconds that another solver took, or how far it came."""
    if result is None or result["cost"] == math.inf:
        return f"> {seconds:g} s, nothing found"
    if result["cost"] == result["bound"]:
        assert abs(result["cost"] - optimum) <= 1e-6 * optimum, f"{result['cost']} is not {optimum}"
        return f"{result['seconds']:.2f} s"
    return f"> {seconds:g} s, gap {min(1.0, (result['cost'] - result['bound']) / abs(result['cost'])):.1%}"


def has_plan(name):
    return is_graph(name) and not name.endswith(MEMORY)


def row(name, results, seconds):
    hap, plan = results["hap"], results["plan"]
    optimality = f"{plan['gap']:.2%}" if plan else f"> {PLAN_SECONDS} s" if has_plan(name) else ""
    cells = [
        name,
        f"{1e3 * hap['seconds']:.1f}",
        f"{hap['states']:,}",
        f"{hap['table_entries']:,}",
        f"{hap['bytes'] / 1e6:.0f}",
        f"{hap['search_gap']:.2%}" if hap["search_gap"] else "0",
        optimality,
        *(described(results[kind], hap["cost"], seconds) for kind in OTHERS),
    ]
    return f"| {' | '.join(cells)} |"


def ratios(results):
    """How the times of pairs of graphs compare."""
    pairs = [(large, small) for large, small in RATIOS if large in results]
    return [f"{large} takes {results[large]['pair']['ratio']:.2f} times as long as {small}." for large, small in pairs]


def main():
    parser = argparse.ArgumentParser(description="The table of benches/README.md.")
    parser.add_argument("names", nargs="*", help="graphs and instances; all by default")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of the other solvers (default: 60)")
    parser.add_argument("--fresh", action="store_true", help="measure again what has been measured")
    parser.add_argument("--measure", choices=["hap", "pair", "plan", *OTHERS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        (name,) = options.names
        sys.stdout.write(json.dumps(globals()[f"measure_{options.measure}"](name, options.seconds)) + "\n")
        return
    names = options.names or rows()
    results = {name: {} for name in names}
    # Ours first, one after another, while the machine is as quiet as at the start.
    for kind in ("hap", "pair", "plan", *OTHERS):
        for name in names:
            asked = {"plan": has_plan(name), "pair": name in dict(RATIOS)}.get(kind, True)
            results[name][kind] = measured(kind, name, options.seconds, options.fresh) if asked else None
    titles = ["problem", "ms", "states", "table entries", "peak MB", "search gap", "optimality gap", *OTHERS.values()]
    head = [f"| {' | '.join(titles)} |", "|---|" + "---:|" * (len(titles) - 1)]
    lines = [row(name, results[name], options.seconds) for name in names]
    table = "\n".join([*head, *lines, "", *ratios(results)])
    if options.names:
        sys.stdout.write(table + "\n")
        return
    write_part(README, BEGIN, f"{table}\n")


if __name__ == "__main__":
    main()

"""Prints `plan.synthesis_time` of the traced 12-layer GPT-2 on eight devices of two kinds, as one line of JSON.

    python benches/synthesis_time.py

The model is traced once; the time is the median over five plans. It is that of a plan's last synthesis: tracing and
ratios are not in it.
"""

import json
import statistics
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))

from benches.models import MODELS

import hap
from hap.planning import plan_axes
from hap.rules import annotate

PLANS = 5


def main():
    with torch.device("meta"):
        module, args, kwargs = MODELS["gpt2_12"]()
    axes = annotate(hap.trace(module.train(), args, kwargs))
    cluster = hap.Cluster(["A100-40GB"] * 4 + ["T4"] * 4, link=hap.Link(bandwidth=1.25e9, latency=5e-5))
    plans = [plan_axes(axes, cluster) for _ in range(PLANS)]
    result = {
        "model": "gpt2_12",
        "operators": len(axes.graph.operators),
        "devices": len(cluster.devices),
        "plans": PLANS,
        "synthesis_seconds": statistics.median(plan.synthesis_time for plan in plans),
        "search_gap": max(plan.search_gap for plan in plans),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()

"""Writes the traced joint graphs that `cargo bench` synthesises: benches/graphs/{name}.json.gz (hap-graph-1).

    python benches/make_graphs.py [NAME...]

Models are built on the meta device, so that they need no memory. The same code gives the same bytes.
"""

import gzip
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))

from benches.models import MODELS

import hap
from hap.rules import annotate

FOLDER = Path(__file__).parent / "graphs"


def main(names):
    FOLDER.mkdir(exist_ok=True)
    for name in names or MODELS:
        with torch.device("meta"):
            module, args, kwargs = MODELS[name]()
        axes = annotate(hap.trace(module.train(), args, kwargs))
        path = FOLDER / f"{name}.json.gz"
        # Without a time stamp and a name in the header, equal graphs give equal files.
        with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(axes.to_json())
        sys.stdout.write(
            f"{path}: {len(axes.graph.operators)} operators, {len(axes.axes)} axes, {path.stat().st_size} bytes\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])

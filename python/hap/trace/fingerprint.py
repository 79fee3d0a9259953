"""Equality of graphs: a canonical text, and its hash."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from hap.graph import Graph, Ref


def _plain(value: Any) -> Any:
    """Arguments as plain JSON data. Floats keep all their digits; types that compare equal stay apart."""
    if isinstance(value, Ref):
        return {"tensor": value.tensor}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in sorted(value.items())}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return {type(value).__name__: str(value)}
    raise TypeError(f"{type(value).__name__} cannot stand in the arguments of an operator")


def _bytes_hash(tensor: torch.Tensor) -> str:
    if tensor.device.type == "meta":
        return "meta"
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(content.numpy().tobytes()).hexdigest()


def canonical(graph: Graph) -> str:
    """JSON of all that the graph computes, of constants their bytes' hash: equal texts mean equal graphs."""
    data = {
        "tensors": [[t.name, list(t.shape), str(t.dtype)] for t in graph.tensors],
        "operators": [
            [o.name, str(o.target), _plain(o.args), _plain(o.kwargs), list(o.results), o.source, o.module, o.phase]
            for o in graph.operators
        ],
        "inputs": [[i.kind, i.name, i.tensor] for i in graph.inputs],
        "outputs": [[o.kind, o.name, o.tensor, o.of] for o in graph.outputs],
        "constants": [[index, _bytes_hash(value)] for index, value in sorted(graph.constants.items())],
        "tied": sorted(graph.tied.items()),
        "output_spec": None if graph.output_spec is None else graph.output_spec.canonical(),
    }
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def fingerprint(graph: Graph) -> str:
    """SHA-256 over :func:`canonical`."""
    return hashlib.sha256(canonical(graph).encode()).hexdigest()

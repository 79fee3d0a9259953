"""Real text that every machine has: Python's standard library and its documentation, one token for each byte."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

import torch

VOCABULARY = 256


def standard_library(size: int = 4_000_000) -> torch.Tensor:
    """The first ``size`` bytes of the standard library's modules in order of their names, as uint8."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= size:
            break
    return torch.frombuffer(text, dtype=torch.uint8)[:size]


def documentation() -> torch.Tensor:
    """What ``help()`` tells of Python's keywords and types, which is English for the most part, as uint8."""
    return torch.frombuffer(bytearray("\n\n".join(topics.values()).encode()), dtype=torch.uint8)


def batch(text: torch.Tensor, *, step: int, size: int, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of a step, the same on every rank: tokens and their successors, ``[size, context]``, int64."""
    starts = torch.randint(len(text) - context, (size, 1), generator=torch.Generator().manual_seed(step))
    window = text[starts + torch.arange(context + 1)].long()
    return window[:, :-1].contiguous(), window[:, 1:].contiguous()

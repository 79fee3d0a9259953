"""What attention over a sharded sequence rests on matters: without it a proof fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from hap.operators.merging import summand
from hap.rules.composites import attention
from hap.rules.localise import Site, narrow
from hap.rules.pieces import Blocks
from tests.rules.test_composites import refuted

NAMES = ("attention_keys", "attention_ring", "attention_ring_backward")
_window = Site.window


def _whole_columns(site: Site, letters: Sequence[str], also: Mapping[Any, Any] | None = None) -> dict[str, Any]:
    """A window without the narrowing of the keys."""
    return _window(site, letters)


def _added(out: torch.Tensor, lse: torch.Tensor, other_out: torch.Tensor, _: torch.Tensor) -> Any:
    return out + other_out, lse


def _unscaled(out: torch.Tensor, every_lse: torch.Tensor, part: int) -> Any:
    return out, summand(out, every_lse, part)[1]


def _first_columns(mask: torch.Tensor, dim: int, blocks: Blocks, start: int, length: int) -> torch.Tensor:
    return narrow(mask, dim, blocks, 0, length)


MUTATIONS: dict[str, tuple[tuple[object, str, object], tuple[str, ...]]] = {
    "window": ((Site, "window", _whole_columns), ("attention_ring", "attention_ring_backward")),
    "positions": (
        (attention._Sequence, "stretch", lambda self, rank: [*self.sizes, 0, self.units[rank]]),
        NAMES,
    ),
    "no block comes after another": ((attention._Sequence, "after", lambda self, rank, other: True), NAMES[1:]),
    "whose block is here": (
        (attention._Ring, "source", lambda self, step: (self.site.rank + step) % self.count),
        NAMES[1:],
    ),
    "rescaling": ((attention, "merged", _added), ("attention_ring",)),
    "rescaling of the summand": ((attention, "summand", _unscaled), ("attention_keys",)),
    "columns of the mask": ((attention, "narrow", _first_columns), NAMES[1:]),
    "columns of its gradient": ((attention, "written", lambda x, *_: x), ("attention_ring_backward",)),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mutations_are_refuted(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, names = MUTATIONS[mutation]
    monkeypatch.setattr(*change)  # type: ignore[arg-type]
    assert [name for name in names if not refuted(name)] == []

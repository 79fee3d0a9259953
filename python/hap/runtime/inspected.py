"""What the traces of one kind of call inspect of their inputs' values (see :mod:`hap.trace.inspections`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hap.graph import Inspection

logger = logging.getLogger("hap")
MANY = 8
"""So many values of one inspection are worth a warning: each is traced and planned."""
KEPT = 64
"""So many plans of one kind of call are kept, those for the values that came last."""


class Inspected:
    """The inspections of all traces so far. Which comes next depends on the values of those before."""

    def __init__(self) -> None:
        self._next: dict[tuple[Any, ...], Inspection] = {}
        self._values: dict[str, set[Any]] = {}
        self._recent: dict[tuple[Any, ...], None] = {}

    def values(self, tensors: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
        """The values of a call, as far as they are inspected by a trace that shares those before.

        Where one cannot be computed what is wrong stands in its place: it is no value of a trace, and the trace that is
        made for it says so, on all ranks.
        """
        found: tuple[Any, ...] = ()
        while (inspection := self._next.get(found)) is not None:
            try:
                found += (frozen(inspection.compute(tensors)),)
            except Exception as error:
                found += (f"{type(error).__name__}: {error}",)
        return found

    def add(self, inspections: Sequence[Inspection]) -> tuple[Any, ...]:
        """Takes what a new trace inspects; its values."""
        found: tuple[Any, ...] = ()
        for inspection in inspections:
            self._next.setdefault(found, inspection)
            value = frozen(inspection.value)
            known = self._values.setdefault(inspection.source, set())
            if value not in known and len(known) < MANY:
                known.add(value)
                if len(known) == MANY:
                    logger.warning(
                        "%s: the forward has inspected %d different values of its inputs here; each is traced and "
                        "planned anew: use torch.where or a mask, or pass inputs that differ less",
                        inspection.source,
                        MANY,
                    )
            found += (value,)
        return found

    def used(self, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """A call has these values; returns those that came longest ago where there are too many, to be dropped.

        The same on all ranks, as they have agreed on the values of each call.
        """
        self._recent.pop(values, None)
        self._recent[values] = None
        if len(self._recent) <= KEPT:
            return None
        dropped = next(iter(self._recent))
        del self._recent[dropped]
        for count in range(1, len(dropped)):
            if not any(other[:count] == dropped[:count] for other in self._recent):
                self._next.pop(dropped[:count], None)
        return dropped


def frozen(value: Any) -> Any:
    """Lists as tuples, at every depth."""
    return tuple(frozen(item) for item in value) if isinstance(value, list) else value

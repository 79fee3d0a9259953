"""What the steps of a collective ask of the ranks (:mod:`hap.runtime.collectives`): flat buffers that move."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import torch


@dataclass(frozen=True, slots=True)
class AllGather:
    """Equal flat buffers of all ranks, one after another. Answered by the flat result."""

    buffer: torch.Tensor


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """As many equal parts as ranks in one flat buffer; rank r gets the sum of all ranks' r-th. Answered by that sum."""

    buffer: torch.Tensor


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Consecutive parts of a flat buffer, one for each rank. Answered by the parts received, flat, by sending rank.

    Attributes:
        buffer: what is sent.
        send: elements sent to each rank.
        receive: elements received from each rank.
    """

    buffer: torch.Tensor
    send: tuple[int, ...]
    receive: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Broadcasts:
    """Buffers ``(source rank, buffer)``, each filled from its source in place. Answered by nothing."""

    buffers: tuple[tuple[int, torch.Tensor], ...]


@dataclass(frozen=True, slots=True)
class Reduces:
    """Buffers ``(destination rank, buffer)``: the destination's becomes the sum in place, the others' are spoilt."""

    buffers: tuple[tuple[int, torch.Tensor], ...]


@dataclass(frozen=True, slots=True)
class AllReduce:
    """A buffer that becomes the sum (or the largest, element by element) of all ranks' in place.

    Answered by nothing.
    """

    buffer: torch.Tensor
    op: Literal["sum", "max"] = "sum"


Request: TypeAlias = AllGather | ReduceScatter | AllToAll | Broadcasts | Reduces | AllReduce
Steps: TypeAlias = Generator[Request, Any, torch.Tensor]


def in_place(request: AllReduce | Broadcasts, buffer: torch.Tensor) -> Steps:
    """One request that fills a buffer, which is the result."""
    yield request
    return buffer


class Pending(Protocol):
    """A collective under way."""

    def wait(self) -> torch.Tensor:
        """Its result, once it is there; to be called once."""


class Ranks(Protocol):
    """Where requests are carried out: :class:`hap.runtime.group.Group`."""

    @property
    def rank(self) -> int:
        """This process's index among the devices of the plan."""

    def run(self, name: str, steps: Steps) -> torch.Tensor:
        """Carry the requests of ``steps`` out and return its result; ``name`` stands in errors."""

    def start(self, name: str, steps: Steps) -> Pending:
        """Likewise, without waiting for the end."""

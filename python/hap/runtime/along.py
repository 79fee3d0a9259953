"""Where an axis lies in a tensor, how it is split over the ranks, and what two splits have to do with each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from hap.rules import pieces
from hap.rules.pieces import Blocks


class Along(NamedTuple):
    """Where an axis lies in a tensor (:class:`hap.rules.pieces.Cut`), and how it is split.

    Attributes:
        dim: the dimension.
        blocks: the blocks that it consists of.
        units: units that each rank gets.
    """

    dim: int
    blocks: Blocks
    units: tuple[int, ...]

    def offset(self, rank: int) -> int:
        """Units in front of this rank's share."""
        return sum(self.units[:rank])

    def shape(self, shape: Sequence[int], rank: int) -> tuple[int, ...]:
        """The shape of a rank's share of a tensor, from that of the tensor or of another share."""
        return pieces.local_shape(shape, self, self.units[rank])

    def counts(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The elements of each rank's share."""
        return tuple(math.prod(self.shape(shape, rank)) for rank in range(len(self.units)))

    def stretches(self, rank: int) -> list[tuple[int, int, int]]:
        """What a rank has of the dimension: where each stretch begins in the whole and in the share, and its length."""
        total, mine, start = sum(self.units), self.units[rank], self.offset(rank)
        found: list[tuple[int, int, int]] = []
        block = local = 0
        for outer, inner in self.blocks:
            for repeat in range(outer if mine else 0):
                place, length = block + (repeat * total + start) * inner, mine * inner
                if found and place == sum(found[-1][::2]):
                    found[-1] = (*found[-1][:2], found[-1][2] + length)
                else:
                    found.append((place, local, length))
                local += length
            block += outer * total * inner
        return found

    def leads(self, shape: Sequence[int]) -> bool:
        """Whether the shares lie one after another in memory."""
        return pieces.leads(shape, self)


@lru_cache(maxsize=1024)
def crossing(
    source: Along, target: Along, rank: int, device: torch.device
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """How a dimension that is cut along one axis comes to be cut along another of its axes.

    Returns:
        by rank, which of this rank's elements it gets, and which of the new share's elements come from it. They are on
        the device; copying them there at each call would stop it.
    """

    def owners(along: Along) -> torch.Tensor:
        places = [
            pieces.positions(along, sum(along.units), along.offset(r), units) for r, units in enumerate(along.units)
        ]
        ranks = torch.repeat_interleave(torch.tensor([len(place) for place in places]))
        return ranks[torch.argsort(torch.cat(places))]

    def own(along: Along) -> torch.Tensor:
        return pieces.positions(along, sum(along.units), along.offset(rank), along.units[rank])

    ranks = len(source.units)
    receivers, senders = owners(target)[own(source)], owners(source)[own(target)]

    def of_each(peers: torch.Tensor) -> tuple[torch.Tensor, ...]:
        order = torch.argsort(peers, stable=True).to(device)
        return torch.split(order, torch.bincount(peers, minlength=ranks).tolist())

    return of_each(receivers), of_each(senders)


def common(one: Along, rank: int, other: Along, peer: int) -> int:
    """Units that are in both the share of a rank and that of a peer by another split."""
    begins = (one.offset(rank), other.offset(peer))
    return max(0, min(begins[0] + one.units[rank], begins[1] + other.units[peer]) - max(begins))

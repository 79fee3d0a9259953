"""The ranks that run a plan, and the idle ones: in the job, with all that is asked of all ranks, but without a share.

A program knows its devices by their places, 0, 1, ...; all else goes by the ranks of the job.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hap.runtime.group import Group
from hap.runtime.placing import spread
from hap.runtime.requests import Pending


class Active:
    """The active ranks of a job.

    Making one is a collective of all ranks.

    Args:
        job: all ranks.
        devices: the active ones, ascending.

    Attributes:
        rank: this rank of the job, of so many ``ranks``.
        group: the active ranks, by their places; ``None`` on an idle one.
    """

    def __init__(self, job: Group, devices: tuple[int, ...]) -> None:
        self.devices = devices
        self.rank, self.ranks = job.rank, job.size
        self.group = job.among(devices)
        self._news: Group | None = None
        if self.somebody_is_idle:
            idle = set(range(job.size)) - set(devices)
            heard = tuple(sorted({devices[0], *idle}))
            self._source = heard.index(devices[0])
            self._news = job.among(heard)
        self._sent: list[Pending] = []

    @property
    def somebody_is_idle(self) -> bool:
        """Whether the active ranks are not all."""
        return len(self.devices) < self.ranks

    def units(self, units: Sequence[int]) -> tuple[int, ...]:
        """Units by rank of the job, from those by place."""
        return spread(units, self.devices, self.ranks)

    def includes(self, units: Sequence[int]) -> bool:
        """Whether only active ranks have some of these units by rank."""
        return all(rank in self.devices for rank, count in enumerate(units) if count)

    def tell(self, what: str, values: Sequence[torch.Tensor]) -> None:
        """Send values of the first active rank to the idle ranks, whose tensors are filled in place.

        The others have nothing to do with it. The sender does not wait, but for what it sent the last time.

        Raises:
            CommunicationError: a rank has stopped.
        """
        if self._news is None or not values:
            return
        sending = self._news.rank == self._source
        for pending in self._sent:
            pending.wait()
        # Copies are sent: whoever gets the values may change them meanwhile.
        buffers = [
            value.detach().clone(memory_format=torch.contiguous_format) if sending else value
            for value in values
            if value.numel()
        ]
        begun = [self._news.fill(what, self._source, buffer) for buffer in buffers]
        self._sent = begun if sending else []
        if not sending:
            for pending in begun:
                pending.wait()

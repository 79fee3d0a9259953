"""What ranks settle before they move data: who they are, that they hold the same, and what rank 0 decides.

Everything here goes over a *control* group on the CPUs, so that no accelerator has to be waited for. Every function is
called by all ranks; where one rank has an error, all ranks raise, so that none waits for ever.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from hap.errors import HapError, RuntimeMismatchError
from hap.runtime.failure import entering, failed, leaving
from hap.units import ranks_text

T = TypeVar("T")


class Control:
    """The ranks of a job, for small messages.

    Args:
        process_group: the ranks that run the plan; ``None`` for a job of one process without a group.
    """

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        self.rank = 0 if process_group is None else dist.get_rank(process_group)
        self.size = 1 if process_group is None else dist.get_world_size(process_group)
        if process_group is not None:
            backends = _backends(process_group)
            if backends.get("cpu") is None or backends["cpu"].name() != "gloo":
                timeout = next(iter(backends.values())).options._timeout
                ranks = dist.get_process_group_ranks(process_group)
                process_group = dist.new_group(ranks, backend="gloo", timeout=timeout)
        self.group = process_group

    def apart(self) -> Control:
        """The same ranks on a group of its own, for another thread. A collective."""
        return self if self.group is None else Control(self._new_group(range(self.size)))

    def among(self, ranks: tuple[int, ...]) -> Control | None:
        """Some of the ranks, in ascending order, on a group of theirs; ``None`` on the others. A collective of all."""
        if self.group is None:
            return self
        made = self._new_group(ranks)
        return Control(made) if self.rank in ranks else None

    def close(self) -> None:
        """End a group that :meth:`among` has made; called by its ranks, once none is in a collective of it."""
        if self.group is not None:
            assert self.group is not dist.group.WORLD, "that of the job stays"
            dist.destroy_process_group(self.group)

    def _new_group(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """These ranks on the CPUs, with the timeout of all."""
        assert self.group is not None
        timeout = _backends(self.group)["cpu"].options._timeout
        members = [dist.get_global_rank(self.group, rank) for rank in ranks]
        made: dist.ProcessGroup = dist.new_group(members, backend="gloo", timeout=timeout)
        return made

    def gather(self, value: T, what: str) -> list[T]:
        """Every rank's value, by rank. ``what`` stands in errors."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        self._carry_out(what, lambda: dist.all_gather_object(values, value, group=self.group))
        return values

    def numbers(self, value: Sequence[int], what: str) -> list[tuple[int, ...]]:
        """Every rank's few whole numbers, by rank; as many from each. Cheaper than :meth:`gather`."""
        if self.size == 1:
            return [tuple(value)]
        mine = torch.tensor(value, dtype=torch.int64)
        received = torch.empty(self.size * len(value), dtype=torch.int64)
        parts = list(received.chunk(self.size))
        self._carry_out(what, lambda: dist.all_gather(parts, mine, group=self.group))
        return [tuple(part) for part in received.view(self.size, len(value)).tolist()]

    def exchange(
        self, make: Callable[[], tuple[T, Sequence[int]]], count: int, what: str
    ) -> tuple[T, list[tuple[int, ...]]]:
        """What this rank makes, and the ``count`` numbers that each rank makes with it, by rank.

        As :meth:`numbers`, but where a rank fails all raise: it its own error, the others one naming it.
        """
        if self.size == 1:
            made, mine = make()
            return made, [tuple(mine)]
        result: Any = None
        failure: Exception | None = None
        sent: Sequence[int] = (0,) * count
        try:
            result, sent = make()
        except Exception as error:
            failure = error
        received = self.numbers([*sent, int(failure is not None)], what)
        if any(failed for *_, failed in received):
            self._raise(failure, what)
        return result, [one[:-1] for one in received]

    def settle(self, make: Callable[[], T], what: str, hint: str = "") -> T:
        """What rank 0 makes, on all ranks. An error of rank 0 is raised on all ranks.

        The other ranks wait meanwhile, no longer than the group's timeout; ``hint`` stands in the error then.
        """
        answer: list[Any] = [None, None]
        if self.rank == 0:
            try:
                answer = [make(), None]
            except Exception as error:
                answer = [None, error]
        if self.size > 1:
            sent = [answer[0], None if answer[1] is None else _portable(answer[1])]
            self._carry_out(what, lambda: dist.broadcast_object_list(sent, group_src=0, group=self.group), hint)
            answer = answer if self.rank == 0 else sent
        if answer[1] is not None:
            raise answer[1]
        return answer[0]  # type: ignore[no-any-return]

    def together(self, make: Callable[[], T], what: str) -> T:
        """What each rank makes for itself. Where one fails all raise: it its own error, the others one naming it."""
        result: Any = None
        failure: Exception | None = None
        try:
            result = make()
        except Exception as error:
            failure = error
        self._raise(failure, what)
        return result  # type: ignore[no-any-return]

    def _raise(self, failure: Exception | None, what: str) -> None:
        """Raise this rank's failure, or else tell of those of the others, if there are any. A collective."""
        failures = self.gather(None if failure is None else f"{type(failure).__name__}: {failure}", what)
        if failure is not None:
            raise failure
        failed = [rank for rank, message in enumerate(failures) if message is not None]
        if failed:
            raise RuntimeMismatchError(f"{what} failed on {ranks_text(failed)}: {failures[failed[0]]}")

    def same(self, values: dict[str, str], what: str) -> None:
        """Check that all ranks hold the same values.

        Raises:
            RuntimeMismatchError: they differ, on all ranks; names what differs and the ranks.
        """
        everybody = self.gather(values, what)
        for key in values:
            held: dict[str, list[int]] = {}
            for rank, theirs in enumerate(everybody):
                held.setdefault(theirs.get(key, "nothing"), []).append(rank)
            if len(held) > 1:
                sides = "; ".join(f"{ranks_text(ranks)}: {value}" for value, ranks in held.items())
                raise RuntimeMismatchError(f"the ranks differ in {key} ({what}): {sides}. All ranks must run the same.")

    def _carry_out(self, what: str, communicate: Callable[[], Any], hint: str = "") -> None:
        entering(what)
        try:
            communicate()
        except RuntimeError as error:
            # With the rank in the job, as that of a group of some means nothing to anybody.
            raise failed(what, dist.get_rank(), dist.get_world_size(), error, hint) from error
        leaving()


def _backends(group: dist.ProcessGroup) -> dict[str, Any]:
    """A group's backends by type of device; ``dist.get_backend`` knows but one name for all of them."""
    return {device.type: group._get_backend(device) for device in group._device_types}


def _portable(error: Exception) -> Exception:
    """The error as it can be sent: hap's own as they are, others by their text."""
    kind = type(error) if isinstance(error, HapError) else HapError
    text = str(error) if isinstance(error, HapError) else f"{type(error).__name__}: {error}"
    return kind(f"{text} (on rank 0)")


def process_group(devices: int | None) -> dist.ProcessGroup | None:
    """The process group to run on: the one that exists, else one from the environment that ``torchrun`` sets.

    Without either the job is this process alone, and the result is ``None``. Without ``devices`` any number will do.

    Raises:
        RuntimeMismatchError: the number of processes is not the number of devices.
    """
    if not dist.is_available():
        size, group = 1, None
    else:
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            dist.init_process_group()
        group = dist.group.WORLD if dist.is_initialized() else None
        size = 1 if group is None else dist.get_world_size(group)
    if devices is not None and size != devices:
        plural = "" if size == 1 else "s"
        raise RuntimeMismatchError(
            f"the job has {size} process{'' if size == 1 else 'es'}, but devices= lists {devices}: "
            f"start one process per device (torchrun --nproc-per-node {devices}), or list {size} device{plural}"
        )
    return group

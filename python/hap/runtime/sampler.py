"""Each rank's share of each global batch, in the order in which one device would see the samples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, IterableDataset, Sampler, default_collate

from hap.balance import largest_remainder
from hap.errors import HapError
from hap.rules import BATCH
from hap.runtime.local_inputs import LocalInput, marked

if TYPE_CHECKING:
    from hap.planning import Plan
    from hap.runtime.module import ParallelModule


class DistributedSampler(Sampler[list[int]]):
    """Yields, batch by batch, the indices of this rank's share of a global batch.

    A *batch* sampler::

        sampler = hap.DistributedSampler(dataset, model, batch_size=64, shuffle=True)
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=sampler.collate, num_workers=2)
        for epoch in range(10):
            sampler.set_epoch(epoch)
            for x, y in loader:
                loss = model(x, y)

    All ranks together see the samples that one device would see, in the same batches and order, which is that of
    :class:`torch.utils.data.DistributedSampler` for one process. A last batch that is not full is a smaller global
    batch, shared in the same proportions. A rank whose share is empty gets tensors with a first dimension of zero, and
    calls the model with them as the others do. :meth:`collate` marks the tensors as shares, which is how the model
    knows. Samples must have one shape on all ranks: pad texts to a fixed length. Let the loaders of all ranks be alike
    (their number of workers, too): shares may change with the plan, for all ranks at once.

    To go on in the middle of an epoch, under any plan, on any number of ranks, save :meth:`state_dict`, by
    ``hap.save(..., {"sampler": sampler})``. Loaders with workers draw batches ahead of the loop: there save the loader
    itself, a ``torchdata.stateful_dataloader.StatefulDataLoader``, which keeps the state that belongs to each batch.

    Args:
        dataset: with a length and indices.
        model_or_plan: whose shares of the batch to follow, of a model's those of the largest batch that it has a plan
            for; before its first plan those of the devices' speeds.
        rank: this rank; that of the process group if ``None``.
        batch_size: samples in a global batch; if ``None``, as many as the plan is for.
        shuffle: whether to draw a new order for each epoch.
        seed: of that order; the same on all ranks.
        drop_last: whether to leave out a last batch that is not full.
    """

    def __init__(
        self,
        dataset: Sized,
        model_or_plan: ParallelModule | Plan,
        rank: int | None = None,
        *,
        batch_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        from hap.planning import Plan

        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise HapError(
                f"dataset: expected one with a length and indices, got {type(dataset).__name__}, which only streams: "
                "let each rank read the same global batches, or mark its share of them by model.local_inputs"
            )
        if not isinstance(model_or_plan, Plan) and not hasattr(model_or_plan, "_hap_session"):
            kind = type(model_or_plan).__name__
            raise HapError(f"model_or_plan: expected a parallel module, by hap.parallelize, or a hap.Plan, got {kind}")
        plan = model_or_plan if isinstance(model_or_plan, Plan) else model_or_plan.plan
        if batch_size is None:
            batch_size = None if plan is None else plan.axes.get(BATCH)
            if batch_size is None:
                raise HapError("batch_size: expected the number of samples in a global batch, as no plan says it")
        if batch_size < 1:
            raise HapError(f"batch_size: expected at least 1, got {batch_size}")
        if rank is None:
            rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        cluster = (model_or_plan if isinstance(model_or_plan, Plan) else model_or_plan._hap_session).cluster
        if not 0 <= rank < len(cluster.devices):
            raise HapError(f"rank: expected 0 to {len(cluster.devices) - 1}, one per device of the plan, got {rank}")
        self.dataset = dataset
        self.rank = rank
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self._source: ParallelModule | Plan | None = model_or_plan
        # The epoch that is gone through, or was last, and the samples of it that were drawn.
        self._at = (0, 0)
        self._resuming = False

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration; the same on all ranks. The epoch of a loaded state goes on."""
        self.epoch = epoch
        if epoch != self._at[0]:
            self._at, self._resuming = (epoch, 0), False

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's indices, batch by batch; a list may be empty.

        Raises:
            HapError: a loader would make batches of these batches, as it got the sampler for one of samples.
        """
        caller = sys._getframe(1).f_locals.get("self")
        if isinstance(caller, BatchSampler) and getattr(caller, "sampler", None) is self:
            raise HapError(
                "hap.DistributedSampler yields whole batches: give it to the DataLoader as batch_sampler=, not as "
                "sampler=, and leave out its batch_size, shuffle and drop_last, which the sampler has itself: "
                "DataLoader(dataset, batch_sampler=sampler, collate_fn=sampler.collate)"
            )
        if not self._resuming:
            self._at = (self.epoch, 0)
        self._resuming = False
        return self._batches(*self._at)

    def _batches(self, epoch: int, drawn: int) -> Iterator[list[int]]:
        size = len(self.dataset)
        generator = torch.Generator().manual_seed(self.seed + epoch)
        order = torch.randperm(size, generator=generator) if self.shuffle else torch.arange(size)
        while drawn < size and not (self.drop_last and drawn + self.batch_size > size):
            batch = order[drawn : drawn + self.batch_size]
            drawn += len(batch)
            self._at = (epoch, drawn)
            units = self.units(len(batch))
            start = sum(units[: self.rank])
            yield batch[start : start + units[self.rank]].tolist()

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is: the epoch, the samples of it that were drawn, and what their order depends on."""
        epoch, samples = self._at
        return {"epoch": epoch, "samples": samples, **self._order()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on from a state, also one of another plan or number of ranks.

        Raises:
            HapError: it is of another order.
        """
        for name, here in self._order().items():
            if state.get(name) != here:
                raise HapError(f"the state is of another order: its {name} is {state.get(name)}, and {here} here")
        self._at, self._resuming = (state["epoch"], state["samples"]), True
        # An epoch that was set already is to come after the one that goes on.
        self.epoch = max(self.epoch, state["epoch"])

    def _order(self) -> dict[str, Any]:
        return {"size": len(self.dataset), "shuffle": self.shuffle, "seed": self.seed}

    def __getstate__(self) -> dict[str, Any]:
        """For the loader's workers, which only collate: a parallel module cannot be pickled."""
        return {**vars(self), "_source": None}

    def units(self, samples: int) -> list[int]:
        """How many of a batch's samples each rank gets."""
        from hap.planning import Plan

        assert self._source is not None, "a worker's copy only collates"
        weights: Sequence[float]
        if isinstance(self._source, Plan):
            plan: Plan | None = self._source
            weights = self._source.units(BATCH) if BATCH in self._source.splits else ()
        else:
            # A small batch, such as the last one, is shared in whole samples, which says little.
            plan, weights = self._source.plan, self._source._hap_session.shares
            if plan is None:
                weights = [device.speed for device in self._source._hap_session.cluster.devices]
        if not weights and plan is not None:
            weights = [1] * len(plan.cluster.devices)
        return largest_remainder([weight / sum(weights) for weight in weights], samples)

    def collate(self, samples: list[Any], collate: Callable[[list[Any]], Any] = default_collate) -> Any:
        """A batch from samples, its tensors marked as this rank's share; ``collate`` makes the batch.

        Where this rank has no samples, its tensors have the shape of a batch of none.

        Raises:
            HapError: a tensor has no dimension of samples, or the batch is of a class that hap cannot open.
        """
        # A dataset with a length can be indexed.
        batch = collate(samples) if samples else collate([self.dataset[0]])  # type: ignore[index]

        def mark(value: torch.Tensor) -> LocalInput:
            if not value.dim():
                raise HapError(
                    "collate: a tensor of the batch has no dimensions, so that it cannot be a rank's share of the "
                    "samples: keep a dimension of samples first, or pass the value to the model by itself"
                )
            return LocalInput(value if samples else value[:0])

        return marked(batch, mark)

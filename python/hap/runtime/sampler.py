"""Each rank's share of each global batch, in the order in which one device would see the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree
from torch.utils.data import Sampler, default_collate

from hap.balance import largest_remainder
from hap.errors import HapError
from hap.rules import BATCH
from hap.runtime.local_inputs import LocalInput

if TYPE_CHECKING:
    from hap.planning import Plan
    from hap.runtime.module import ParallelModule


class DistributedSampler(Sampler[list[int]]):
    """Yields, batch by batch, the indices of this rank's share of a global batch.

    A *batch* sampler::

        sampler = hap.DistributedSampler(dataset, model, batch_size=64, shuffle=True)
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=sampler.collate)

    All ranks together see the samples that one device would see, in the same batches and order. :meth:`collate` marks
    the tensors as shares, which is how the model knows; ``set_epoch`` makes another order.

    Args:
        dataset: with a length.
        model_or_plan: whose shares of the batch to follow; before a model's first plan those of the devices' speeds.
        batch_size: samples in a global batch.
        shuffle: whether to draw a new order for each epoch.
        seed: of that order; the same on all ranks.
        drop_last: whether to leave out a last batch that is not full.
        rank: this rank; that of the process group if ``None``.
    """

    def __init__(
        self,
        dataset: Sized,
        model_or_plan: ParallelModule | Plan,
        *,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise HapError(f"batch_size: expected at least 1, got {batch_size}")
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self._source = model_or_plan
        if rank is None:
            rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        from hap.planning import Plan

        cluster = (model_or_plan if isinstance(model_or_plan, Plan) else model_or_plan._hap_session).cluster
        if not 0 <= rank < len(cluster.devices):
            raise HapError(f"rank: expected 0 to {len(cluster.devices) - 1}, one per device of the plan, got {rank}")
        self.rank = rank

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration; the same on all ranks."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Number of batches."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's indices, batch by batch; a list may be empty."""
        order = list(range(len(self.dataset)))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(len(order), generator=generator).tolist()
        for number in range(len(self)):
            batch = order[number * self.batch_size : (number + 1) * self.batch_size]
            units = self.units(len(batch))
            start = sum(units[: self.rank])
            yield batch[start : start + units[self.rank]]

    def units(self, samples: int) -> list[int]:
        """How many of a batch's samples each rank gets."""
        from hap.planning import Plan

        plan = self._source if isinstance(self._source, Plan) else self._source.plan
        if plan is not None:
            weights: Sequence[float] = plan.splits.get(BATCH) or [1] * len(plan.cluster.devices)
        else:
            assert not isinstance(self._source, Plan)
            devices = self._source._hap_session.cluster.devices
            weights = [device.speed for device in devices]
        return largest_remainder([weight / sum(weights) for weight in weights], samples)

    def collate(self, samples: list[Any], collate: Callable[[list[Any]], Any] = default_collate) -> Any:
        """A batch from samples, its tensors marked as this rank's share; ``collate`` makes the batch.

        Where this rank has no samples, its tensors have the shape of a batch of none.
        """
        # A dataset with a length can be indexed.
        batch = collate(samples) if samples else collate([self.dataset[0]])  # type: ignore[index]

        def mark(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if not value.dim():
                raise HapError(
                    "collate: a tensor of the batch has no dimensions, so that it cannot be a rank's share of the "
                    "samples: keep a dimension of samples first, or pass the value to the model by itself"
                )
            return LocalInput(value if samples else value[:0])

        return pytree.tree_map(mark, batch)

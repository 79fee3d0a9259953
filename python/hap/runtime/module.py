"""What a module is once all devices train it together."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hap.errors import HapError
from hap.runtime import hooks
from hap.runtime.alike import check_alike
from hap.runtime.call import run
from hap.runtime.drift import Drift
from hap.runtime.local_inputs import marked
from hap.runtime.local_state import check, note
from hap.runtime.padding import padded
from hap.runtime.session import Session
from hap.runtime.shards import named_state

if TYPE_CHECKING:
    from hap.planning import Plan


class ParallelModule(nn.Module):
    """What :func:`parallelize` adds to a module's class.

    The module keeps its hierarchy, its parameters' names and its state; parameters are this rank's shards. Calls run
    the lowered graph; forward hooks that the module had are part of it, and those that it gets later run around it.
    """

    _hap_session: Session

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output: the loss on every rank, other outputs as :class:`hap.ShardedTensor` beside a loss."""
        if self._forward_pre_hooks or self._forward_hooks:
            return hooks.call(self, self._hap_run, *self._hap_session.changes.later_hooks(), args, kwargs)
        return self._hap_run(*args, **kwargs)

    def _hap_run(self, *args: Any, **kwargs: Any) -> Any:
        session = self._hap_session
        if not session.compared:
            check_alike(session.control, args, kwargs)
            session.compared = True
        return run(session, *padded(session.padding, session.control, args, kwargs))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As calling the module, but for forward hooks that it got later."""
        return self._hap_run(*args, **kwargs)

    @property
    def plan(self) -> Plan | None:
        """The plan of the latest call; ``None`` before the first."""
        latest = self._hap_session.latest
        return None if latest is None else latest.plan

    @property
    def drift(self) -> Drift | None:
        """How far what all ranks hold whole had drifted apart before the latest broadcast; ``None`` before the first.

        See ``drift_interval`` of :func:`parallelize`.
        """
        return self._hap_session.equaliser.latest

    @property
    def rng_state(self) -> tuple[int, int]:
        """Seed and step: what the random numbers of the next call are drawn from, beside operator and position.

        The step counts the calls that drew some. Save both with a checkpoint, and set them, on all ranks, to go on with
        the numbers that would have come next: on any devices, under any plan. ``model.rng_state = (seed, 0)`` starts
        anew.
        """
        return self._hap_session.seed % 2**64, self._hap_session.steps

    @rng_state.setter
    def rng_state(self, state: tuple[int, int]) -> None:
        try:
            seed, step = (operator.index(number) for number in state)
        except (TypeError, ValueError):
            raise HapError(f"rng_state: expected a seed and a step, got {state!r}") from None
        if not (-(2**63) <= seed < 2**64 and 0 <= step < 2**32):
            raise HapError(f"rng_state: expected a seed of 64 bits and a step from 0 to 2**32 - 1, got {state!r}")
        self._hap_session.seed, self._hap_session.steps = signed(seed), step

    def local_inputs(self, *inputs: Any) -> Any:
        """Mark tensors as this rank's share of a global batch, in the order of the ranks; also those in containers.

        ``model(*model.local_inputs(x, y))``. One input comes back bare, several as a tuple.
        """
        shares = tuple(marked(value) for value in inputs)
        return shares[0] if len(shares) == 1 else shares

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Calls of the module in this context leave the reduction of their gradients to the next one outside of it.

        As in DistributedDataParallel, what counts is where the forward runs. Until the backward of a call outside of
        the context, what was accumulated lies in hap's own buffers and ``grad`` of the parameters stays as it was;
        that backward then adds all of it. ``zero_grad()`` of the model or of the optimiser drops it; an optimiser's
        step before the reduction raises. ::

            for batch in microbatches[:-1]:
                with model.no_sync():
                    (model(*batch) / len(microbatches)).backward()
            (model(*microbatches[-1]) / len(microbatches)).backward()

        Gradients of inputs are there at once. Buffers (running statistics) are updated by every call. Where
        microbatches differ in shape, they may have several plans; whenever the plan changes, what was accumulated
        under the one before is reduced.
        """
        session = self._hap_session
        before, session.synchronising = session.synchronising, False
        try:
            yield
        finally:
            session.synchronising = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As of any module; also drops what was accumulated under :meth:`no_sync`."""
        super().zero_grad(set_to_none)
        if self._hap_session.sums.pending:
            self._hap_session.sums.forget(list(self.parameters()))

    def state_dict(self, *args: Any, prefix: str = "", **kwargs: Any) -> Any:
        """As of any module, with this rank's shards: for this rank under this plan. Elsewhere :func:`hap.save`."""
        state = super().state_dict(*args, prefix=prefix, **kwargs)
        note(state, prefix, self._hap_session)
        return state

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any) -> None:
        check(state_dict, prefix, local_metadata, self._hap_session)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def full_parameter(self, name: str) -> torch.Tensor:
        """The whole of a parameter or buffer on every rank. A collective: all ranks must call it."""
        state = named_state(self)
        if name not in state:
            raise HapError(f'the module has no parameter or buffer "{name}"')
        return self._hap_session.whole(name, state[name].detach())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Refused: a copy would hold this rank's shards without the plan that they belong to."""
        raise HapError(NO_COPY)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refused, as :meth:`__deepcopy__`."""
        raise HapError(NO_COPY)


NO_COPY = (
    "a parallel module cannot be copied or pickled, as it holds this rank's shards of a running job: hap.save writes a "
    "checkpoint, and hap.full_state_dict gathers the whole state on rank 0"
)


def signed(seed: int) -> int:
    """A seed of 64 bits as ``int64`` holds it."""
    return (seed + 2**63) % 2**64 - 2**63

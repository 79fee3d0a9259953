"""``state_dict()`` of a parallel module holds this rank's shards: a note in it says whose, and loading compares.

Shards of another rank or plan may have the same shapes; they would be taken in silence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from hap.errors import HapError
from hap.runtime.session import Session

_NOTE = "hap"
_ADVICE = (
    "state_dict() of a parallel module goes back into the same rank under the same plan alone. hap.save and hap.load "
    "go between plans, hap.full_state_dict gathers the whole, and a whole state is loaded before hap.parallelize"
)


def note(state: Any, prefix: str, session: Session) -> None:
    """Write into the metadata of a state dict whose shards it holds, where it holds any."""
    if (held := _held(session)) is not None:
        state._metadata[prefix[:-1]][_NOTE] = held


def check(state: Mapping[str, Any], prefix: str, metadata: Mapping[str, Any], session: Session) -> None:
    """Check that a state is this rank's.

    Raises:
        HapError: it holds shards of another rank or plan, or whole tensors for shards.
    """
    here, there = _held(session), metadata.get(_NOTE)
    if there is not None and there != here:
        raise HapError(f"the state holds the shards of {there}, and this is {here or 'a whole module'}: {_ADVICE}")
    layouts = session.layouts()
    for name, own in session.state().items():
        given, layout = state.get(prefix + name), layouts.get(id(own))
        if not isinstance(given, torch.Tensor) or layout is None or given.shape == own.shape:
            continue
        if tuple(given.shape) == layout.shape:
            raise HapError(f'the state holds the whole "{name}", and this rank has a shard of it: {_ADVICE}')


def _held(session: Session) -> str | None:
    """Whose shards a module holds: the rank, and how all tensors are split; ``None`` where none is."""
    layouts = session.layouts()
    split = [
        (name, layout.along)
        for name, tensor in sorted(session.state().items())
        if (layout := layouts.get(id(tensor))) is not None and not layout.everywhere
    ]
    if session.group.size == 1 or not split:
        return None
    digest = hashlib.blake2b(repr(split).encode(), digest_size=4).hexdigest()
    return f"rank {session.group.rank} of {session.group.size} (split as {digest})"

"""What optimisers hold, for the prediction of memory: their state, and what they make while they step."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec
import torch

from hap.cluster import Cluster
from hap.cluster.accelerators import canonical_name
from hap.errors import PlanError
from hap.units import listed


class Temporaries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Tensors of a parameter's shape that an optimiser makes while it steps.

    Attributes:
        together: for all parameters at a time.
        in_turn: for one parameter after the other.
        carried: what is left of the parameter before, meanwhile.
    """

    together: int = 0
    in_turn: int = 0
    carried: int = 0


NO_TEMPORARIES = Temporaries()


class OptimiserMemory(msgspec.Struct, frozen=True):
    """Tensors of a parameter's shape that an optimiser holds: kept per parameter, and made while it steps."""

    tensors: int
    temporaries: Temporaries = NO_TEMPORARIES

    def as_options(self) -> dict[str, object]:
        """As the core's options have it."""
        return {"optimiser_tensors": self.tensors, "temporaries": self.temporaries}


Optimiser: TypeAlias = "int | str | type[torch.optim.Optimizer] | torch.optim.Optimizer | OptimiserMemory"
"""An optimiser: itself, its class, the name of that, or the number of tensors that it keeps per parameter."""


class _Known(NamedTuple):
    """Tensors that are kept, and those of :class:`Temporaries`; the last also where gradients are copied first."""

    tensors: int
    in_turn: int
    carried: int
    together: int
    together_copied: int


_KNOWN = {
    "SGD": _Known(0, 0, 0, 0, 1),
    "ASGD": _Known(1, 0, 0, 1, 1),
    "Adagrad": _Known(1, 1, 1, 2, 2),
    "RMSprop": _Known(1, 1, 1, 1, 2),
    "Adadelta": _Known(2, 2, 1, 2, 3),
    "Adam": _Known(2, 2, 1, 1, 1),
    "AdamW": _Known(2, 2, 1, 1, 1),
    "Adamax": _Known(2, 1, 0, 1, 1),
    "NAdam": _Known(2, 2, 1, 1, 2),
    "RAdam": _Known(2, 5, 0, 1, 1),
    "Rprop": _Known(2, 3, 0, 2, 2),
}
# Options that make an optimiser keep one tensor more.
_OPTIONS = ("momentum", "amsgrad", "centered")

# More than any optimiser keeps.
MOST = 1000


def steps_together(cluster: Cluster) -> bool:
    """Whether optimisers step all parameters at a time (``foreach=True``) where nothing is said: on accelerators."""
    return any(canonical_name(device.name) is not None for device in cluster.devices)


def optimiser_memory(optimiser: Optimiser, *, together: bool, accumulation: bool = False) -> OptimiserMemory:
    """What an optimiser holds.

    A class, or its name, counts without options; of an optimiser itself those of its groups count, of several groups
    the most of each: ``SGD`` keeps nothing, ``SGD(..., momentum=0.9)`` one tensor. A number is of tensors that are
    kept: none are made then.

    Args:
        optimiser: the optimiser.
        together: whether it steps all parameters at a time, unless its groups say ``foreach=`` or ``fused=``.
        accumulation: whether one tensor more is kept per parameter.

    Raises:
        PlanError: the optimiser is not known, or the number is none from 0 to 1000.
    """
    held = _memory(optimiser, together)
    return msgspec.structs.replace(held, tensors=held.tensors + int(accumulation))


def _memory(optimiser: Optimiser, together: bool) -> OptimiserMemory:
    if isinstance(optimiser, OptimiserMemory):
        return optimiser
    if isinstance(optimiser, bool) or not isinstance(optimiser, int | str | type | torch.optim.Optimizer):
        raise PlanError(
            f"optimiser: expected an optimiser, its class or name, or a number of tensors, got {optimiser!r}"
        )
    if isinstance(optimiser, int):
        if not 0 <= optimiser <= MOST:
            raise PlanError(f"optimiser: expected 0 to {MOST} tensors, got {optimiser}")
        return OptimiserMemory(optimiser)
    if isinstance(optimiser, str):
        names = [optimiser]
    else:
        kind = optimiser if isinstance(optimiser, type) else type(optimiser)
        names = [base.__name__ for base in kind.__mro__]
    name = next((name for name in names if name in _KNOWN), None)
    if name is None:
        raise PlanError(
            f"optimiser: {names[0]} is not known, only {listed(_KNOWN)}; give the number of tensors of a parameter's "
            "shape that it keeps per parameter"
        )
    known = _KNOWN[name]
    groups = optimiser.param_groups if isinstance(optimiser, torch.optim.Optimizer) else [{}]
    made = [_made(known, group, together) for group in groups]
    return OptimiserMemory(
        known.tensors + max(sum(1 for option in _OPTIONS if group.get(option)) for group in groups),
        Temporaries(*(max(counts) for counts in zip(*map(msgspec.structs.astuple, made), strict=True))),
    )


def _made(known: _Known, group: dict[str, object], together: bool) -> Temporaries:
    if group.get("fused"):
        return NO_TEMPORARIES
    # Gradients are the user's: what is to be added to them is added to a copy.
    decays = group.get("weight_decay") and not group.get("decoupled_weight_decay")
    copied = bool(decays or group.get("maximize"))
    if together if group.get("foreach") is None else group["foreach"]:
        return Temporaries(together=known.together_copied if copied else known.together)
    extra = int(copied) + int(bool(group.get("nesterov")))
    return Temporaries(in_turn=known.in_turn + extra, carried=known.carried)

"""How much state optimisers keep, for the prediction of memory."""

from __future__ import annotations

from typing import TypeAlias

import torch

from hap.errors import PlanError
from hap.units import listed

Optimiser: TypeAlias = "int | str | type[torch.optim.Optimizer] | torch.optim.Optimizer"
"""An optimiser: itself, its class, the name of that, or the number of tensors that it keeps per parameter."""

_TENSORS = {
    "SGD": 0,
    "ASGD": 1,
    "Adagrad": 1,
    "RMSprop": 1,
    "Adadelta": 2,
    "Adam": 2,
    "AdamW": 2,
    "Adamax": 2,
    "NAdam": 2,
    "RAdam": 2,
    "Rprop": 2,
}
# Options that make an optimiser keep one tensor more.
_OPTIONS = ("momentum", "amsgrad", "centered")

# More than any optimiser keeps.
MOST = 1000


def optimiser_tensors(optimiser: Optimiser) -> int:
    """Tensors of a parameter's shape that an optimiser keeps per parameter.

    A class, or its name, counts without options; of an optimiser itself those of its groups count, of several groups
    the one that keeps most: ``SGD`` keeps nothing, ``SGD(..., momentum=0.9)`` one tensor.

    Raises:
        PlanError: the optimiser is not known, or the number is none from 0 to 1000.
    """
    if isinstance(optimiser, bool) or not isinstance(optimiser, int | str | type | torch.optim.Optimizer):
        raise PlanError(
            f"optimiser: expected an optimiser, its class or name, or a number of tensors, got {optimiser!r}"
        )
    if isinstance(optimiser, int):
        if not 0 <= optimiser <= MOST:
            raise PlanError(f"optimiser: expected 0 to {MOST} tensors, got {optimiser}")
        return optimiser
    if isinstance(optimiser, str):
        names = [optimiser]
    else:
        kind = optimiser if isinstance(optimiser, type) else type(optimiser)
        names = [base.__name__ for base in kind.__mro__]
    known = next((name for name in names if name in _TENSORS), None)
    if known is None:
        raise PlanError(
            f"optimiser: {names[0]} is not known, only {listed(_TENSORS)}; give the number of tensors of a parameter's "
            "shape that it keeps per parameter"
        )
    groups = optimiser.param_groups if isinstance(optimiser, torch.optim.Optimizer) else [{}]
    return _TENSORS[known] + max(sum(1 for option in _OPTIONS if group.get(option)) for group in groups)

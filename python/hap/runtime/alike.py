"""Whether global inputs are the same on all ranks: two mistakes would otherwise train on nonsense in silence.

Loaders that shuffle on each rank by themselves, and shares of a batch that nobody has marked as such. They show in any
batch, so that a module's first call is enough, and a sample of the elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from hap.errors import RuntimeMismatchError
from hap.runtime.local_inputs import LocalInput
from hap.trace.inputs import flatten_inputs
from hap.units import ranks_text

if TYPE_CHECKING:
    from hap.runtime.agree import Control

_SAMPLE = 4096
_TOLERANCE = 1e-2
"""Part of a sample's norm: devices of several kinds may have prepared the inputs with several roundings."""


def check_alike(control: Control, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Check that inputs which are no shares have the same values on all ranks. A collective.

    Inputs with other names or shapes are left to the comparison of calls, which names them.

    Raises:
        RuntimeMismatchError: names one that differs; on all ranks.
    """
    if control.size == 1:
        return

    def projections() -> dict[str, tuple[tuple[int, ...], float, float]]:
        flat, names, _ = flatten_inputs(args, kwargs, also=(LocalInput,))
        named = zip(names, flat, strict=True)
        return {name: _projection(value) for name, value in named if isinstance(value, torch.Tensor)}

    mine = control.together(projections, "taking the inputs of a call")
    first, *others = control.gather(mine, "comparing the ranks' inputs")
    for name, (shape, value, norm) in first.items():
        unlike = [
            rank
            for rank, other in enumerate(others, 1)
            if other.get(name, (None,))[0] == shape
            and abs(other[name][1] - value) > _TOLERANCE * max(norm, other[name][2])
        ]
        if unlike:
            raise RuntimeMismatchError(
                f'the input "{name}" has other values on {ranks_text(unlike)} than on rank 0, but each rank is to pass '
                "the same global batch: let loaders draw one order on all ranks (seed their generators alike), or pass "
                "shares that are marked, by hap.DistributedSampler with collate_fn=sampler.collate, or by "
                "model.local_inputs"
            )


def _projection(value: torch.Tensor) -> tuple[tuple[int, ...], float, float]:
    """The shape, a number that depends on elements and their places, and the norm of what it was made from."""
    flat = value.detach().reshape(-1)
    flat = flat.abs() if flat.is_complex() else flat
    if len(flat) > _SAMPLE:
        # At no fixed distance: that may be a row's length, and rows begin alike (borders of images, marks of texts).
        places = torch.arange(_SAMPLE, dtype=torch.float64).mul((math.sqrt(5.0) - 1.0) / 2.0).frac().mul(len(flat))
        flat = flat[places.long().to(flat.device)]
    flat = flat.double().cpu().nan_to_num(0.0, 0.0, 0.0)
    weights = torch.arange(len(flat), dtype=torch.float64).add(1.0).square().mul(0.618).cos()
    return tuple(value.shape), float(flat @ weights), float(flat.norm())

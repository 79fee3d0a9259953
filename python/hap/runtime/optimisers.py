"""Makes PyTorch's optimisers and gradient scaler right for parameters that lie on several devices, or refuses them.

* An optimiser that would compute something else on a shard of a parameter than on the whole is refused at its step, by
  its class's name; of one that is not known there is a warning.
* So is a step while gradients wait for their reduction (:mod:`hap.runtime.accumulate`); ``zero_grad`` drops those.
* :class:`torch.amp.GradScaler` skips a step on every rank where any of them has found an overflow.
* ``torch.nn.utils.clip_grad_norm_``, which would take the norm of a rank's shards, is refused.

PyTorch has a hook for steps alone; the others wrap a function of it, once, when hap takes the first module. What has no
parameters of hap's is left as it is.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils import clip_grad
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hap.errors import HapError
from hap.runtime.accumulate import check_reduced, forget
from hap.runtime.agree import process_group
from hap.runtime.group import Group
from hap.runtime.requests import AllReduce, in_place

_REFUSED = re.compile(
    # Families, with all that bears their name (FusedLAMB, LARS8bit, MuonWithAuxAdam); then single classes.
    r"adafactor|adahessian|adalomo|adam_?mini|conda|d_?adapt|dion|galore|kfac|lamb(?!da)|larc|lars|lbfgs|muon|novograd"
    r"|prodigy|psgd|ranger|sam$|scion|shampoo|soap|stable"
    r"|^(adai|adalite|adamp|aida|alice|alig|amos|apollo|came|demo|dog|dowg|fadam|fira|fromage|kron|ldog|mars|nero"
    r"|onebitadam|racs|sgdp|sm3|splus|tam|zerooneadam)$",
    re.IGNORECASE,
)
"""Names of classes whose step depends on a whole parameter, or on all of them: norms, factors, inner products."""

_ELEMENTWISE = frozenset({
    # torch.optim
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam",
    # others
    "AdEMAMix", "AdaBelief", "AdamWScheduleFree", "AggMo", "AnyPrecisionAdamW", "DeepSpeedCPUAdam", "FusedAdagrad",
    "FusedAdam", "FusedSGD", "LaProp", "Lion", "MADGRAD", "QHAdam", "RAdamScheduleFree", "SGDScheduleFree", "Sophia",
    "SophiaG", "Tiger", "Yogi",
})  # fmt: skip
"""Names of classes that work element by element."""

_MARK = "_hap_mark"


class Mark(NamedTuple):
    """What a parameter of a parallel module is: its name, whether it is a shard, and whether this rank counts it."""

    name: str
    sharded: bool
    counted: bool


def mark(parameter: nn.Parameter, name: str, *, sharded: bool, counted: bool) -> None:
    """Note that a parameter belongs to a parallel module on several devices.

    An attribute of the parameter: a weak reference to it would be in the way of ``torch.utils.swap_tensors``.
    """
    setattr(parameter, _MARK, Mark(name, sharded, counted))


def mark_of(parameter: torch.Tensor) -> Mark | None:
    """The mark of a parameter; ``None`` where it is none of a parallel module's, or there is one device."""
    return getattr(parameter, _MARK, None)


def is_shard(parameter: torch.Tensor) -> bool:
    """Whether a parameter is known to be a shard."""
    found = mark_of(parameter)
    return found is not None and found.sharded


@functools.cache
def watch() -> None:
    """From now on, look after every optimiser, scaler and clipping of this process."""
    register_optimizer_step_pre_hook(_before_step)
    zero_grad, unscale = torch.optim.Optimizer.zero_grad, torch.amp.GradScaler._unscale_grads_

    @functools.wraps(zero_grad)
    def zero_and_forget(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        zero_grad(self, set_to_none)
        forget(_parameters(self))

    @functools.wraps(unscale)
    def unscale_together(
        self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
    ) -> dict[torch.device, torch.Tensor]:
        check_reduced(_parameters(optimizer), "unscaling gradients")
        found = unscale(self, optimizer, *args, **kwargs)
        if any(mark_of(parameter) is not None for parameter in _parameters(optimizer)):
            group = Group(process_group(None))
            for overflow in found.values():
                group.run("all_reduce of overflows", in_place(AllReduce(overflow, "max"), overflow))
        return found

    scale = clip_grad._clip_grads_with_norm_

    @functools.wraps(scale)
    def scale_unless_shards(parameters: Any, *args: Any, **kwargs: Any) -> None:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if (shard := _shard_among(parameters)) is not None:
            raise HapError(
                f'torch.nn.utils.clip_grad_norm_ takes the norm of this rank alone, but "{shard.name}" is split over '
                "the devices: hap.clip_grad_norm_ has the same arguments, and takes that over all devices"
            )
        check_reduced(parameters, "clip_grad_norm_")
        scale(parameters, *args, **kwargs)

    clip_grad._clip_grads_with_norm_ = scale_unless_shards
    torch.optim.Optimizer.zero_grad = zero_and_forget  # type: ignore[method-assign]
    torch.amp.GradScaler._unscale_grads_ = unscale_together  # type: ignore[method-assign]


def _parameters(optimiser: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def _shard_among(parameters: Iterable[torch.Tensor]) -> Mark | None:
    """The mark of the first one that is a shard."""
    return next((one for parameter in parameters if (one := mark_of(parameter)) is not None and one.sharded), None)


def _before_step(optimiser: torch.optim.Optimizer, *_: Any) -> None:
    """Before each step of any optimiser.

    Raises:
        HapError: it is not element-wise and holds a shard, or gradients wait for their reduction.
    """
    parameters = _parameters(optimiser)
    shard = _shard_among(parameters)
    if shard is not None:
        refused = refused_name(type(optimiser))
        if refused is not None:
            raise HapError(
                f'{refused} does not work element by element, but "{shard.name}" is split over the devices: its '
                "step would differ from one device's. Take an element-wise optimiser (SGD, Adam, AdamW, RMSprop, "
                "...), or keep all parameters that it trains whole on every device, by hap.parallelize(..., "
                f'pin={{"{shard.name}": torch.distributed.tensor.Replicate()}})'
            )
        if not is_known(type(optimiser)):
            _warn_of(type(optimiser).__name__)
    check_reduced(parameters, f"{type(optimiser).__name__}'s step")


def refused_name(kind: type) -> str | None:
    """The name of an optimiser's class, or of one that it derives from, by which it is refused."""
    return next((one.__name__ for one in kind.__mro__ if _REFUSED.search(one.__name__)), None)


def is_known(kind: type[torch.optim.Optimizer]) -> bool:
    """Whether the class that an optimiser's step comes from is known to work element by element."""
    # PyTorch wraps the step of every class whose optimisers are made, and keeps its name.
    return kind.step.__qualname__.split(".")[-2] in _ELEMENTWISE


@functools.cache
def _warn_of(kind: str) -> None:
    """Once for each name of a class."""
    warnings.warn(
        f"hap does not know the optimiser {kind}. Its step must work element by element, as parameters are "
        "split over the devices: no norm, mean or factor of a whole parameter, and none over several. Else train by "
        "another one, or keep what it trains whole on every device, by hap.parallelize(..., pin=)",
        stacklevel=2,
    )

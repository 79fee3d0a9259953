"""Makes PyTorch's optimisers and gradient scaler right for parameters that lie on several devices, or refuses them.

* An optimiser that would compute something else on a shard of a parameter than on the whole is refused at its step.
* So is a step while gradients wait for their reduction (:mod:`hap.runtime.accumulate`); ``zero_grad`` drops those.
* :class:`torch.amp.GradScaler` skips a step on every rank where any of them has found an overflow.

PyTorch has a hook for steps alone; the other two wrap a method of its classes, once, when hap takes the first module.
Optimisers without parameters of hap's are left as they are.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hap.errors import HapError
from hap.runtime.accumulate import check_reduced, forget
from hap.runtime.agree import process_group
from hap.runtime.group import Group
from hap.runtime.requests import AllReduce

NOT_ELEMENTWISE = frozenset({
    "APOLLO", "Adafactor", "CAME", "DAdaptAdaGrad", "DAdaptAdam", "DAdaptLion", "DAdaptSGD", "DistributedShampoo",
    "GaLoreAdafactor", "GaLoreAdamW", "KFAC", "Kron", "LAMB", "LARC", "LARS", "LBFGS", "Lamb", "Lars", "Muon",
    "NovoGrad", "Prodigy", "Ranger", "SAM", "SM3", "SOAP", "Shampoo",
})  # fmt: skip
"""Names of classes whose step depends on a whole parameter, or on all of them: norms, factors, inner products."""

_MARK = "_hap_mark"


class Mark(NamedTuple):
    """What a parameter of a parallel module is: its name, and whether it is a shard."""

    name: str
    sharded: bool


def mark(parameter: nn.Parameter, name: str, *, sharded: bool) -> None:
    """Note that a parameter belongs to a parallel module on several devices.

    An attribute of the parameter: a weak reference to it would be in the way of ``torch.utils.swap_tensors``.
    """
    setattr(parameter, _MARK, Mark(name, sharded))


def mark_of(parameter: torch.Tensor) -> Mark | None:
    """The mark of a parameter; ``None`` where it is none of a parallel module's, or there is one device."""
    return getattr(parameter, _MARK, None)


def is_shard(parameter: torch.Tensor) -> bool:
    """Whether a parameter is known to be a shard."""
    found = mark_of(parameter)
    return found is not None and found.sharded


@functools.cache
def watch() -> None:
    """From now on, look after every optimiser and scaler of this process."""
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
                group.request(AllReduce(overflow, "max"))
        return found

    torch.optim.Optimizer.zero_grad = zero_and_forget  # type: ignore[method-assign]
    torch.amp.GradScaler._unscale_grads_ = unscale_together  # type: ignore[method-assign]


def _parameters(optimiser: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def _before_step(optimiser: torch.optim.Optimizer, *_: Any) -> None:
    """Before each step of any optimiser.

    Raises:
        HapError: it is not element-wise and holds a shard, or gradients wait for their reduction.
    """
    parameters = _parameters(optimiser)
    refused = next((kind.__name__ for kind in type(optimiser).__mro__ if kind.__name__ in NOT_ELEMENTWISE), None)
    if refused is not None:
        for parameter in parameters:
            found = mark_of(parameter)
            if found is not None and found.sharded:
                raise HapError(
                    f'{refused} does not work element by element, but "{found.name}" is split over the devices: its '
                    "step would differ from one device's. Take an element-wise optimiser (SGD, Adam, AdamW, RMSprop, "
                    "...), or keep all parameters that it trains whole on every device, by hap.parallelize(..., "
                    f'pin={{"{found.name}": torch.distributed.tensor.Replicate()}})'
                )
    check_reduced(parameters, f"{type(optimiser).__name__}'s step")

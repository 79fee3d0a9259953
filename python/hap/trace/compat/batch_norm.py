"""Batch norm: PyTorch reads the counter of a cumulative average as a number, and synchronises what is global here.

``momentum=None`` asks for that average. ``nn.SyncBatchNorm`` is what each batch norm is under hap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

_forward = _BatchNorm.forward


def _is_cumulative(part: nn.Module) -> bool:
    return isinstance(part, _BatchNorm) and part.momentum is None and part.training and part.running_mean is not None


def _cumulative_forward(self: Any, input: Tensor) -> Tensor:
    """As PyTorch's, with the weight of the new statistics, one over the counter, as a tensor."""
    if not _is_cumulative(self):
        return _forward(self, input)
    self._check_input_dim(input)
    out = F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)
    with torch.no_grad():
        self.num_batches_tracked.add_(1)
        var, mean = torch.var_mean(input, [dim for dim in range(input.dim()) if dim != 1])
        for running, value in ((self.running_mean, mean), (self.running_var, var)):
            running.add_((value.to(running.dtype) - running) / self.num_batches_tracked)
    return out


@contextlib.contextmanager
def compatible(module: nn.Module) -> Iterator[None]:
    """Changes nothing where no part of ``module`` needs it."""
    with contextlib.ExitStack() as stack:
        if any(_is_cumulative(part) for part in module.modules()):
            stack.enter_context(patch.object(_BatchNorm, "forward", _cumulative_forward))
        if any(isinstance(part, nn.SyncBatchNorm) for part in module.modules()):
            stack.enter_context(patch.object(nn.SyncBatchNorm, "forward", _cumulative_forward))
        yield

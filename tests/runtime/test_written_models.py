"""Modules as people write them, trained by two processes beside one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

import hap
from tests.runtime import jobs
from tests.runtime.launch import Launcher
from tests.trace.test_written_models import ENTRIES
from tests.trace.written import made, tensors_within

TRAINED = (
    "weights tied under three names",
    "weight norm, the old way",
    "spectral norm",
    "parameters of integers",
    "0-d and empty parameters",
    "a user's mapping out",
    "a frozen dataclass in",
    "averages and counters",
    "a batch smaller than the devices, with batch norm",
    "masks kept in dictionaries",
)


def train(rank: int, names: tuple[str, ...]) -> dict[str, float]:
    """Two steps of each; the largest difference of a loss, parameter or buffer from one device's."""
    found = {}
    for name in names:
        call, beside = made(ENTRIES[name]), made(ENTRIES[name])
        module, alone = call.module.double(), beside.module.double()
        args, kwargs = doubled(call.args), doubled(call.kwargs)
        model = hap.parallelize(module, jobs.cluster(2), args, kwargs)
        worst = 0.0
        for _ in range(2):
            loss, expected = loss_of(model(*args, **kwargs)), loss_of(alone(*args, **kwargs))
            worst = max(worst, abs(float(loss.detach() - expected.detach())))
            loss.backward()
            expected.backward()
            for one in (model, alone):
                trained = [parameter for parameter in one.parameters() if parameter.requires_grad]
                torch.optim.SGD(trained, lr=0.01).step()
                one.zero_grad()
        assert not any(isinstance(tensor, FakeTensor) for tensor in tensors_within(module))
        found[name] = max(worst, jobs.difference(model, alone))
    return found


def doubled(value: Any) -> Any:
    """The inputs in float64."""
    from hap.trace.inputs import map_inputs

    def double(one: Any) -> Any:
        return one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one

    args, kwargs = map_inputs(double, *((value, None) if isinstance(value, tuple) else ((), value)))
    return args if isinstance(value, tuple) else kwargs


def loss_of(output: Any) -> torch.Tensor:
    """The loss in a module's output."""
    if isinstance(output, torch.Tensor):
        return output
    found: torch.Tensor = output.loss if hasattr(output, "loss") else output["loss"]
    return found


@pytest.mark.timeout(300)
def test_training_equals_one_device() -> None:
    with Launcher(2) as launcher:
        for found in launcher.run(train, TRAINED, limit=280):
            assert list(found) == list(TRAINED)
            assert max(found.values()) < 1e-10, found

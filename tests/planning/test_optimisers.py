"""The state of optimisers, as the prediction of memory counts it, is what they keep."""

import pytest
import torch

from hap.errors import PlanError
from hap.planning.optimisers import optimiser_tensors


class Mine(torch.optim.AdamW):
    """A user's own."""


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.ASGD, {}),
        (torch.optim.Adagrad, {}),
        (torch.optim.RMSprop, {}),
        (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
        (torch.optim.Adadelta, {}),
        (torch.optim.Adam, {}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.AdamW, {}),
        (torch.optim.Adamax, {}),
        (torch.optim.NAdam, {}),
        (torch.optim.RAdam, {}),
        (torch.optim.Rprop, {}),
        (Mine, {}),
    ],
)
def test_as_many_tensors_as_an_optimiser_keeps(kind, options):
    parameter = torch.nn.Parameter(torch.ones(3, 5))
    optimiser = kind([parameter], lr=1e-3, **options)
    parameter.grad = torch.ones(3, 5)
    optimiser.step()
    kept = sum(
        value.shape == parameter.shape for value in optimiser.state[parameter].values() if torch.is_tensor(value)
    )
    assert optimiser_tensors(optimiser) == kept
    if not options:
        assert optimiser_tensors(kind) == kept
        if kind is not Mine:
            assert optimiser_tensors(kind.__name__) == kept


def test_of_several_groups_the_one_that_keeps_most_counts():
    first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    groups = [{"params": [first], "momentum": 0.9}, {"params": [second]}]
    assert optimiser_tensors(torch.optim.SGD(groups, lr=0.1)) == 1
    assert optimiser_tensors(torch.optim.SGD(groups[1:], lr=0.1)) == 0


def test_numbers_stand_for_themselves():
    assert optimiser_tensors(0) == 0
    assert optimiser_tensors(3) == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (-1, "expected 0 to 1000 tensors, got -1"),
        (2**32, "expected 0 to 1000 tensors, got 4294967296"),
        (torch.optim.LBFGS, "LBFGS is not known, only SGD, ASGD, .*; give the number of tensors"),
        ("adam", "adam is not known"),
        (None, "expected an optimiser, its class or name, or a number of tensors, got None"),
        (True, "expected an optimiser"),
    ],
)
def test_others_are_refused(wrong, message):
    with pytest.raises(PlanError, match=f"optimiser: {message}"):
        optimiser_tensors(wrong)

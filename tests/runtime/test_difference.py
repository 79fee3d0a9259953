"""The difference of two tensors, as a number."""

from __future__ import annotations

import math

import pytest
import torch

from hap.runtime.difference import difference, same

NAN, INF = math.nan, math.inf
tensor = torch.tensor


@pytest.mark.parametrize(
    ("given", "expected", "wanted"),
    [
        (tensor([3.0, 4.0]), tensor([3.0, 4.0]), 0.0),
        (tensor([3.0, 5.0]), tensor([3.0, 4.0]), 1 / 5),
        (tensor([3.0, 4.0]), None, INF),
        (tensor([0.0]), None, 0.0),
        (tensor([NAN]), None, INF),
        (tensor([NAN, INF, 3.0]), tensor([NAN, INF, 4.0]), 1 / 4),
        (tensor([INF]), tensor([-INF]), INF),
        (tensor([INF]), tensor([NAN]), INF),
        (tensor([NAN]), tensor([1.0]), INF),
        # Shapes and element types that broadcasting and promotion would bring together.
        (tensor([1.0]), tensor(1.0), INF),
        (torch.ones(3), torch.ones(1, 3), INF),
        (torch.ones(3), torch.ones(1), INF),
        (torch.ones(2, 0), torch.ones(0), INF),
        (tensor([1]), tensor([1.0]), INF),
        (tensor([1.0]), tensor([1.0], dtype=torch.float64), INF),
        (tensor([1.0 + 0j]), tensor([1.0]), INF),
        # Complex numbers, part by part.
        (tensor([3 + 4j]), tensor([3 + 5j]), 1 / math.hypot(3, 5)),
        (tensor([complex(NAN, 1)]), tensor([complex(NAN, 1)]), 0.0),
        (tensor([complex(NAN, 1)]), tensor([complex(NAN, 2)]), 1 / 2),
        (tensor([complex(NAN, 1)]), tensor([complex(1, NAN)]), INF),
        (tensor([1 + 2j]).conj(), tensor([1 - 2j]), 0.0),
        # Integers are not rounded.
        (tensor([2**60 + 1]), tensor([2**60]), 1.0),
        (tensor([2**60 + 1]), tensor([2**60 + 1]), 0.0),
        (tensor([1000, 1000]), tensor([1003, 1004]), 5.0),
        (tensor([True, False]), tensor([True, True]), 1.0),
        (tensor([200], dtype=torch.uint8), tensor([202], dtype=torch.uint8), 2.0),
    ],
)
def test_difference(given: torch.Tensor, expected: torch.Tensor | None, wanted: float) -> None:
    assert difference(given, expected) == pytest.approx(wanted, rel=1e-6)
    assert same(given, torch.zeros_like(given) if expected is None else expected) is (wanted == 0.0)


def test_small_tensors_are_measured_by_the_floor() -> None:
    assert difference(tensor([1.0]), None, 4.0) == 0.25
    assert difference(tensor([1.0]), tensor([2.0]), 4.0) == 0.25
    assert difference(tensor([1]), tensor([2]), 4.0) == 1.0

"""Functions that are traced as others: bags, averages over images, weights in polar form, masked places."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import hap
from hap.errors import TraceError
from hap.rules import annotate
from tests.trace.comparison import assert_equal_to_eager

INDICES = torch.tensor([[1, 3, 3], [0, 2, 0], [0, 0, 0], [3, 4, 1]])


class Bag(nn.Module):
    """Bags of one table, each weighted differently in the loss."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.table = nn.Parameter(torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, 12, dtype=torch.float64))

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor | None, *, scaled: bool) -> torch.Tensor:
        scale = self.scale[: indices.numel()].view_as(indices) if scaled else None
        out = F.embedding_bag(indices, self.table, offsets, per_sample_weights=scale, **self.options)
        return (out * torch.arange(out.numel(), dtype=out.dtype).view_as(out)).sum()


@pytest.mark.parametrize("padding", [None, 0, -2])
@pytest.mark.parametrize(("mode", "scaled"), [("sum", False), ("sum", True), ("mean", False), ("max", False)])
def test_bags_of_equal_length(mode: str, scaled: bool, padding: int | None) -> None:
    graph = assert_equal_to_eager(
        (Bag(mode=mode, padding_idx=padding), (INDICES, None), {"scaled": scaled}), tolerance=1e-14
    )
    assert annotate(graph).replicated == ()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize(("mode", "scaled"), [("sum", False), ("sum", True), ("mean", False)])
def test_bags_between_offsets(mode: str, scaled: bool, padding: int | None, last: bool) -> None:
    """One of them is empty."""
    offsets = torch.tensor([0, 4, 4, 5, 12] if last else [0, 4, 4, 5])
    module = Bag(mode=mode, padding_idx=padding, include_last_offset=last)
    graph = assert_equal_to_eager((module, (INDICES.flatten(), offsets), {"scaled": scaled}), tolerance=1e-14)
    assert annotate(graph).replicated == ()


def test_other_bags_stay_as_they_are() -> None:
    call = (Bag(mode="max"), (INDICES.flatten(), torch.tensor([0, 4])), {"scaled": False})
    graph = assert_equal_to_eager(call, tolerance=1e-14)
    assert "aten._embedding_bag.default" in {str(operator.target) for operator in graph.operators}


class Average(nn.Module):
    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.pool(x * self.weight) ** 2).sum()


@pytest.mark.parametrize(
    ("pool", "shape"),
    [
        (nn.AdaptiveAvgPool1d(1), (2, 5, 3)), (nn.AdaptiveAvgPool2d(1), (2, 5, 4, 3)),
        (nn.AdaptiveAvgPool2d((1, 1)), (5, 4, 3)), (nn.AdaptiveAvgPool3d(1), (2, 5, 2, 4, 3)),
        (nn.AdaptiveAvgPool2d((None, 2)), (2, 5, 4, 4)), (nn.AdaptiveAvgPool1d(2), (2, 3, 4)),
    ],
)  # fmt: skip
def test_averages_of_permuted_images(pool: nn.Module, shape: tuple[int, ...]) -> None:
    """The channels come last in memory."""
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    channels = x.dim() - 1 - int(type(pool).__name__[-2])
    x = x.movedim(channels, -1).contiguous().movedim(-1, channels)
    graph = assert_equal_to_eager((Average(pool), (x,), {}), tolerance=1e-14)
    assert annotate(graph).replicated == ()


@pytest.mark.parametrize(
    ("layer", "dim", "shape"),
    [
        (nn.Linear(4, 6), 0, (3, 4)), (nn.Linear(4, 6), 1, (3, 4)), (nn.Linear(4, 6), -1, (3, 4)),
        (nn.Conv1d(4, 6, 3), 0, (3, 4, 8)), (nn.Conv1d(4, 6, 3), 2, (3, 4, 8)), (nn.Conv1d(4, 6, 3), 1, (3, 4, 8)),
    ],
)  # fmt: skip
def test_normalised_weights(layer: nn.Module, dim: int, shape: tuple[int, ...]) -> None:
    """Their forward and backward are sums that shard, along every dimension."""
    layer = parametrizations.weight_norm(copy.deepcopy(layer), dim=dim).double()
    module = nn.Sequential(layer, nn.Tanh())
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    graph = assert_equal_to_eager((Summed(module), (x,), {}), tolerance=1e-13)
    assert annotate(graph).replicated == ()
    assert not [operator for operator in graph.operators if "weight_norm" in str(operator.target)]


class Summed(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.body(x) ** 2).sum()


class Masked(nn.Module):
    """Puts one value into masked places of ``x``."""

    def __init__(self, put: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.linspace(0.5, 2.0, 4, dtype=torch.float64))
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.put = put

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight
        self.put(y, x > 0, self.token)
        return (y**2 * torch.arange(4, dtype=y.dtype)).sum()


def put_row(y: torch.Tensor, mask: torch.Tensor, token: torch.Tensor) -> None:
    y[mask[..., 0]] = token


def put_row_with_its_place(y: torch.Tensor, mask: torch.Tensor, token: torch.Tensor) -> None:
    y[mask[..., 0]] = token[None]


def put_row_with_more_leading_ones(y: torch.Tensor, mask: torch.Tensor, token: torch.Tensor) -> None:
    y[mask[..., 0]] = token.view(1, 1, 1, 4)


def put_rows_along_others(y: torch.Tensor, mask: torch.Tensor, token: torch.Tensor) -> None:
    y[:, mask[0, :, 0]] = token * torch.arange(2)[:, None, None]


def put_in_the_last_dimension(y: torch.Tensor, mask: torch.Tensor, token: torch.Tensor) -> None:
    y[..., mask[0, 0]] = token[:3, None]


def put_into_a_view(y: torch.Tensor, mask: torch.Tensor, token: torch.Tensor) -> None:
    y[1:][mask[1:, :, 0]] = token


def put_elements(y: torch.Tensor, mask: torch.Tensor, token: torch.Tensor) -> None:
    y[mask] = token[:1]


@pytest.mark.parametrize(
    "put",
    [
        put_row,
        put_row_with_its_place,
        put_row_with_more_leading_ones,
        put_rows_along_others,
        put_in_the_last_dimension,
        put_into_a_view,
        put_elements,
    ],
)
def test_one_value_in_masked_places(put: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    graph = assert_equal_to_eager((Masked(put), (x,), {}), tolerance=1e-14)
    assert annotate(graph).replicated == ()
    assert not [operator for operator in graph.operators if "index" in str(operator.target)]


@pytest.mark.parametrize("shape", [(1, 3, 4), (2, 1), (1,), (2, 3, 4, 1)])
def test_masks_of_other_shapes_are_refused_as_by_pytorch(shape: tuple[int, ...]) -> None:
    """A choice of elements would broadcast them."""

    def put(y: torch.Tensor, mask: torch.Tensor, token: torch.Tensor) -> None:
        y[torch.ones(shape, dtype=torch.bool)] = token[0]

    with pytest.raises(IndexError):
        Masked(put)(torch.ones(2, 3, 4))
    with pytest.raises(TraceError, match=r"mask|indices"):
        hap.trace(Masked(put), (torch.ones(2, 3, 4),))

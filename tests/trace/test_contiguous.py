"""Activations in a permuted order are copied once, where that spares copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import hap
from hap.graph import Graph
from hap.interpret import bind, run
from tests.trace.comparison import assert_equal_to_eager

aten = torch.ops.aten
COPY = {"memory_format": torch.contiguous_format}


class Patches(nn.Module):
    """A residual stream in the order of a convolution's result, as in vision transformers."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 6, 2, stride=2)
        self.places = nn.Parameter(torch.linspace(-1, 1, 24).view(4, 6))
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.dropout(self.patches(x).flatten(2).transpose(1, 2) + self.places)
        for norm in self.norms:
            states = states + norm(states).sigmoid()
        return states.square().mean()


class Channels(nn.Module):
    """Convolutions, once of a tensor whose channels come last in memory; the permutation is undone or read there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 2, 1), nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.first(x).permute(0, 2, 3, 1).sigmoid()
        states = states * 2
        return self.second(states.permute(0, 3, 1, 2)).square().mean() + self.norm(states).pow(3).mean()


class Counting(TorchDispatchMode):
    """Counts the copies, also those that layer norms make of operands."""

    copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        places = {aten.native_layer_norm.default: (0,), aten.native_layer_norm_backward.default: (0, 1)}.get(func, ())
        self.copies += sum(not args[place].is_contiguous() for place in places)
        self.copies += func is aten.clone.default
        return func(*args, **(kwargs or {}))


def copies(graph: Graph, module: nn.Module, x: torch.Tensor) -> int:
    with torch.no_grad(), Counting() as counting:
        run(graph, bind(graph, module, (x,)))
    return counting.copies


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_a_residual_stream_is_copied_once(images: torch.Tensor) -> None:
    module = Patches().double()
    graph = assert_equal_to_eager((module, (images,), {}), tolerance=1e-14)
    assert [one.kwargs for one in graph.operators if one.target is aten.clone.default] == [COPY]
    assert copies(graph, module, images) == 1


def test_dropout_keeps_the_order(images: torch.Tensor) -> None:
    module = Patches(dropout=0.5).double()
    assert copies(hap.trace(module, (images,)), module, images) == 1


def test_what_convolutions_read_keeps_its_order(images: torch.Tensor) -> None:
    graph = assert_equal_to_eager((Channels().double(), (images,), {}), tolerance=1e-14)
    assert not [one for one in graph.operators if one.target is aten.clone.default and one.kwargs == COPY]


class Mixed(Patches):
    """The stream is added to what is permuted as well, and kept so: both are read in one order as they are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.patches(x).flatten(2).transpose(1, 2)
        others = (self.patches(2 * x).flatten(2)).transpose(1, 2)
        for norm in self.norms:
            states = states + norm(states).sigmoid() * others
        return states.square().mean() + (others.transpose(1, 2) @ states).mean()


class Once(Patches):
    """One layer norm: its operand is copied once in any case, and its backward's gradient lies as the stream does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.patches(x).flatten(2).transpose(1, 2).softmax(-1).square().mean()


@pytest.mark.parametrize("kind", [Mixed, Once])
def test_no_copy_where_it_spares_none(kind: type[Patches], images: torch.Tensor) -> None:
    graph = assert_equal_to_eager((kind().double(), (images,), {}), tolerance=1e-14)
    assert not [one for one in graph.operators if one.target is aten.clone.default and one.kwargs == COPY]


class Permuted(Patches):
    """The stream begins as an input that the user has permuted, and is given back."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        stream = x.transpose(1, 2)
        for norm in self.norms:
            stream = stream + norm(stream)
        return {"loss": stream.square().mean(), "stream": stream}


def test_inputs_and_outputs_keep_their_order() -> None:
    module, x = Permuted().double(), torch.linspace(-1, 1, 60, dtype=torch.float64).view(2, 6, 5)
    graph = assert_equal_to_eager((module, (x,), {}), tolerance=1e-14)
    assert not [one for one in graph.operators if one.target is aten.clone.default and one.kwargs == COPY]
    results = run(graph, bind(graph, module, (x,)))
    (stream,) = [value for value in results.values() if value is not None and value.shape == (2, 5, 6)]
    assert stream.stride() == module(x)["stream"].stride()

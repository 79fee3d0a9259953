"""What cannot be captured is an error with the user's source line and what to do."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

import hap
from hap.errors import TraceError
from tests.trace.refused import assert_refused


def branches(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.fc(x).sum() > 0:
        x = x * 2
    return self.fc(x).sum()


def branches_on_a_buffer(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).sum() if self.total.all() else self.fc(x).mean()


def branches_on_noise(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).sum() if torch.rand_like(x).sum() > 6 else self.fc(x).mean()


def branches_on_what_was_written(self: Any, x: torch.Tensor) -> torch.Tensor:
    mask = x > 0
    mask[0] = self.fc(x)[0] > 0
    mask.T[0] |= True
    return self.fc(x).sum() if mask.all() else self.fc(x).mean()


def branches_in_other_precision(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = x @ x.T
    return self.fc(x).sum() if (product > 0).all() else self.fc(x).mean()


def branches_inside_other_precision(self: Any, x: torch.Tensor) -> torch.Tensor:
    product = x @ x.T
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return self.fc(x).sum() if (product > 0).all() else self.fc(x).mean()


def reads_bytes(self: Any, x: torch.Tensor) -> torch.Tensor:
    return (self.fc(x) * (x.view(torch.int32) > 0)).sum()


def strides_over_a_view(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).T.as_strided((2, 2), (2, 1)).sum()


def strides_from_a_place(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x)[1:].as_strided((1, 2), (2, 1), 1).sum()


def selects(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).sum() + x[x > 0].sum()


def reads_a_number(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).sum() * int(x.max().item())


def differentiates(self: Any, x: torch.Tensor) -> torch.Tensor:
    loss = self.fc(x).sum()
    return loss + torch.autograd.grad(loss, self.fc.weight, create_graph=True)[0].sum()


def raises(self: Any, x: torch.Tensor) -> torch.Tensor:
    raise ValueError(f"no such mode for {x.shape[0]}")


def detaches(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).detach().sum()


def returns_no_tensor(self: Any, x: torch.Tensor) -> int:
    return 3


def draws_counts(self: Any, x: torch.Tensor) -> torch.Tensor:
    return (self.fc(x) * torch.poisson(x.abs())).sum()


def looks_up(name: str, **options: Any) -> Callable[..., Any]:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return getattr(torch.nn.functional, name)(x.long(), self.fc.weight, **options).sum()

    return body


def gathers(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc.weight.gather(0, x.long(), sparse_grad=True).sum()


def selects_indices(self: Any, x: torch.Tensor) -> torch.Tensor:
    rows = x[:, 0].nonzero().squeeze(1)
    return self.fc(x[rows]).sum()


def finds_the_unique(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).sum() * torch.unique(x).shape[0]


def inspects_its_mask(self: Any, x: torch.Tensor) -> torch.Tensor:
    mask = self.fc(x) > 0
    return self.fc(x if mask.all() else x * mask).sum()


def converts_to_bool(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).sum() if bool((self.fc(x) > 0).all()) else self.fc(x).mean()


def selects_in_its_loss(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(self.fc(x)[x[:, 0] > 0], x[x[:, 0] > 0])


def makes_a_namespace(self: Any, x: torch.Tensor) -> Any:
    return types.SimpleNamespace(loss=self.fc(x).sum())


def checkpoints_a_sequence(self: Any, x: torch.Tensor) -> torch.Tensor:
    layers = nn.Sequential(self.fc, self.fc)
    return checkpoint_sequential(layers, 2, x, use_reentrant=False).sum()


def breaks_the_graph(self: Any, x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return self.fc(x).sum()


UNREGISTERED = torch.ones(4, requires_grad=True)


def reads_a_free_parameter(self: Any, x: torch.Tensor) -> torch.Tensor:
    return (self.fc(x) * UNREGISTERED).sum()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            branches,
            r"test_refusals\.py:\d+: if self\.fc\(x\)\.sum\(\) > 0: the forward branches on the values .*where",
        ),
        (branches_on_a_buffer, r"test_refusals\.py:\d+: .*total\.all.*: the forward branches on the values"),
        (branches_on_noise, r"test_refusals\.py:\d+: .*rand_like.*: the forward branches on the values"),
        (branches_on_what_was_written, r"test_refusals\.py:\d+: .*mask\.all.*: the forward branches on the values"),
        (branches_in_other_precision, r"test_refusals\.py:\d+: .*product.*: the forward branches on the values"),
        (branches_inside_other_precision, r"test_refusals\.py:\d+: .*product.*: the forward branches on the values"),
        (reads_bytes, r"test_refusals\.py:\d+: .*view.*: reads the bytes of a tensor as another element type"),
        (
            strides_over_a_view,
            r"test_refusals\.py:\d+: .*as_strided.*: as_strided reads the memory of a tensor that is",
        ),
        (
            strides_from_a_place,
            r"test_refusals\.py:\d+: .*as_strided.*: as_strided reads the memory of a tensor that is",
        ),
        (selects, r"test_refusals\.py:\d+: .*x\[x > 0\].*: a shape depends on the values .*a mask"),
        (reads_a_number, r"test_refusals\.py:\d+: .*\.item.*: a number depends on the values"),
        (
            selects_indices,
            r"test_refusals\.py:\d+: rows = .*nonzero.*: a shape depends on the values .*a mask",
        ),
        (finds_the_unique, r"test_refusals\.py:\d+: .*unique.*: a shape depends on the values .*a mask"),
        (
            inspects_its_mask,
            r"test_refusals\.py:\d+: .*mask\.all\(\).*: the forward branches on the values .*no tensor",
        ),
        (converts_to_bool, r"test_refusals\.py:\d+: .*bool\(.*: a number depends on the values .*torch\.where"),
        (selects_in_its_loss, r"test_refusals\.py:\d+: .*mse_loss.*: a shape depends on the values .*a mask"),
        (makes_a_namespace, r"test_refusals\.py:\d+: .*SimpleNamespace.*cannot be captured"),
        (checkpoints_a_sequence, r"test_refusals\.py:\d+: .*checkpoint_sequential.*cannot be captured"),
        (differentiates, r"test_refusals\.py:\d+: .*: torch\.autograd\.grad inside the forward cannot be captured"),
        (raises, r"test_refusals\.py:\d+: raise .*: the forward raises ValueError\('no such mode for 3'\)"),
        (detaches, r"no output of the module requires grad \(1 tensors.*return the loss"),
        (returns_no_tensor, r"no output of the module requires grad \(0 tensors"),
        (draws_counts, r"test_refusals\.py:\d+: .*: aten\.poisson\.default draws random numbers"),
        (looks_up("embedding", sparse=True), r"test_refusals\.py:\d+: .*sparse gradients: .*use sparse=False"),
        (looks_up("embedding_bag", mode="sum", sparse=True), r"test_refusals\.py:\d+: .*use sparse=False"),
        (gathers, r"test_refusals\.py:\d+: .*asks for sparse gradients: .*use sparse_grad=False"),
        (breaks_the_graph, r"test_refusals\.py:\d+: .*graph_break.*cannot be captured.*outside of the module"),
        (reads_a_free_parameter, r"test_refusals\.py:\d+: .*is no parameter of the module: register it"),
    ],
)
def test_forwards_that_cannot_be_captured(body: Callable[..., Any], message: str) -> None:
    assert_refused(body, message)


class Routed(nn.Module):
    """A mixture of experts that picks the rows of each expert: ``rows(chosen)`` are those of one of them."""

    def __init__(self, rows: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.router = nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.rows = rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).max(-1)
        answers = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = self.rows(chosen == number)
            answers[rows] = expert(x[rows]) * weights[rows, None]
        return answers.square().sum()


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (lambda chosen: chosen.nonzero(as_tuple=True)[0], r"chosen\.nonzero"),
        (lambda chosen: torch.where(chosen)[0], r"torch\.where\(chosen\)"),
        (lambda chosen: chosen, r"answers\[rows\] = expert"),
    ],
    ids=["nonzero", "where", "mask"],
)
def test_routing_by_values_is_refused_with_what_to_use(rows: Any, line: str) -> None:
    expected = (
        rf"test_refusals\.py:\d+: .*{line}.*: a shape depends on the values of tensors: .*dispatch tensor.*einsum"
    )
    with pytest.raises(TraceError, match=expected):
        hap.trace(Routed(rows), (torch.randn(6, 4),))

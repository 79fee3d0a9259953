"""Tensors that a call keeps for the next are refused, wherever it keeps them; those that are only left are not."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hap
from hap.errors import TraceError
from tests.trace.comparison import assert_equal_to_eager


class Module(nn.Module):
    """Runs ``body(self, x)``; ``left`` holds what it finds and leaves."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor], left: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.left = left
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def new(self: Any, x: Tensor) -> Tensor:
    """What a call keeps."""
    return self.fc(x).detach().mean(0)


def a_tuple(self: Any, x: Tensor) -> Tensor:
    (old,) = self.left
    self.left = (new(self, x),)
    return (self.fc(x) + old).square().mean()


def a_new_list(self: Any, x: Tensor) -> Tensor:
    old = self.left[0]
    self.left = [new(self, x)]
    return (self.fc(x) + old).square().mean()


def stacked(self: Any, x: Tensor) -> Tensor:
    old = torch.stack(self.left).sum(0)
    self.left[0] = new(self, x)
    return (self.fc(x) + old).square().mean()


def joined(self: Any, x: Tensor) -> Tensor:
    old = (self.left + [])[0]  # noqa: RUF005
    self.left[0] = new(self, x)
    return (self.fc(x) + old).square().mean()


def repeated(self: Any, x: Tensor) -> Tensor:
    old = (self.left * 2)[1]
    self.left[0] = new(self, x)
    return (self.fc(x) + old).square().mean()


def appended(self: Any, x: Tensor) -> Tensor:
    self.left.append(new(self, x))
    return sum((self.fc(x) + old).square().mean() for old in self.left)  # type: ignore[return-value]


def inserted(self: Any, x: Tensor) -> Tensor:
    self.left.insert(0, new(self, x))
    return (self.fc(x) + self.left[-1]).square().mean()


def unpacked(self: Any, x: Tensor) -> Tensor:
    old = {**self.left}["h"]
    self.left["h"] = new(self, x)
    return (self.fc(x) + old).square().mean()


def as_keywords(self: Any, x: Tensor) -> Tensor:
    old = (lambda h: h)(**self.left)
    self.left["h"] = new(self, x)
    return (self.fc(x) + old).square().mean()


def an_entry(self: Any, x: Tensor) -> Tensor:
    old = self.left["h"]
    self.left["h"] = new(self, x)
    return (self.fc(x) + old).square().mean()


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (a_tuple, lambda: (torch.ones(4),)),
        (a_new_list, lambda: [torch.ones(4)]),
        (stacked, lambda: [torch.ones(4)]),
        (joined, lambda: [torch.ones(4)]),
        (repeated, lambda: [torch.ones(4)]),
        (appended, lambda: [torch.ones(4)]),
        (appended, lambda: collections.deque([torch.ones(4)], maxlen=2)),
        (inserted, lambda: [torch.ones(4)]),
        (unpacked, lambda: {"h": torch.ones(4)}),
        (as_keywords, lambda: {"h": torch.ones(4)}),
        (an_entry, lambda: collections.defaultdict(lambda: torch.ones(4))),
        (an_entry, lambda: collections.OrderedDict(h=torch.ones(4))),
    ],
)
def test_what_the_next_call_reads_is_refused(body: Callable[..., Tensor], left: Callable[[], Any]) -> None:
    with pytest.raises(TraceError, match=r'test_kept_tensors\.py:\d+: .*changes the attribute "left", .*as a buffer'):
        hap.trace(Module(body, left()), (torch.randn(2, 4),))


def logs(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    self.left.append(h.detach().mean())
    return h.square().mean()


def shows(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    self.left["h"] = (h.detach(), [h.detach().mean()])
    return h.square().mean()


def replaces(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    self.left = (h.detach(),)
    return (h + self.left[0]).square().mean()


def caches(self: Any, x: Tensor) -> Tensor:
    if not self.left:
        self.left = (torch.arange(4.0, dtype=x.dtype),)
    return (self.fc(x) * self.left[0]).square().mean()


@pytest.mark.parametrize(
    ("body", "left"), [(logs, lambda: []), (shows, lambda: {}), (replaces, lambda: ()), (caches, lambda: ())]
)
def test_what_is_only_left_is_not(body: Callable[..., Tensor], left: Callable[[], Any]) -> None:
    module = Module(body, left()).double()
    assert_equal_to_eager((module, (torch.randn(2, 4, dtype=torch.float64),), {}), 1e-12)

"""A module around any forward, for tests of what is refused."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hap
from hap.errors import TraceError


class Module(nn.Module):
    """Runs ``body(self, x)``."""

    def __init__(self, body: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.table = torch.ones(4)
        self.fc.cache = torch.ones(4)
        self.register_buffer("total", torch.ones(4))
        self.memory: dict[str, torch.Tensor] = {}
        self.kept = [torch.ones(4)]
        self.fc.step = 0
        self.queue: collections.deque[int] = collections.deque(maxlen=4)
        self.numbers: set[int] = set()
        self.called = False
        self.current = types.SimpleNamespace(scale=torch.ones(4))
        self.next = types.SimpleNamespace(scale=torch.zeros(4))
        self.positions: torch.Tensor | None = None
        self.body = body

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


def linear(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).sum()


def assert_refused(body: Callable[..., Any], message: str) -> Module:
    """The trace of a module with this forward raises the message, in one line; returns the module, as it was before."""
    module = Module(body)
    x = torch.ones(3, 4)
    with pytest.raises(TraceError, match=message) as caught:
        hap.trace(module, (x,))
    assert "\n" not in str(caught.value)
    assert torch.equal(x, torch.ones(3, 4))
    assert type(module.fc.weight) is nn.Parameter
    return module

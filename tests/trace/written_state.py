"""Modules that keep state: buffers, caches, attributes, modes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.trace.written import Call, floats, module


class Average(nn.Module):
    """A moving average, a counter, a flag, and one that no loss reads."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(4, dtype=torch.bool), persistent=False)
        self.register_buffer("unread", torch.zeros(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        self.mean.lerp_(h.detach().mean(0), 0.1)
        self.count += x.shape[0]
        self.seen |= (h > 0).any(0)
        self.unread = self.unread * 0.9 + h.detach().sum()
        return ((h - self.mean) * self.seen).square().mean() / self.count


class Teacher(nn.Module):
    """A copy of the weights in buffers that follows them, and targets from it."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(4, 3)
        for name, value in self.student.named_parameters():
            self.register_buffer(f"teacher_{name}", value.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for name, value in self.student.named_parameters():
                getattr(self, f"teacher_{name}").mul_(0.9).add_(value, alpha=0.1)
            targets = F.linear(x, self.teacher_weight, self.teacher_bias)
        return F.mse_loss(self.student(x * 2), targets)


class Queue(nn.Module):
    """A queue of keys that a step writes at a pointer that is a number in Python; as in contrastive learning."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.register_buffer("queue", torch.randn(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        keys = F.normalize(self.fc(x), dim=1)
        logits = keys @ self.queue.clone().t()
        self.queue[2 : 2 + x.shape[0]] = keys.detach()
        return torch.logsumexp(logits, 1).mean()


class Rotary(nn.Module):
    """Tables that the first call makes and keeps in plain attributes that start as ``None``."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.cos: Tensor | None = None
        self.sin: Tensor | None = None
        self.length = 0

    def tables(self, length: int) -> tuple[Tensor, Tensor]:
        if self.cos is None or self.length < length:
            angles = torch.arange(length)[:, None] / torch.tensor([1.0, 100.0, 1.0, 100.0])
            self.cos, self.sin = angles.cos().double(), angles.sin().double()
            self.length = length
        assert self.sin is not None
        return self.cos[:length], self.sin[:length]

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        cos, sin = self.tables(x.shape[1])
        return (x * cos + torch.cat([-x[..., 2:], x[..., :2]], -1) * sin).square().mean()


MASKS: dict[int, Tensor] = {}


class Masked(nn.Module):
    """Attention with masks that are kept in a dictionary of the file and in one of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 12)
        self.biases: dict[int, Tensor] = {}
        self.history: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if length not in MASKS:
            MASKS[length] = torch.ones(length, length, dtype=torch.bool).triu(1)
        if length not in self.biases:
            self.biases[length] = -torch.arange(length).double()
        q, k, v = self.fc(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(4) + self.biases[length].to(q.dtype)
        out = scores.masked_fill(MASKS[length], -math.inf).softmax(-1) @ v
        self.history.append(out.detach())
        return out.square().mean()


class Lazy(nn.Module):
    """Masks like an input that the first call makes, one in an attribute that does not exist before."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("rates", torch.tensor([1.0, 10.0, 1.0, 10.0]), persistent=False)
        self.mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        if self.mask is None or self.mask.shape[0] < x.shape[0]:
            self.mask = torch.ones_like(h)
            self.mask[:, 1] = 0.5
            self.mask = self.mask.cumsum(0).to(h)
        if not hasattr(self, "table"):
            self.table = torch.arange(x.shape[0], device=x.device).outer(self.rates).to(x.dtype)
        return ((h * self.mask[: x.shape[0]] + self.table) ** 2).mean()


class Logged(nn.Module):
    """Leaves values of this call in attributes, for others to read."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.latest: Tensor | None = None
        self.scale = torch.ones(4, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        self.scale = torch.full((4,), 2.0, dtype=torch.float64)
        h = self.fc(x) * self.scale
        self.latest = h.detach()
        self.fc.calls = 3
        return h.square().mean()


class Flagged(nn.Module):
    """A flag and what its first call makes; a counter, by its class's default, and a list that nothing reads."""

    seen = 0

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.ready = False
        self.lengths: list[int] = []
        self.shape: tuple[int, ...] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            self.table = torch.arange(4).double()
            self.ready = True
        self.seen += 1
        self.lengths.append(x.shape[0])
        self.shape = tuple(x.shape)
        return (self.fc(x) * self.table).square().mean()


class Hooked(nn.Module):
    """Hooks before and after a submodule's forward that change its input and output."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.fc.register_forward_pre_hook(lambda part, args: (args[0] * 2,))
        self.fc.register_forward_hook(lambda part, args, out: out + args[0].detach())
        self.fc.register_forward_hook(lambda part, args, kwargs, out: out.tanh(), with_kwargs=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).square().mean()


def hooked(call: Call) -> Call:
    call.module.register_forward_pre_hook(lambda part, args: (args[0] + 1,))
    call.module.register_forward_hook(lambda part, args, out: out * 3)
    return call


class Mixed(nn.Module):
    """Batch norms of which one is frozen in evaluation mode, and dropout that is off."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False)
        self.fc = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)
        for part in (self.second, self.dropout):
            part.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.second(self.fc(self.first(x)))).square().mean()


def normalised(**options: Any) -> Any:
    def make() -> Call:
        norm = nn.BatchNorm2d(3, **options)
        body = module(lambda self, x: (self.norm(self.conv(x)) ** 3).mean(), norm=norm, conv=nn.Conv2d(2, 3, 3))
        return Call(body, (floats(5, 2, 6, 6),))

    return make


ENTRIES: dict[str, Any] = {
    "averages and counters": lambda: Call(Average(), (floats(5, 4),)),
    "a teacher that follows": lambda: Call(Teacher(), (floats(5, 4),)),
    "a queue": lambda: Call(Queue(), (floats(3, 4),)),
    "batch norm": normalised(),
    "batch norm without running statistics": normalised(track_running_stats=False),
    "batch norm with a cumulative average": normalised(momentum=None),
    "synchronised batch norm": lambda: Call(
        module(
            lambda self, x: (self.norm(self.fc(x)) ** 3).mean(),
            norm=nn.SyncBatchNorm(4, momentum=None),
            fc=nn.Linear(3, 4),
        ),
        (floats(5, 3),),
    ),
    "instance norm with running statistics": lambda: Call(
        module(
            lambda self, x: (self.norm(self.fc(x)) ** 3).mean(),
            norm=nn.InstanceNorm1d(4, track_running_stats=True),
            fc=nn.Linear(5, 5),
        ),
        (floats(3, 4, 5),),
    ),
    "a batch smaller than the devices, with batch norm": lambda: Call(
        module(lambda self, x: (self.norm(self.fc(x)) ** 3).mean(), norm=nn.BatchNorm1d(4), fc=nn.Linear(3, 4)),
        (floats(2, 3),),
    ),
    "tables kept in attributes": lambda: Call(Rotary(), (floats(3, 5, 4),)),
    "masks kept in dictionaries": lambda: Call(Masked(), (floats(3, 5, 4),)),
    "masks kept in attributes": lambda: Call(Lazy(), (floats(5, 4),)),
    "values left in attributes": lambda: Call(Logged(), (floats(5, 4),)),
    "flags and counters": lambda: Call(Flagged(), (floats(5, 4),)),
    "hooks": lambda: Call(Hooked(), (floats(5, 4),)),
    "hooks on the module itself": lambda: hooked(Call(Hooked(), (floats(5, 4),))),
    "evaluation": lambda: Call(Mixed().eval(), (floats(5, 4),)),
    "training and evaluation mixed": lambda: Call(Mixed(), (floats(5, 4),)),
}

"""Small modules as people write them, and what is asked of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import hap

CLUSTER = hap.Cluster(
    [hap.Device(flops=1e9 * speed, memory_bandwidth=1e9, memory=1e9) for speed in (1, 2, 3)],
    link=hap.Link(bandwidth=1e9, latency=0.0),
)


@dataclass(frozen=True)
class Call:
    """A module with one call of it."""

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def floats(*shape: int, requires_grad: bool = False) -> Tensor:
    """Normal numbers."""
    return torch.randn(*shape, requires_grad=requires_grad)


class _Body(nn.Module):
    def __init__(self, body: Callable[..., Any], parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.body = body
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.body(self, *args, **kwargs)


def module(body: Callable[..., Any], **parts: nn.Module) -> nn.Module:
    """A module with these submodules whose forward is ``body(self, ...)``."""
    return _Body(body, parts)


def linear(body: Callable[..., Any], *args: Callable[[], Any]) -> Callable[[], Call]:
    """A call of such a module with one layer, ``fc``, from 4 to 4."""
    return lambda: Call(module(body, fc=nn.Linear(4, 4)), tuple(arg() for arg in args) or (floats(5, 4),))


def made(make: Callable[[], Call]) -> Call:
    """An entry of a table, made with fixed random numbers that are not the global ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def tensors_within(value: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """All tensors in attributes and containers, at every depth."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, type):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_within(item, seen)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_within(item, seen)
    elif hasattr(value, "__dict__"):
        yield from tensors_within(vars(value), seen)


def _snapshot(module: nn.Module) -> list[tuple[str, str, Any, Any]]:
    """Every attribute of every part, what is in its tables, and copies of the tensors."""
    found = []
    for path, part in module.named_modules(remove_duplicate=False):
        for name, value in vars(part).items():
            entries = dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else None
            found.append((path, name, value, entries))
    return found


def _same(before: Any, now: Any) -> bool:
    if isinstance(before, Mapping):
        return before.keys() == now.keys() and all(before[key] is now[key] for key in before)
    return before is None or (len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True)))


def assert_left_as_it_was(call: Call, run: Callable[[], Any]) -> Any:
    """Runs; asserts that the module, its tensors' values, the inputs and the global random numbers stay as they are."""
    before = _snapshot(call.module)
    tensors = list({id(x): x for x in tensors_within((call.module, call.args, call.kwargs))}.values())
    values = [tensor.detach().clone() for tensor in tensors]
    random = torch.get_rng_state()
    result = run()
    assert torch.equal(torch.get_rng_state(), random)
    now = _snapshot(call.module)
    assert [entry[:2] for entry in now] == [entry[:2] for entry in before]
    for (path, name, value, entries), (*_, other, others) in zip(before, now, strict=True):
        assert other is value, (path, name)
        assert _same(entries, others), (path, name)
    for tensor, copy in zip(tensors, values, strict=True):
        assert torch.equal(tensor, copy)
        assert not tensor.is_leaf or tensor.grad is None
        assert not isinstance(tensor, FakeTensor)
    return result


def prove(call: Call, *, plan: bool) -> None:
    """A random uneven program (and a plan) for three devices against eager in float64; the module stays as it was."""
    example = {"devices": CLUSTER, "example_inputs": call.args, "example_kwargs": call.kwargs}
    result = assert_left_as_it_was(call, lambda: hap.check(call.module, splits="random", seed=1, **example))
    assert result.error < 1e-10, result.errors
    if plan:
        assert_left_as_it_was(call, lambda: hap.plan(call.module, **example))
    # What stays behind in caches must be good for eager calls, which fill them.
    call.module(*call.args, **call.kwargs)
    assert not any(isinstance(tensor, FakeTensor) for tensor in tensors_within(call.module))

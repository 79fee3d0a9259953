"""Forwards that keep state where a training step has none are refused; caches and flags are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hap
from tests.trace.comparison import assert_equal_to_eager
from tests.trace.refused import Module, assert_refused


def changes_its_input(self: Any, x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return self.fc(x).sum()


def changes_a_parameter(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.frozen.add_(1)
    return (self.fc(x) * self.frozen).sum()


def clamps_a_parameter(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        self.fc.weight.clamp_(-1, 1)
    return self.fc(x).sum()


def keeps_a_gradient_in_a_buffer(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.total += self.fc(x).mean(0)
    return (self.fc(x) * self.total).sum()


def changes_an_attribute(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.fc.cache[:2] += x.detach().mean()
    return (self.fc(x) + self.fc.cache).sum()


def reassigns_an_attribute(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.table = self.table + x.detach().mean(0)
    return (self.fc(x) + self.table).sum()


def keeps_its_first_input(self: Any, x: torch.Tensor) -> torch.Tensor:
    if getattr(self, "first", None) is None:
        self.first = x.detach() * 2
    return (self.fc(x) + self.first).sum()


def keeps_noise(self: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(self.fc, "noise"):
        self.fc.noise = torch.zeros(4)
        self.fc.noise += torch.randn(4)
    return (self.fc(x) + self.fc.noise).sum()


def keeps_an_entry(self: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = self.fc(x)
    before = self.memory.get("hidden")
    if before is not None:
        hidden = hidden + before
    self.memory["hidden"] = hidden.detach()
    return hidden.sum()


def keeps_a_list(self: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = self.fc(x)
    for one in self.kept:
        hidden = hidden * one
    self.kept.append(x.mean(0))
    return hidden.sum()


def replaces_an_entry(self: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = self.fc(x) + self.kept[0]
    self.kept[0] = hidden.detach().mean(0)
    return hidden.sum()


def counts_in_an_attribute(self: Any, x: torch.Tensor) -> torch.Tensor:
    scale, self.table = self.table, torch.ones(4)
    self.fc.cache = self.fc.cache + 1
    return (self.fc(x) * scale + self.fc.cache).sum()


def counts(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.fc.step += 1
    return self.fc(x).sum() * self.fc.step


COUNTS = {"calls": 0}
CALLS = 0


def counts_in_a_global(self: Any, x: torch.Tensor) -> torch.Tensor:
    global CALLS
    CALLS += 1
    return self.fc(x).sum() * CALLS


def counts_in_a_container(self: Any, x: torch.Tensor) -> torch.Tensor:
    COUNTS["calls"] += 1
    return self.fc(x).sum() * COUNTS["calls"]


def counts_entries(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.kept.append(x.mean(0))
    return self.fc(x).sum() * len(self.kept)


def counts_in_a_queue(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.queue.append(x.shape[0])
    return self.fc(x).sum() * len(self.queue)


def counts_in_a_set(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.numbers.add(len(self.numbers))
    return self.fc(x).sum() * len(self.numbers)


def keeps_a_queue(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.kept.append(x.mean(0))
    return (self.fc(x) * self.kept.pop(0)).sum()


def begins_otherwise(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.fc.step += 1
    return self.fc(x).sum() if self.fc.step > 1 else self.fc(x).mean()


def counts_beside_a_cache(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.positions is None:
        self.positions = torch.arange(4.0)
    self.fc.step += 1
    return (self.fc(x) * self.positions).sum() * self.fc.step


def computes_once_otherwise(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.called:
        return self.fc(x).sum()
    self.called = True
    return self.fc(x).mean()


def keeps_a_row_of_its_input(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.positions is None:
        positions = torch.zeros(3, 4)
        positions[0].copy_(x[0].detach())
        self.positions = positions
    return (self.fc(x) * self.positions).sum()


def takes_the_next_object(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = (self.fc(x) * self.current.scale).sum()
    self.current = self.next
    return y


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (keeps_a_row_of_its_input, r'the forward changes the attribute "positions".*register it as a buffer'),
        (takes_the_next_object, r'changes Python state, "current", by which its next call computes something else'),
        (
            keeps_its_first_input,
            r'state\.py:\d+: self\.first = .*changes the attribute "first".*as a buffer',
        ),
        (
            keeps_an_entry,
            r'state\.py:\d+: self\.memory.*changes the attribute "memory", a container.*as a buffer',
        ),
        (
            keeps_a_list,
            r'state\.py:\d+: self\.kept.*changes the attribute "kept", a container.*as a buffer',
        ),
        (replaces_an_entry, r'state\.py:\d+: self\.kept.*the attribute "kept", a container.*as a buffer'),
        (keeps_noise, r'the forward changes the attribute "fc\.noise".*register it as a buffer'),
        (counts_in_an_attribute, r'the forward changes the attribute "fc\.cache".*register it as a buffer'),
        (counts, r'changes Python state, "fc\.step" \(from 0 to 1\), by which its next call .*in a buffer'),
        (counts_in_a_global, r'changes Python state, "tests\.trace\.test_refused_state\.CALLS" \(from 0 to 1\), by'),
        (counts_in_a_container, r'changes Python state, "tests\.trace\.test_refused_state\.COUNTS", by which'),
        (counts_entries, r'state\.py:\d+: .*changes the attribute "kept", a container.*as a buffer'),
        (counts_in_a_queue, r'changes Python state, "queue", by which'),
        (counts_in_a_set, r'changes Python state, "numbers", by which'),
        (
            keeps_a_queue,
            r'state\.py:\d+: self\.kept.*changes the attribute "kept", a container.*as a buffer',
        ),
        (begins_otherwise, r'changes Python state, "fc\.step" \(from 0 to 1\), by which'),
        (counts_beside_a_cache, r'changes Python state, "fc\.step" \(from 0 to 1\), by which'),
        (computes_once_otherwise, r'changes Python state, "called" \(from False to True\), by which'),
        (changes_its_input, r'the forward changes input "args\.0" in place: work on a copy'),
        (changes_a_parameter, r'the forward changes parameter "frozen" in place'),
        (
            clamps_a_parameter,
            r'state\.py:\d+: .*clamp_.*the forward changes parameter "fc\.weight" in place',
        ),
        (
            keeps_a_gradient_in_a_buffer,
            r'state\.py:\d+: .*buffer "total" requires grad: `\.detach\(\)` it',
        ),
        (changes_an_attribute, r'the forward changes the attribute "fc\.cache".*register it as a buffer'),
        (reassigns_an_attribute, r'the forward changes the attribute "table".*register it as a buffer'),
    ],
)
def test_forwards_that_keep_state(body: Callable[..., Any], message: str) -> None:
    module = assert_refused(body, message)
    assert (CALLS, COUNTS, module.fc.step, module.called, len(module.kept)) == (0, {"calls": 0}, 0, False, 1)


def leaves_for_others(self: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = self.fc(x)
    self.memory["hidden"] = hidden
    self.kept.clear()
    self.kept.append(hidden.mean())
    return hidden.sum() + self.kept[0]


def keeps_constants(self: Any, x: torch.Tensor) -> torch.Tensor:
    if "positions" not in self.memory:
        self.memory["positions"] = torch.arange(4.0)
    return (self.fc(x) * self.memory["positions"]).sum()


@pytest.mark.parametrize("body", [leaves_for_others, keeps_constants])
def test_containers_that_hold_no_state(body: Callable[..., Any]) -> None:
    module = Module(body)
    assert_equal_to_eager((module, (torch.randn(3, 4),), {}), 1e-6)
    assert module.memory == {}
    assert len(module.kept) == 1


def takes_off(self: Any, x: torch.Tensor) -> torch.Tensor:
    if not self.called:
        self.called = True
    return self.fc(x).sum()


def test_flags_that_come_first_give_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "hap"):
        hap.trace(Module(takes_off), (torch.ones(3, 4),))
    assert caplog.records == []


def leaves_by_module(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.memory[self.fc] = hidden = self.fc(x)
    return hidden.sum()


def doubles_at_first(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = self.fc(x).sum()
    if not self.memory:
        self.memory["ones"] = torch.ones(4)
        y = y * 2
    return y + self.memory["ones"].sum()


@pytest.mark.parametrize("body", [leaves_by_module, doubles_at_first])
def test_containers_of_which_nothing_is_known_give_a_warning(
    body: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "hap"):
        hap.trace(Module(body), (torch.ones(3, 4),))
    (record,) = caplog.records
    assert "the forward changes Python state (memory)" in record.message


def counts_for_others(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.called = True if not self.called else self.called
    self.fc.step += 1
    return self.fc(x).sum()


def test_counters_that_nothing_computes_with_give_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """And flags none."""
    with caplog.at_level("WARNING", "hap"):
        hap.trace(Module(counts_for_others), (torch.ones(3, 4),))
    (record,) = caplog.records
    assert "the forward changes Python state (fc.step); such changes are no part of a training step" in record.message

"""Composites against what is left out of them: each collective inside, and each word of their description, matters."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from hap.rules import annotate
from hap.rules.choices import Inner
from hap.rules.composites import COMPOSITES
from hap.rules.local import AllGather, Collective, LocalCode, Shift, run
from tests.rules.cases import CASES
from tests.rules.sketch import Case, Sketch, faults

aten = torch.ops.aten

every_composite = pytest.mark.parametrize("name", sorted(COMPOSITES))


def cases_of(name: str) -> list[Case]:
    return [case for case in CASES if any(choice.split()[-1] == name for choice in case.expected)]


def sites(name: str, case: Case, seed: int) -> tuple[Sketch, list[str]]:
    """The case at random sizes, and what its proof finds wrong."""
    rng = random.Random(seed)
    sketch = Sketch(rng)
    case.build(sketch)
    axes = annotate(sketch.graph)
    return sketch, faults(sketch, axes, [case.operator(sketch.graph)], rng.randint(2, 3), rng)


def refuted(name: str) -> bool:
    """Whether the proofs of a composite's cases find a fault."""
    torch.set_num_threads(1)
    for seed in range(12):
        for case in cases_of(name):
            try:
                if sites(name, case, seed)[1]:
                    return True
            except (RuntimeError, IndexError, AssertionError, ValueError):
                return True
    return False


@dataclass(frozen=True)
class Alone(Collective):
    """A collective in which each rank hears zeros from the others."""

    inner: Collective

    def exchange(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        heard = [
            [tensor if rank == own else torch.zeros_like(tensor) for rank, tensor in enumerate(tensors)]
            for own in range(len(tensors))
        ]
        return [self.inner.exchange(own)[rank] for rank, own in enumerate(heard)]


@dataclass(frozen=True)
class Recorded(Collective):
    """A collective that writes down what it moved."""

    inner: Collective
    log: list[Inner]

    def exchange(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        made = self.inner.exchange(tensors)
        kind = type(self.inner).__name__
        if isinstance(self.inner, Shift):
            self.log.append(Inner("all_to_all", float(sum(tensor.nbytes for tensor in tensors))))
        else:
            moved = made[0] if isinstance(self.inner, AllGather) else tensors[0]
            self.log.append(Inner("all_reduce" if kind == "AllReduce" else "all_gather", float(moved.nbytes)))
        return made


def rewritten(code: LocalCode, change: dict[int, type[Alone]] | list[Inner]) -> LocalCode:
    """Code with some of its collectives replaced, by number, or with all of them recorded."""
    calls, count = [], 0
    for call in code.calls:
        if isinstance(call.target, Collective):
            if isinstance(change, list):
                call = replace(call, target=Recorded(call.target, change))
            elif count in change:
                call = replace(call, target=change[count](call.target))
            count += 1
        calls.append(call)
    return replace(code, calls=tuple(calls))


@every_composite
def test_every_composite_is_proven(name: str) -> None:
    assert cases_of(name), f"no case expects the composite {name}"


@every_composite
def test_every_collective_inside_matters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that do not hear each other in one of them give a wrong result."""
    composite = COMPOSITES[name]
    most = 0
    for case in cases_of(name):
        sketch = Sketch(random.Random(0))
        case.build(sketch)
        choices = annotate(sketch.graph).choices[case.operator(sketch.graph)]
        most = max(most, *(len(choice.collectives) for choice in choices if choice.composite == name))
    for number in range(most):
        changed = replace(composite, code=lambda site, n=number: rewritten(composite.code(site), {n: Alone}))
        monkeypatch.setitem(COMPOSITES, name, changed)
        assert refuted(name), f"collective {number} of {name} may be left out"
        monkeypatch.setitem(COMPOSITES, name, composite)


DEVICES = 3


def _apart(collectives: Sequence[Inner]) -> list[Inner]:
    """All but the rings, without their axes."""
    return [replace(inner, axis=None) for inner in collectives if inner.conversion != "all_to_all"]


def _bytes_shifted(collectives: Sequence[Inner]) -> float:
    return sum(inner.bytes for inner in collectives if inner.conversion == "all_to_all")


@every_composite
def test_what_is_sent_is_what_is_priced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collectives that a choice is priced by are those that its code carries out, with their bytes."""
    composite = COMPOSITES[name]
    log: list[Inner] = []
    changed = replace(composite, code=lambda site: rewritten(composite.code(site), log))
    monkeypatch.setitem(COMPOSITES, name, changed)
    for case in cases_of(name):
        sketch = Sketch(random.Random(1))
        case.build(sketch)
        axes = annotate(sketch.graph)
        operator = case.operator(sketch.graph)
        for choice in axes.choices[operator]:
            if choice.composite == name:
                log.clear()
                alone = [(choice,) if i == operator else own for i, own in enumerate(axes.choices)]
                narrowed = replace(axes, choices=tuple(alone))
                assert faults(sketch, narrowed, [operator], DEVICES, random.Random(2)) == []
                assert _apart(log) == _apart(choice.collectives), f"{name} in {case.label}"
                # Each ring is priced as a step to every other rank; gradients go one more, home.
                steps, ring = _bytes_shifted(log), _bytes_shifted(choice.collectives)
                assert (DEVICES - 1) * ring <= steps <= DEVICES * ring


@pytest.mark.parametrize("name", sorted(name for name, composite in COMPOSITES.items() if composite.whole))
def test_whole_results_are_not_summed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMPOSITES, name, replace(COMPOSITES[name], whole=frozenset()))
    assert refuted(name) or _drops_choices(name)


@pytest.mark.parametrize("name", sorted(name for name, composite in COMPOSITES.items() if composite.outermost))
def test_inner_leaves_are_left_out_where_stretches_are_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMPOSITES, name, replace(COMPOSITES[name], outermost=False))
    assert refuted(name)


def _drops_choices(name: str) -> bool:
    """Whether the composite is no longer offered (masks cannot be partial)."""
    for case in cases_of(name):
        sketch = Sketch(random.Random(0))
        case.build(sketch)
        choices = annotate(sketch.graph).choices[case.operator(sketch.graph)]
        if any(choice.composite == name for choice in choices):
            return False
    return True


def test_layer_norm_far_from_zero() -> None:
    """In single precision at a mean of 1000, where a mean of squares less the square of the mean has no digit left."""
    sketch = Sketch(random.Random(0))
    x = torch.randn(5, 7, generator=sketch.generator) + 1000
    sketch.call(aten.native_layer_norm.default, sketch.constant(x), [7], None, None, 1e-5)
    axes = annotate(sketch.graph)
    (choice,) = (choice for choice in axes.choices[0] if choice.composite == "norm")
    splits = {axes.axes[choice.axis or 0].name: [2, 0, 5]} | {axis.name: [5, 0, 0] for axis in axes.axes[:1]}
    codes = [axes.local_code(0, choice, splits, rank) for rank in range(3)]
    made = run(codes, [[piece] for piece in x.split([2, 0, 5], 1)])
    expected = aten.native_layer_norm.default(x.double(), [7], None, None, 1e-5)
    torch.testing.assert_close(torch.cat([own[0] for own in made], 1).double(), expected[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(made[1][2].double(), expected[2], rtol=1e-5, atol=0)

"""Small graphs made by hand: inputs with random values, and operators that are run to learn what they return."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch

import hap.operators  # noqa: F401  defines torch.ops.hap
from hap.graph import Graph, Input, Operator, Ref, Tensor
from hap.rules import AxisGraph, Choice
from hap.rules.proof import mismatch, whole_results

aten = torch.ops.aten


class Sketch:
    """A graph under construction, and the values of its tensors.

    ``sizes`` gives the sizes that a case asks for, ``rng`` all that is random, ``dtype`` the type of tensors for which
    the case asks no other; ``typed``, whether there are such.
    """

    def __init__(self, rng: random.Random, smallest: int = 2, dtype: torch.dtype = torch.float64) -> None:
        self.graph = Graph()
        self.values: list[torch.Tensor] = []
        self.rng = rng
        self.smallest = smallest
        self.dtype = dtype
        self.typed = False
        self.generator = torch.Generator().manual_seed(rng.randrange(1 << 30))

    def sizes(self, count: int) -> list[int]:
        return [self.rng.randint(self.smallest, 4) for _ in range(count)]

    def hold(self, value: torch.Tensor, name: str) -> Ref:
        self.graph.tensors.append(Tensor(name, tuple(value.shape), value.dtype))
        self.values.append(value)
        return Ref(len(self.values) - 1)

    def constant(self, value: torch.Tensor) -> Ref:
        """An input with this value."""
        ref = self.hold(value, f"x{len(self.values)}")
        self.graph.inputs.append(Input("input", f"args.{ref.tensor}", ref.tensor))
        return ref

    def tensor(self, *shape: int, dtype: torch.dtype | None = None) -> Ref:
        """Random numbers: normal, or 0 to 5, or false and true."""
        if dtype is None:
            dtype, self.typed = self.dtype, True
        if dtype.is_floating_point or dtype.is_complex:
            wide = torch.complex128 if dtype.is_complex else torch.float64
            return self.constant(torch.randn(shape, generator=self.generator, dtype=wide).to(dtype))
        return self.integers(2 if dtype == torch.bool else 6, *shape, dtype=dtype)

    def integers(self, below: int, *shape: int, dtype: torch.dtype = torch.int64) -> Ref:
        """Random integers from 0."""
        return self.constant(torch.randint(below, shape, generator=self.generator).to(dtype))

    def positive(self, *shape: int, above: float = 0.1, below: float = 0.9) -> Ref:
        """Random numbers between two bounds."""
        return self.constant(torch.rand(shape, generator=self.generator, dtype=torch.float64) * (below - above) + above)

    def product(self, *dims: tuple[int, ...], dtype: torch.dtype | None = None) -> Ref:
        """A tensor whose dimensions are products of axes."""
        flat = self.tensor(*(size for dim in dims for size in dim), dtype=dtype)
        return self.call(aten.view.default, flat, [prod(dim) for dim in dims])

    def call(self, target: torch._ops.OpOverload, *args: Any, dead: tuple[int, ...] = (), **kwargs: Any) -> Any:
        """Adds an operator; returns its result, or the list of its results. ``dead`` ones are read by nobody."""
        operator = Operator(f"op{len(self.graph.operators)}", target, args, kwargs, ())
        self.graph.operators.append(operator)
        made = target(*self._filled(args), **self._filled(kwargs))
        listed = isinstance(made, (list, tuple))
        refs = [
            None if value is None or i in dead else self.hold(value, f"{operator.name}.{i}")
            for i, value in enumerate(made if listed else (made,))
        ]
        results = tuple(None if ref is None else ref.tensor for ref in refs)
        self.graph.operators[-1] = Operator(operator.name, target, args, kwargs, results)
        return refs if listed else refs[0]

    def _filled(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self.values[value.tensor]
        if isinstance(value, (list, tuple)):
            return [self._filled(item) for item in value]
        if isinstance(value, dict):
            return {key: self._filled(item) for key, item in value.items()}
        return value

    def shape(self, ref: Ref) -> tuple[int, ...]:
        return self.graph.tensors[ref.tensor].shape


@dataclass(frozen=True)
class Case:
    """A small graph around one operator.

    Attributes:
        rule: the overload whose rule it proves.
        expected: its choices as placements, ``S0 R -> S0``, and names of composites, for sizes of two and more.
        build: makes the graph.
    """

    rule: str
    expected: frozenset[str]
    build: Callable[[Sketch], object]
    label: str

    def operator(self, graph: Graph) -> int:
        """The operator that the case is about: the last one of its overload."""
        return max(i for i, o in enumerate(graph.operators) if str(o.target) == self.rule)


CASES: list[Case] = []


def case(rule: str, expected: str) -> Callable[[Callable[[Sketch], object]], Callable[[Sketch], object]]:
    """Registers a case. ``expected`` lists the choices beside the replicated one, with commas, as placements."""

    def register(build: Callable[[Sketch], object]) -> Callable[[Sketch], object]:
        add(rule, expected, build)
        return build

    return register


def add(rule: str, expected: str, build: Callable[[Sketch], object]) -> None:
    choices = frozenset(" ".join(choice.split()) for choice in expected.split(",") if choice.strip())
    CASES.append(Case(rule, choices, build, f"{rule}-{sum(c.rule == rule for c in CASES)}"))


def cases(names: str | dict[str, tuple[Any, ...]], expected: str) -> Callable[[Callable[..., object]], object]:
    """Registers a case for each ATen overload (``default`` where none is named): ``build(sketch, overload, *args)``."""
    each = names if isinstance(names, dict) else dict.fromkeys(names.split(), ())

    def register(build: Callable[..., object]) -> object:
        for name, arguments in each.items():
            packet, _, overload = name.partition(".")
            target = getattr(getattr(aten, packet), overload or "default")
            add(str(target), expected, partial(_build, build, target, arguments))
        return build

    return register


def _build(build: Callable[..., object], target: Any, arguments: tuple[Any, ...], sketch: Sketch) -> object:
    return build(sketch, target, *arguments)


def shown(choice: Choice) -> str:
    """A choice as placements, and the name of the composite that it is: ``S1 -> S1 softmax``."""
    sides = [" ".join(str(placements[0]) for placements in side) for side in (choice.inputs, choice.outputs)]
    return " ".join([" -> ".join(sides).strip(), *([] if choice.composite is None else [choice.composite])])


def beside_replicated(axes: AxisGraph, operator: int) -> frozenset[str]:
    """The choices beside the first, which must be the replicated one."""
    first, *others = axes.choices[operator]
    assert set(shown(first).replace("->", "").split()) <= {"R"}
    assert first.axis is None
    texts = [shown(choice) for choice in others]
    assert len(set(texts)) == len(texts), f"a choice stands twice: {texts}"
    return frozenset(texts)


def faults(
    sketch: Sketch, axes: AxisGraph, operators: list[int], devices: int, rng: random.Random, reordered: bool = False
) -> list[str]:
    """What is wrong with the choices of some operators of a sketch, each on one random split.

    ``reordered``: operands lie in memory in a random order of their dimensions, where the operator takes them so.
    """
    found = []
    for index in operators:
        operands = [sketch.values[t] for t in axes.graph.operators[index].operands]
        if reordered:
            operands = _reordered(axes, index, operands, rng)
        for choice in axes.choices[index]:
            problem = mismatch(axes, index, choice, operands, devices, rng)
            if problem is not None:
                found.append(f"{axes.graph.operators[index].target}: {shown(choice)}: {problem}")
    return found


def _reordered(axes: AxisGraph, index: int, operands: list[torch.Tensor], rng: random.Random) -> list[torch.Tensor]:
    """The operands of an operator with their dimensions in a random order in memory.

    As they are, where one device would not come to such operands: kernels whose callers make them contiguous, and views
    that cannot be.
    """
    node, bound = axes.graph.operators[index], axes.bound[index]
    if node.target is aten.view.default or (bound is not None and bound.rule.contiguous):
        return operands
    made = [_in_random_order(value, rng) for value in operands]
    try:
        whole_results(axes.graph, index, made)
    except RuntimeError:
        return operands
    return made


def _in_random_order(value: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """As it is where a dimension has size one: the strides of such say nothing, and kernels guess from them."""
    if 1 in value.shape:
        return value
    order = rng.sample(range(value.dim()), value.dim())
    return torch.empty_permuted(value.shape, order, dtype=value.dtype).copy_(value)

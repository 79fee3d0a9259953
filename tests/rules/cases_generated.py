"""Cases of the rules that follow from PyTorch's tags, made from the schemas, inputs in their domain."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import count
from typing import Any

import torch

from hap.rules.families import pointwise
from tests.rules.sketch import Sketch, add

DOMAIN = {"acosh": (1.1, 2.0), "mvlgamma": (2.0, 4.0), "special_zeta": (1.5, 3.0)}
"""Where values are not between 0.3 and 0.9: between these."""

NUMBERS = {"number": 2, "int": 2, "float": 0.5, "bool": False, "Optional[number]": 0.5}
"""Arguments that are no tensors and have no default, or none that can stand alone, by type."""


@cache
def overload(name: str) -> Any:
    """The overload of a name like ``aten.mul.Tensor``."""
    namespace, packet, which = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), which)


def arguments(target: Any, tensor: Callable[[int], Any]) -> tuple[list[Any], dict[str, Any]]:
    """A call as plain as can be; ``tensor(i)`` makes its i-th tensor."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    places = count()
    for argument in target._schema.arguments:
        kind = str(argument.type)
        if "Tensor" in kind:
            value = tensor(next(places))
        elif argument.has_default_value() and kind != "Optional[number]":
            value = argument.default_value
        else:
            value = NUMBERS[kind]
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


@cache
def integral(target: Any) -> bool:
    """Whether the operator is one of integers: bits, divisors."""
    args, kwargs = arguments(target, lambda _: torch.ones(1, dtype=torch.float64))
    try:
        target(*args, **kwargs)
    except (NotImplementedError, RuntimeError):
        return True
    return False


def is_backward(target: Any) -> bool:
    return bool(target._schema.name.endswith("_backward"))


def build(target: Any, s: Sketch) -> None:
    """``[a, b, c]`` with ``[b, 1]``: broadcast to the right, and along a dimension of size one. Gradients: alike."""
    a, b, c = s.sizes(3)
    above, below = DOMAIN.get(target._schema.name.removeprefix("aten::"), (0.3, 0.9))

    def tensor(place: int) -> Any:
        shape = (a, b, c) if place == 0 or is_backward(target) else (b, 1)
        if "mask" in target._schema.arguments[place].name:
            return s.tensor(*shape, dtype=torch.bool)
        return s.integers(3, *shape) if integral(target) else s.positive(*shape, above=above, below=below)

    args, kwargs = arguments(target, tensor)
    s.call(target, *args, **kwargs)


def expected(target: Any) -> str:
    """The choices of such a call: each dimension, and, for a backward, a partial gradient."""
    others = sum("Tensor" in str(argument.type) for argument in target._schema.arguments) - 1
    choices = []
    for dim, broadcast in enumerate(["R", "S0", "R"]):
        other = f"S{dim}" if is_backward(target) else broadcast
        results = [f"S{dim}"] * len(target._schema.returns)
        choices.append(f"S{dim} {f'{other} ' * others}-> {' '.join(results)}")
    if is_backward(target):
        choices.append(f"P {'R ' * others}-> P")
    return ", ".join(choices)


for _name in pointwise.every_generated():
    add(_name, expected(overload(_name)), partial(build, overload(_name)))

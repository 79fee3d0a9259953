"""Pins: what the user says of how named tensors are placed, ``pin=`` and ``forbid=``.

A constraint names tensors and lists placements, in the words of ``torch.distributed.tensor``. Names are those of

* parameters and buffers (``lm_head.weight``), each of several where they are tied;
* inputs (``args.0``, ``kwargs.input_ids``) and outputs (``outputs.logits``, ``outputs`` for a bare tensor);
* what holds them: a module (``encoder.layers.0``; ``""`` for the whole model), ``kwargs``, ``args.1``, ``outputs``;
* or several of all these, as patterns of :mod:`fnmatch` (``layers.*.weight``).

Of the listed placements a tensor may take any that it can have; ``Shard(dim)`` is any axis of that dimension.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, TypeAlias, Union

import msgspec

from hap.errors import PlanError
from hap.rules import BATCH
from hap.units import listed

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement

    from hap.rules import AxisGraph

Pins: TypeAlias = Mapping[str, Union["Placement", Sequence["Placement"]]]
"""By name of tensors, one of PyTorch's placements or several to choose from."""

REPLICATE = "Replicate()"
_SHARD = re.compile(r"Shard\((-?\d+)\)")
# More constraints than this are not told apart where they conflict jointly: each takes a synthesis.
FEW = 16


class Pin(msgspec.Struct, frozen=True):
    """One entry of ``pin=`` or ``forbid=``; placements as PyTorch spells them, ``Replicate()`` or ``Shard(1)``."""

    argument: Literal["pin", "forbid"]
    name: str
    placements: tuple[str, ...]

    def __str__(self) -> str:
        """As the user wrote it."""
        values = ", ".join(self.placements)
        return f'{self.argument}={{"{self.name}": {values if len(self.placements) == 1 else f"[{values}]"}}}'


def read_pins(pin: Pins | None, forbid: Pins | None) -> tuple[Pin, ...]:
    """The entries of both arguments.

    Raises:
        PlanError: an argument is no mapping from names to placements that stored tensors can have.
    """
    return (*_read("pin", pin), *_read("forbid", forbid))


def _read(argument: Literal["pin", "forbid"], given: Pins | None) -> Iterator[Pin]:
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise PlanError(f"{argument}: expected a mapping from names to placements, got {type(given).__name__}")
    for name, value in given.items():
        if not isinstance(name, str):
            raise PlanError(f"{argument}: expected names of tensors or modules as keys, got {name!r}")
        several = value if isinstance(value, (list, tuple)) else (value,)
        if not several:
            raise PlanError(f'{argument}={{"{name}": []}}: expected at least one placement')
        yield Pin(argument, name, tuple(dict.fromkeys(_spelled(argument, name, each) for each in several)))


def _spelled(argument: str, name: str, placement: object) -> str:
    from torch.distributed.tensor import Partial, Replicate, Shard

    if type(placement) is Replicate:
        return REPLICATE
    if type(placement) is Shard:
        return f"Shard({placement.dim})"
    what = f'{argument}={{"{name}": {placement!r}}}'
    if isinstance(placement, Partial):
        raise PlanError(
            f"{what}: parameters, buffers, inputs and outputs are never kept as parts of a sum: "
            "expected Replicate() or Shard(dim)"
        )
    raise PlanError(
        f"{what}: expected Replicate() or Shard(dim) of torch.distributed.tensor, got {type(placement).__name__}"
    )


def as_given(written: Mapping[str, Sequence[str]]) -> Pins:
    """The argument that a plan's ``pin`` or ``forbid`` was."""
    from torch.distributed.tensor import Replicate, Shard

    return {
        name: [Replicate() if dim is None else Shard(dim) for dim in map(shard_dim, placements)]
        for name, placements in written.items()
    }


def shard_dim(spelled: str) -> int | None:
    """The dimension of ``Shard(1)``; ``None`` for ``Replicate()``. Raises ``ValueError`` for anything else."""
    if spelled == REPLICATE:
        return None
    found = _SHARD.fullmatch(spelled)
    if found is None:
        raise ValueError(f'"{spelled}" is not a placement of a stored tensor: expected "Replicate()" or "Shard(0)"')
    return int(found.group(1))


@dataclass(frozen=True, slots=True)
class Target:
    """What can be pinned: a parameter, buffer, input or output.

    Attributes:
        kind: what it is; ``loss`` for an output that the gradients start from, which is whole on every rank.
        names: the names that it goes by.
        tensor: its tensor; of an output that a gradient comes back to, the tangent's, which lies as it does.
        output: the output's name in the graph, if it is one that nothing but its own placement is decided by.
        shared: whether it may be sharded along the batch alone, unless it is pinned.
    """

    kind: Literal["parameter", "buffer", "input", "output", "loss"]
    names: tuple[str, ...]
    tensor: int
    output: str | None = None
    shared: bool = False

    @property
    def of_model(self) -> bool:
        """Whether it belongs to the module rather than to its calls."""
        return self.kind in ("parameter", "buffer")

    @property
    def paths(self) -> set[str]:
        """Its names and those of all that holds it; of a loss, which has no choice, its name alone."""
        if self.kind == "loss":
            return set(self.names)
        parts = [name.split(".") for name in self.names]
        found = {".".join(own[:count]) for own in parts for count in range(1, len(own) + 1)}
        return found | {""} if self.of_model else found


def targets(axes: AxisGraph) -> list[Target]:
    """All that a graph's constraints can name."""
    graph = axes.graph
    found = []
    for entry in graph.inputs:
        if entry.kind == "parameter" or entry.kind == "buffer" or entry.kind == "input":
            tied = (name for name, first in graph.tied.items() if first == entry.name and entry.kind != "input")
            found.append(Target(entry.kind, (entry.name, *tied), entry.tensor))
    for output in graph.outputs:
        if (output.kind == "output" or output.kind == "loss") and output.tensor is not None:
            name = f"outputs.{output.name}" if output.name else "outputs"
            if output.of is None:
                found.append(Target(output.kind, (name,), output.tensor, output.name))
            else:
                found.append(Target(output.kind, (name,), output.of, shared=True))
    return found


@dataclass(frozen=True, slots=True)
class Allowed:
    """What constraints leave: placements of stored tensors by the tensor's name, and of outputs by theirs."""

    placements: dict[str, tuple[str, ...]]
    outputs: dict[str, tuple[str, ...]]


def allowed(axes: AxisGraph, pins: Sequence[Pin], forbidden_axes: Sequence[str], *, strict: bool = True) -> Allowed:
    """The placements that constraints leave to the tensors that they name, as the core writes them.

    Args:
        axes: the graph.
        pins: the constraints.
        forbidden_axes: axes that nothing is sharded along.
        strict: whether each constraint must find tensors, and each of its placements one that can have it. It is unset
            for further kinds of calls: an input may be missing that the first one had, and outputs beside its loss may
            have no loss beside them.

    Raises:
        PlanError: names the constraint, the tensor, and what there is to choose from.
    """
    everything = [_Options(axes, target, forbidden_axes) for target in targets(axes) if pins or target.shared]
    concerned: list[list[Pin]] = [[] for _ in everything]
    for pin in pins:
        named = _find(pin, [options.target for options in everything], strict)
        if strict:
            _check_each(pin, [everything[number] for number in named])
        for number in named:
            if strict or everything[number].target.kind != "loss":
                concerned[number].append(pin)
    left = Allowed({}, {})
    for options, own in zip(everything, concerned, strict=True):
        placements = options.left(own) if own else options.unpinned
        if placements and options.target.output is None:
            left.placements[options.tensor.name] = placements
        elif placements and options.target.kind == "output":
            left.outputs[options.target.output or ""] = placements
    return left


def _find(pin: Pin, everything: Sequence[Target], strict: bool) -> list[int]:
    """The targets that a constraint names, by number.

    Raises:
        PlanError: there are none, or it names a part of the model and a part of its calls.
    """
    found = [number for number, target in enumerate(everything) if pin.name in target.paths]
    if len({everything[number].of_model for number in found}) > 1:
        raise PlanError(
            f'{pin}: "{pin.name}" names both a part of the model and inputs or outputs of its calls: '
            f"name {listed(everything[number].names[0] for number in found)} one by one"
        )
    if not found and set("*?[") & set(pin.name):
        found = [
            number
            for number, target in enumerate(everything)
            if target.kind != "loss" and any(fnmatchcase(path, pin.name) for path in target.paths)
        ]
    if not found and strict:
        known = sorted({path for target in everything for path in target.paths if path})
        near = difflib.get_close_matches(pin.name, known, n=5, cutoff=0.5)
        names = f"near are {listed(near)}" if near else f"there are {listed(known[:10])}{', ...' * (len(known) > 10)}"
        raise PlanError(f'{pin}: no parameter, buffer, module, input or output is called "{pin.name}"; {names}')
    return found


def _check_each(pin: Pin, found: Sequence[_Options]) -> None:
    """That each placement of a constraint is one that some tensor can have, or that is forbidden anyway."""
    for placement in pin.placements:
        possible = (
            options.written(placement) or (pin.argument == "forbid" and options.closed(placement)) for options in found
        )
        if not any(possible):
            raise PlanError(f"{pin}: {found[0].cannot([placement])}")


class _Options:
    """The placements of one target, as PyTorch spells them and as the core writes them."""

    def __init__(self, axes: AxisGraph, target: Target, forbidden_axes: Sequence[str]) -> None:
        self.target = target
        self.tensor = axes.graph.tensors[target.tensor]
        names = [axis.name for axis in axes.axes]
        # By dimension: the placements along its axes, and the forbidden ones among these axes.
        self.along: list[list[str]] = [[] for _ in self.tensor.shape]
        self.forbidden: list[list[str]] = [[] for _ in self.tensor.shape]
        self.samples: list[str] = []
        if target.kind == "loss":
            return
        for number, occurrence in enumerate(axes.occurrences[target.tensor]):
            axis = axes.axes[occurrence.axis]
            # A split class is forbidden with its axis, a run with any of its parts.
            whole = axis if axis.of is None else axes.axes[axis.of]
            own = (axis.name, whole.name, *(names[part] for part in whole.parts))
            closed = [name for name in dict.fromkeys(own) if name in forbidden_axes]
            if closed:
                self.forbidden[occurrence.dim] += closed
            else:
                self.along[occurrence.dim].append(f"S{number}")
                self.samples += [f"S{number}"] if axis.name == BATCH else []

    @property
    def unpinned(self) -> tuple[str, ...]:
        """The placements that are left where nothing is said; none where all are.

        A loss outside of the module is taken of each rank's samples.
        """
        return ("R", *self.samples) if self.target.shared else ()

    def written(self, placement: str) -> list[str]:
        """The core's placements that this one of PyTorch's stands for; none where the tensor cannot have it."""
        dim = shard_dim(placement)
        return ["R"] if dim is None else self._at(self.along, dim)

    def closed(self, placement: str) -> list[str]:
        """The forbidden axes that stand in the dimension of a placement."""
        dim = shard_dim(placement)
        return [] if dim is None else list(dict.fromkeys(self._at(self.forbidden, dim)))

    @staticmethod
    def _at(by_dim: list[list[str]], dim: int) -> list[str]:
        return by_dim[dim] if -len(by_dim) <= dim < len(by_dim) else []

    def obstacle(self, placement: str) -> str:
        """Why the tensor cannot have a placement that it cannot have."""
        dim, rank = shard_dim(placement), len(self.along)
        assert dim is not None, "any tensor can be whole"
        if self.target.kind == "loss":
            return (
                "gradients start from it (a loss, or any output where there is none), so that every rank has all of it"
            )
        if not -rank <= dim < rank:
            return f"it has no dimension {dim}"
        if closed := self.closed(placement):
            axes = listed(f'"{name}"' for name in closed)
            return f"forbidden_axes forbids {axes}, along which its dimension {dim} lies"
        return f"its dimension {dim}, of size {self.tensor.shape[dim]}, holds no axis"

    def left(self, pins: Sequence[Pin]) -> tuple[str, ...]:
        """What constraints leave of the core's placements.

        Raises:
            PlanError: nothing.
        """
        found = self._all()
        for pin in pins:
            stands = [written for placement in pin.placements for written in self.written(placement)]
            if pin.argument == "pin" and not stands:
                one = pin.name in self.target.names
                hint = "" if one else "; list further placements for such tensors, or name the others by a pattern"
                raise PlanError(f"{pin}: {self.cannot(pin.placements)}{hint}")
            found = [written for written in found if (written in stands) == (pin.argument == "pin")]
        if not found:
            leave = "leaves" if len(pins) == 1 else "together leave"
            raise PlanError(f"{listed(map(str, pins))} {leave} {self._what()} no placement; {self._choice()}")
        return tuple(found)

    def cannot(self, placements: Sequence[str]) -> str:
        """That none of these is possible, why, and what is."""
        reasons = (f"{placement}, as {self.obstacle(placement)}" for placement in placements)
        return f"{self._what()} cannot be {' or '.join(reasons)}; {self._choice()}"

    def _all(self) -> list[str]:
        return ["R", *(written for own in self.along for written in own)]

    def _what(self) -> str:
        kind = "output" if self.target.kind == "loss" else self.target.kind
        return f'the {kind} "{self.target.names[0]}" of shape {list(self.tensor.shape)}'

    def _choice(self) -> str:
        spelled = [REPLICATE, *(f"Shard({dim})" for dim, own in enumerate(self.along) if own)]
        return f"there is {' or '.join(spelled)}"


def conflict(pins: Sequence[Pin], possible: Callable[[Sequence[Pin]], bool]) -> list[Pin]:
    """The constraints that conflict jointly: a smallest set that any other could be left out of, by deletion.

    Args:
        pins: constraints that no program keeps to.
        possible: whether some program keeps to these.

    Returns:
        All of them, where they are many; nothing, where they are not the reason.
    """
    if possible(()):
        kept = list(pins)
        for pin in pins if len(pins) <= FEW else ():
            without = [other for other in kept if other is not pin]
            if not possible(without):
                kept = without
        return kept
    return []


def spelled_by_name(pins: Iterable[Pin], argument: Literal["pin", "forbid"]) -> dict[str, tuple[str, ...]]:
    """The entries of one argument as plain data, for plan files."""
    return {pin.name: pin.placements for pin in pins if pin.argument == argument}

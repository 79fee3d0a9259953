"""A plan: what :func:`hap.plan` returns, runs are made from, and files hold (``hap-plan-1``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from hap.balance import MemoryParts
from hap.cluster import Cluster
from hap.errors import HapError, PlanError
from hap.files import write_whole
from hap.placement import parse
from hap.planning.details import Details, check_details
from hap.planning.optimisers import NO_TEMPORARIES, OptimiserMemory, Temporaries
from hap.planning.pins import shard_dim
from hap.planning.problem import split_axes
from hap.program import Classes, Compute, Convert, Program, Replicated, Splits

FORMAT: Final = "hap-plan-1"

NOTHING: Final = MemoryParts(0.0, 0.0, 0.0, 0.0, 0.0)
"""What a device holds that is left out."""

Obstacle = Literal["memory", "impossible"]
"""Why a baseline has no time: it does not fit the devices' memory, or no program is it (a forbidden axis, say)."""


class Fingerprints(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a plan was made for and by: hashes of the graph and of the cluster, versions of hap and torch."""

    graph: str
    cluster: str
    hap: str
    torch: str


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group of devices that runs one program on its part of the graph.

    Attributes:
        devices: ranks of the group, ascending, in the order that the splits follow. Other devices are left out.
        part: the part of the graph; there is one today.
        program: what each of them runs.
        splits: units of each axis, and of each further split class, by device.
    """

    devices: tuple[int, ...]
    part: Literal["all"]
    program: Program
    splits: Splits


class Replica(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A copy of the model, as a pipeline of stages, and its number of micro-batches."""

    micro_batches: int
    stages: tuple[Stage, ...]


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """How to train one module on one cluster: a distributed program, its splits, and what is predicted of them.

    ``print(plan)`` shows the program, one instruction a line. A plan is plain data: :meth:`save` writes JSON,
    :meth:`load` checks every field.

    Attributes:
        format: always ``hap-plan-1``.
        description: the cluster, as in a cluster file; see :attr:`cluster`.
        fingerprints: what the plan was made for.
        axes: the model's axes and their sizes.
        classes: further split classes of some axes, by name: what is split otherwise in stretches of the model, or at
            rest. An instruction names the class that it works along.
        forbidden_axes: axes that had to stay whole.
        required_axis: the axis that operators had to share their work along where they could.
        sharded_outputs: whether outputs need not be whole, as for :func:`hap.parallelize`.
        pin, forbid: by the user's names of tensors, the placements that these had to have, or must not have, in
            PyTorch's words: ``Replicate()``, ``Shard(0)``.
        replicas: copies of the model; there is one, of one stage, today.
        optimiser_tensors: tensors of optimiser state per parameter that the memory was predicted with.
        temporaries: tensors of a parameter's shape that the optimiser makes while it steps, likewise; none in older
            files.
        predicted_time: seconds per step, until all devices have the loss: one message to those that are left out
            counts with the latency of the slowest link.
        predicted_memory: peak bytes of each device; none where it is left out.
        memory_parts: what that memory consists of, by device.
        search_gap: of the synthesiser's own objective: the largest distance to the proven bound, as a fraction, of all
            syntheses of the search, since each of them could have led to a better plan. 0.0 when all are proven
            minimal, more where a limit was reached (one of the synthesiser's own is on how many sets of placements of
            one tensor it tells apart), 1.0 where limits left one without any program.
        lower_bound: seconds that no program takes less than under these splits, on these devices, as far as proven.
        optimality_gap: ``predicted_time / lower_bound - 1``; ``None`` where limits left no bound above zero. The
            warning about a limit speaks of ``search_gap``'s objective instead, before splits and simulation.
        rounding_loss: step time lost by splitting in whole units, as a fraction, as far as the linear program knows.
        baselines: seconds per step of well-known strategies on all devices; ``None`` where one does not fit, or cannot
            be expressed.
        obstacles: why, by name of each of these: ``memory`` where the strategy does not fit the devices' memory,
            ``impossible`` where this model cannot be trained so under the constraints.
        active: the devices that had to work, and no others: as the user said, or as parameters lay already.
        with_all: seconds per step of a plan in which all devices are active, where some are left out for being slow;
            ``None`` where no such plan was found that fits memory.
        replicated: operators that every device computes whole, because no rule covers them.
        details: what people may want to know beside, such as the timeline of a step; ``None`` in older files.
        synthesis_time: seconds of the last synthesis; not stored in files, ``None`` after loading.
    """

    format: Literal["hap-plan-1"]
    description: dict[str, Any] = msgspec.field(name="cluster")
    fingerprints: Fingerprints
    axes: dict[str, int]
    classes: Classes = {}
    replicas: tuple[Replica, ...]
    optimiser_tensors: int
    temporaries: Temporaries = NO_TEMPORARIES
    predicted_time: float
    predicted_memory: tuple[int, ...]
    memory_parts: tuple[MemoryParts, ...]
    search_gap: float
    lower_bound: float
    optimality_gap: float | None
    rounding_loss: float
    baselines: dict[str, float | None]
    obstacles: dict[str, Obstacle] = {}
    active: tuple[int, ...] | None = None
    with_all: float | None = None
    replicated: tuple[Replicated, ...] = ()
    forbidden_axes: tuple[str, ...] = ()
    required_axis: str | None = None
    sharded_outputs: bool = False
    pin: dict[str, tuple[str, ...]] = {}
    forbid: dict[str, tuple[str, ...]] = {}
    details: Details | None = None
    synthesis_time: float | None = None

    @property
    def cluster(self) -> Cluster:
        """The devices and links that the plan is for."""
        return Cluster.from_json(msgspec.json.encode(self.description), source="plan: cluster")

    @property
    def optimiser(self) -> OptimiserMemory:
        """What the optimiser that memory was predicted with holds."""
        return OptimiserMemory(self.optimiser_tensors, self.temporaries)

    @property
    def stage(self) -> Stage:
        """The only stage of the only replica. Raises ``PlanError`` where there are more."""
        if len(self.replicas) != 1 or len(self.replicas[0].stages) != 1:
            raise PlanError("the plan has several replicas or stages; look at plan.replicas")
        return self.replicas[0].stages[0]

    @property
    def program(self) -> Program:
        """The program that every active device runs."""
        return self.stage.program

    @property
    def splits(self) -> Splits:
        """Units of each axis, and of each of :attr:`classes`, by active device; see :meth:`units`."""
        return self.stage.splits

    def units(self, axis: str) -> list[int]:
        """Units of an axis, or of one of :attr:`classes`, by rank; devices that are left out have none."""
        held = dict(zip(self.stage.devices, self.splits[axis], strict=True))
        return [held.get(rank, 0) for rank in range(len(self.predicted_memory))]

    @property
    def split_units(self) -> dict[str, list[int]]:
        """:meth:`units` of the axes and classes that the program splits something along, in order of first use.

        Nothing is split where one device does the work.
        """
        if len(self.stage.devices) == 1:
            return {}
        return {name: self.units(name) for name in split_axes(self.program)}

    @property
    def left_out(self) -> tuple[int, ...]:
        """Ranks of the devices that stay idle: they hold nothing but the loss.

        These cost more than they give, or lack the memory to take part, or the user chose others by ``active=``.
        """
        active = {rank for replica in self.replicas for stage in replica.stages for rank in stage.devices}
        return tuple(rank for rank in range(len(self.predicted_memory)) if rank not in active)

    def __str__(self) -> str:
        from hap.planning.text import plan_text

        return plan_text(self)

    def to_json(self) -> str:
        """The plan as ``hap-plan-1``; equal plans give equal text."""
        return msgspec.json.encode(msgspec.structs.replace(self, synthesis_time=None)).decode() + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str = "plan") -> Plan:
        """The plan that :meth:`to_json` wrote; ``source`` names it in errors.

        Raises:
            PlanError: names the field, what was expected there and what was found.
        """
        try:
            _check_format(msgspec.json.decode(text))
            plan = msgspec.json.decode(text, type=cls)
            _check(plan)
        except (msgspec.MsgspecError, HapError) as error:
            raise PlanError(f"{source}: {error}") from error
        return msgspec.structs.replace(plan, synthesis_time=None)

    def check_graph(self, fingerprint: str) -> None:
        """Raises ``PlanError`` unless the plan was made for the graph that has this fingerprint."""
        if self.fingerprints.graph != fingerprint:
            raise PlanError(
                "the plan was made for another module, for inputs of other shapes (or, where the forward inspects "
                "them, of other values), or by another version of torch: plan again with hap.plan"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a file, in one step. Raises ``OSError`` where that cannot be written."""
        write_whole(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Reads a plan from a file.

        Raises:
            PlanError: the file cannot be read, or is no valid plan; names the file and the field.
        """
        name = f"plan file {os.fspath(path)}"
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise PlanError(f"{name}: {error.strerror or error}") from error
        return cls.from_json(text, source=name)


def _check_format(content: object) -> None:
    """A file of another format or version should be called that, not a plan with odd fields."""
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise PlanError(f'format: expected "{FORMAT}", got {found!r}; is this a plan, of this version of hap?')


def _check(plan: Plan) -> None:
    """What types alone do not say. Raises ``HapError``."""
    count = len(plan.cluster.devices)
    for axis, size in plan.axes.items():
        if size < 1:
            raise PlanError(f"axes.{axis}: expected a size of at least 1, got {size}")
    for name, split_class in plan.classes.items():
        if split_class.axis not in plan.axes or name in plan.axes:
            raise PlanError(
                f'classes.{name}: expected a new name for a class of one of the axes, got one of "{split_class.axis}"'
            )
    held = {"optimiser_tensors": plan.optimiser_tensors}
    held |= {f"temporaries.{name}": tensors for name, tensors in msgspec.structs.asdict(plan.temporaries).items()}
    for field, tensors in held.items():
        if not 0 <= tensors < 2**32:
            raise PlanError(f"{field}: expected a number from 0 to 2 ** 32 - 1, got {tensors}")
    if plan.required_axis is not None and plan.required_axis not in plan.axes:
        raise PlanError(f'required_axis: "{plan.required_axis}" is not an axis of the plan')
    for axis in plan.forbidden_axes:
        if axis not in plan.axes:
            raise PlanError(f'forbidden_axes: "{axis}" is not an axis of the plan')
    for argument, pins in (("pin", plan.pin), ("forbid", plan.forbid)):
        for name, placements in pins.items():
            try:
                for placement in placements:
                    shard_dim(placement)
            except ValueError as error:
                raise PlanError(f"{argument}.{name}: {error}") from error
    for field in ("predicted_memory", "memory_parts"):
        if len(getattr(plan, field)) != count:
            raise PlanError(f"{field}: expected one entry per device ({count}), got {len(getattr(plan, field))}")
    times = {"predicted_time": plan.predicted_time, "lower_bound": plan.lower_bound, "search_gap": plan.search_gap}
    if plan.active is not None and plan.active != plan.stage.devices:
        raise PlanError(f"active: expected the devices of the stage, {plan.stage.devices}, got {plan.active}")
    if plan.with_all is not None:
        times["with_all"] = plan.with_all
    times |= {f"baselines.{name}": seconds for name, seconds in plan.baselines.items() if seconds is not None}
    for field, value in times.items():
        if value < 0.0:
            raise PlanError(f"{field}: expected a number of at least 0, got {value}")
    missing = [name for name, seconds in plan.baselines.items() if seconds is None]
    if set(plan.obstacles) != set(missing):
        raise PlanError(
            f"obstacles: expected one for each baseline without a time ({', '.join(missing) or 'none'}), "
            f"got {', '.join(plan.obstacles) or 'none'}"
        )
    sizes = plan.axes | {name: plan.axes[split_class.axis] for name, split_class in plan.classes.items()}
    if not plan.replicas:
        raise PlanError("replicas: expected at least one, got none")
    for number, replica in enumerate(plan.replicas):
        path = f"replicas[{number}]"
        if replica.micro_batches < 1:
            raise PlanError(f"{path}.micro_batches: expected at least 1, got {replica.micro_batches}")
        if not replica.stages:
            raise PlanError(f"{path}.stages: expected at least one, got none")
        for position, stage in enumerate(replica.stages):
            _check_stage(stage, sizes, count, f"{path}.stages[{position}]")
            _check_replicated(plan.replicated, stage.program)
    if plan.details is not None:
        check_details(plan.details, plan.program, len(plan.stage.devices), count)


def _check_replicated(replicated: tuple[Replicated, ...], program: Program) -> None:
    """That the program computes these operators whole, as the field says."""
    applied: dict[str, list[Compute]] = {}
    for instruction in program.instructions:
        if isinstance(instruction, Compute):
            applied.setdefault(instruction.operator, []).append(instruction)
    for number, entry in enumerate(replicated):
        for instruction in applied.get(entry.operator, ()):
            if instruction.target != entry.target or instruction.axis is not None:
                along = "whole" if instruction.axis is None else f"along {instruction.axis}"
                raise PlanError(
                    f"replicated[{number}]: expected {entry.target} whole on every device as {entry.operator}, "
                    f"but the program computes {instruction.target} {along}"
                )


def _check_stage(stage: Stage, axes: dict[str, int], count: int, path: str) -> None:
    devices = stage.devices
    if not devices or sorted(set(devices)) != list(devices) or devices[0] < 0 or devices[-1] >= count:
        raise PlanError(f"{path}.devices: expected different ranks below {count}, ascending, got {list(devices)}")
    if set(stage.splits) != set(axes):
        odd = sorted(set(stage.splits) ^ set(axes))
        raise PlanError(
            f"{path}.splits: expected the axes and classes of the plan; {', '.join(odd)} is no such, or missing"
        )
    for axis, units in stage.splits.items():
        if len(units) != len(devices) or min(units) < 0 or sum(units) != axes[axis]:
            raise PlanError(
                f"{path}.splits.{axis}: expected {len(devices)} numbers of units that sum to {axes[axis]}, got {units}"
            )
    for number, instruction in enumerate(stage.program.instructions):
        try:
            _check_instruction(instruction, axes)
        except ValueError as error:
            raise PlanError(f"{path}.program.instructions[{number}]: {error}") from error
    _check_buckets(stage.program, f"{path}.program")


def _check_buckets(program: Program, path: str) -> None:
    """That buckets consist of all-reduces that follow each other."""
    before: int | None = None
    ended: set[int] = set()
    for number, instruction in enumerate(program.instructions):
        bucket = instruction.bucket if isinstance(instruction, Convert) else None
        where = f"{path}.instructions[{number}].bucket: "
        if before is not None and bucket != before:
            ended.add(before)
        if bucket in ended:
            raise PlanError(f"{where}bucket {bucket} has ended before; its all-reduces must follow each other")
        if bucket is not None and not 0 <= bucket < 2**32:
            raise PlanError(f"{where}expected a number from 0 to 2 ** 32 - 1, got {bucket}")
        if bucket is not None and isinstance(instruction, Convert) and instruction.conversion != "all_reduce":
            raise PlanError(f"{where}{instruction.conversion} cannot be part of one, only all_reduce can")
        before = bucket


def _check_instruction(instruction: Any, axes: dict[str, int]) -> None:
    if isinstance(instruction, Compute):
        placements = [placement for _, placement in (*instruction.inputs, *instruction.outputs)]
    elif isinstance(instruction, Convert):
        placements = [instruction.source, instruction.target]
    else:
        placements = [instruction.placement]
    for placement in placements:
        if not placement:
            raise PlanError("expected a placement for each level of the mesh, got none")
        for level in placement:
            parse(level)
    axis = getattr(instruction, "axis", None)
    if axis is not None and axis not in axes:
        raise PlanError(f'axis "{axis}" is not an axis of the plan, nor a split class')

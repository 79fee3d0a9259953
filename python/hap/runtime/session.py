"""What stands behind a parallel module: traces, plans and lowers each new kind of call, once, on all ranks alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from hap.errors import HapError, PlanError, RuntimeMismatchError
from hap.graph import Graph
from hap.program import Placements, Splits
from hap.rules import BATCH
from hap.rules.pieces import Place
from hap.runtime.accumulate import Accumulation
from hap.runtime.active import Active
from hap.runtime.agree import Control
from hap.runtime.alike import check_alike
from hap.runtime.changes import Changes
from hap.runtime.code import Maker
from hap.runtime.devices import device_of
from hap.runtime.drift import Equaliser
from hap.runtime.finite import requested
from hap.runtime.group import Group
from hap.runtime.idle import idle_program
from hap.runtime.inspected import Inspected
from hap.runtime.lower import lower
from hap.runtime.materialise import check_sources, materialise
from hap.runtime.optimisers import watch
from hap.runtime.padding import Padding
from hap.runtime.placing import Layout, layout, whole_on
from hap.runtime.prepared import Prepared, without_gradient
from hap.runtime.schedule import arrange
from hap.runtime.shards import check_replaceable, layout_of, names_of, place, release
from hap.runtime.signature import WHOLE, Call
from hap.runtime.step import Step
from hap.runtime.twin import Twin
from hap.runtime.weights import Weights

if TYPE_CHECKING:
    from hap.cluster import Cluster
    from hap.rules import AxisGraph

SLOW_PLANNING = (
    "Or planning on rank 0 lasted longer than the process group's timeout: give init_process_group a longer timeout=, "
    "or plan before the job by hap.plan and pass plan=."
)


_Taken: TypeAlias = "tuple[Call, tuple[bool, ...], Inspected, tuple[Any, ...]]"
_Agreed: TypeAlias = "tuple[Call, tuple[bool, ...], Inspected, tuple[Any, ...], tuple[int, ...]]"
_NUMBERS = 1024
"""So many numbers of kinds of calls are remembered; they are made anew in no time."""
UNMARKED = "; shares of a batch are marked, by collate_fn=sampler.collate or model.local_inputs"
INSPECTED = "the values that the forward inspects in Python"


class Session:
    """The calls of one parallel module.

    Args:
        module: the user's module, still whole.
        cluster: the devices, in rank order.
        control: the ranks, for small messages.
        group: the ranks, for tensors.
        make_plan: plans an annotated graph, run on rank 0; takes the axes, stored placements and fixed splits.
        seed: seed of the random numbers in the graph, of 64 bits, signed.
        weights: a checkpoint that parameters and buffers are read from.
        drift_interval: see :class:`hap.runtime.drift.Equaliser`.
        alike: likewise.
        within: whether sums over microbatches must fit the memory that was planned.
        sharded_outputs: whether outputs need not be whole.
        make: makes what runs the graphs of a rank, in the place of their own code.

    Attributes:
        equaliser: broadcasts what all ranks hold whole.
        synchronising: whether the backwards of calls reduce gradients: not under ``no_sync``.
        sums: of the gradients of microbatches.
        padding: of the inputs of calls.
        compared: whether the inputs of a call were found to be the same on all ranks.
        shares: samples by rank of the largest batch so far, of the latest plan for it; none where it is not shared.
        failure: why parameters and buffers are placed in part only, where they are.
    """

    def __init__(
        self,
        module: nn.Module,
        cluster: Cluster,
        control: Control,
        group: Group,
        make_plan: Callable[[AxisGraph, dict[str, Placements], Splits], str],
        seed: int,
        weights: Weights | None = None,
        *,
        drift_interval: int | None,
        alike: bool,
        within: bool,
        sharded_outputs: bool = False,
        make: Maker | None = None,
    ) -> None:
        check_sources(module, weights)
        watch()
        self.module = module
        self.weights = weights
        self.padding: Padding = {}
        self.compared = False
        self.shares: tuple[int, ...] = ()
        self.cluster = cluster
        self.control = control
        self.group = group
        self.make_plan = make_plan
        self.twin = Twin(module)
        self.changes = Changes(module)
        self.device = device_of(module)
        self.seed = seed
        self.steps = 0
        self.within = within
        self.sharded_outputs = sharded_outputs
        self.make = make
        self.synchronising = True
        self.sums = Accumulation(self.state)
        self.equaliser = Equaliser(drift_interval, alike=alike, state=self.state)
        self.latest: Prepared | None = None
        self._prepared: dict[tuple[Any, ...], Prepared] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._inspected: dict[tuple[Any, ...], Inspected] = {}
        self._stored: dict[str, Layout] | None = None
        self.failure: str | None = None
        self._active: Active | None = None
        self._places = [
            (f"{path}.{key}" if path else key, table, key)
            for path, part in module.named_modules()
            for table in (part._parameters, part._buffers)
            for key in table
        ]

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Prepared, tuple[int, ...]]:
        """A call with these arguments, what its kind needs, and the samples that each rank brings.

        These are ``WHOLE`` where the inputs are global. All ranks agree on the kind first, and plan it together where
        it is new. An error of one rank until then is told to all.

        Raises:
            RuntimeMismatchError: the ranks call the module with different inputs; on all ranks.
            HapError: the module was changed since it was taken; on all ranks.
        """
        self.check_whole()
        call, flags, inspected, values, units = self._agree(args, kwargs)
        local = units[0] != WHOLE
        total = sum(units) if local else WHOLE
        whole_key = (call.whole_key(total), flags, values)
        prepared = self._prepared.get(whole_key)
        if local and (prepared is None or prepared.batch != units):
            prepared = self._prepared.get((whole_key, units))
            if prepared is None:
                prepared = self._prepared[whole_key, units] = self._prepare(call, total, units)
        elif prepared is None:
            if self.compared:
                # Shares that nobody has marked come in other shapes than the batches before.
                check_alike(self.control, args, kwargs)
            prepared = self._prepare(call, total, None)
            values = inspected.add(prepared.graph.inspections)
            self._prepared[(*whole_key[:-1], values)] = prepared
        dropped = inspected.used(values)
        if dropped is not None:
            self._prepared.pop((*whole_key[:-1], dropped), None)
        self.latest = prepared
        if sum(prepared.batch) >= sum(self.shares):
            self.shares = prepared.batch
        return call, (prepared.checked if requested() else prepared), units

    def _agree(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Agreed:
        """Compare the kinds of call and the random numbers' state over the ranks.

        One exchange of a few numbers at each call: a rank that stood in a collective of the step while another planned
        would wait for ever.
        """

        def taken() -> tuple[_Taken, Sequence[int]]:
            if (change := self.changes.find()) is not None:
                raise HapError(change)
            call, flags = Call(args, kwargs, self.device), tuple(self.twin.flags())
            inspected = self._inspected.setdefault((call.key, flags), Inspected())
            values = inspected.values(call.tensors)
            state = (int(self.synchronising), int(requested()), self.seed, self.steps)
            return (call, flags, inspected, values), (self._number((call.key, flags, values)), call.samples, *state)

        (call, flags, inspected, values), numbers = self.control.exchange(taken, 6, "comparing the ranks' inputs")
        mine = numbers[self.group.rank]
        if any(other != mine[0] for other, *_ in numbers):
            self.control.same(call.description(), f"the inputs of one call{'' if call.local else UNMARKED}")
            self.control.same({INSPECTED: str(values)}, "the inputs of one call")
            module = {"the names of parameters": ", ".join(self.state())}
            module.update(zip(self.twin.names(), map(str, flags), strict=True))
            self.control.same(module, "the module at one call")
            raise RuntimeMismatchError("the ranks call the module in different ways")
        if len({entry[2] for entry in numbers}) > 1:
            self.control.same({"whether they call the module under no_sync()": str(not self.synchronising)}, "one call")
        if len({entry[3] for entry in numbers}) > 1:
            self.control.same({"whether torch.autograd.detect_anomaly() looks for NaN": str(requested())}, "one call")
        if any(entry[4:] != mine[4:] for entry in numbers):
            self.control.same({"rng_state": f"({self.seed}, {self.steps})"}, "the random numbers of one call")
        return call, flags, inspected, values, tuple(entry[1] for entry in numbers)

    def _number(self, key: tuple[Any, ...]) -> int:
        """A number for a kind of call, equal on all ranks for equal kinds."""
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) >= _NUMBERS:
                self._numbers.clear()
            number = self._numbers[key] = _hash(key)
        return number

    @torch.inference_mode(False)
    def _prepare(self, call: Call, total: int, units: tuple[int, ...] | None) -> Prepared:
        """Trace, plan and lower a new kind of call; the first one also places the parameters."""
        from hap.planning import Plan
        from hap.rules import annotate, divided
        from hap.trace.refusals import check_module
        from hap.trace.route import trace_module

        def annotated() -> AxisGraph:
            if self._stored is None:
                # The twin shows neither tensor hooks nor buffers that require grad.
                check_module(self.module)
            with torch.enable_grad():
                inputs = call.whole_inputs(total)
                graph = trace_module(
                    self.twin.refresh(), *inputs, values=not call.local, sharded_outputs=self.sharded_outputs
                )
            self.changes.watch(graph.plain, self.twin.module)
            if change := self.changes.find():
                raise HapError(change)
            return annotate(graph)

        axes = self.control.together(annotated, "tracing the module")
        self.control.same({INSPECTED: str([one.value for one in axes.graph.inspections])}, "the inputs of one call")
        self.control.same({"the traced graph": axes.fingerprint}, "before planning")
        if self.latest is not None:
            axes = divided(axes, self.latest.plan.classes)
        placements, fixed = self._where_stored(axes)
        sizes = {axis.name: axis.size for axis in axes.axes}
        # What idle ranks bring is moved to the others.
        kept = units is not None and (not self.placed or self.active.includes(units))
        if units is not None and kept and sizes.get(BATCH) == total:
            fixed.setdefault(BATCH, list(units))
        encoded = self.control.settle(lambda: self.make_plan(axes, placements, fixed), "planning", SLOW_PLANNING)
        plan = Plan.from_json(encoded)
        axes, splits = divided(axes, plan.classes), plan.splits
        if not self.placed:
            self._active = Active(self.group, plan.stage.devices)
        active, schedule = self.active, arrange(axes, plan.program)
        assert plan.stage.devices == active.devices, "parameters stay where they are"
        devices, ranks = active.devices, active.ranks
        layouts = {
            prop: layout(axes, splits, prop.tensor, prop.placements, len(devices)).spread(devices, ranks)
            for prop in [
                *(given.gains for given in (*schedule.inputs, *schedule.tangents)),
                *(asked.needs for asked in (*schedule.outputs, *schedule.gradients)),
            ]
        }
        if active.group is None:
            program = idle_program(
                axes.graph, schedule, active.rank, lambda prop: layouts[prop].shapes[active.rank], self.device
            )
        else:
            place, places = active.group.rank, active.group.size
            program = lower(
                axes, plan.program, splits, place,
                ranks=places, schedule=schedule, device=self.device, make=self.make,
            )  # fmt: skip
        self._store(axes.graph, {given.input: layouts[given.gains] for given in program.inputs})
        if active.group is not None:
            self.equaliser.add(axes, plan.program, active.group)
        updated = frozenset(entry.of for entry in axes.graph.outputs if entry.kind == "buffer" and entry.of is not None)
        constants = {tensor: value.to(self.device) for tensor, value in axes.graph.constants.items()}
        told = active if active.somebody_is_idle else None
        pieces = tuple(layouts[given.gains].shapes[active.rank] for given in schedule.tangents)
        step = Step(axes.graph, program, active.group or self.group, updated, self.device, told, pieces)
        refused = without_gradient(axes.graph)
        return Prepared(axes, plan, splits, step, constants, layouts, refused, self.within, self.control, active)

    def _store(self, graph: Graph, layouts: dict[int, Layout]) -> None:
        """Place parameters and buffers, the first time; afterwards they lie as they are."""
        stored = {
            graph.inputs[index].name: one
            for index, one in layouts.items()
            if graph.inputs[index].kind in ("parameter", "buffer")
        }
        if self._stored is None:
            release(self.module)
            for names, tensor in names_of(self.module).values():
                if layout_of(names, stored) is None:
                    # Also what this graph does not use is whole where it may be used.
                    stored[names[0]] = self._whole(tuple(tensor.shape))
            self.control.together(
                lambda: check_replaceable(self.module, stored if self.group.size > 1 else {}, self.group.rank),
                "replacing parameters",
            )
            try:
                place(self.module, stored, self.group)
                materialise(self.module, self.twin.module, stored, self.group, self.control, self.device, self.weights)
            except Exception as error:
                self.failure = f"{type(error).__name__}: {error}"
                raise
            self._stored = stored
            return
        for name, one in stored.items():
            before = self._stored.setdefault(name, self._whole(one.shape))
            assert before.along == one.along, f'"{name}" would have to move'

    def _whole(self, shape: tuple[int, ...]) -> Layout:
        """How a tensor lies that each active rank holds the whole of."""
        return whole_on(shape, self.active.devices, self.active.ranks)

    def _where_stored(self, axes: AxisGraph) -> tuple[dict[str, Placements], Splits]:
        """Placements of what is placed already, in terms of a new graph, and the splits that they fix.

        Raises:
            PlanError: the new graph's axes do not fit where they lie.
        """
        placements: dict[str, Placements] = {}
        fixed: Splits = {}
        if self._stored is None:
            return placements, fixed
        for entry in axes.graph.inputs:
            if entry.kind not in ("parameter", "buffer"):
                continue
            name = entry.name
            stored = self._stored.get(entry.name)
            if stored is None or stored.along is None:
                placements[name] = ("R",)
                continue
            occurrences, units = axes.occurrences[entry.tensor], list(stored.along.units)
            lies = Place(stored.along.dim, stored.along.blocks)
            there = [at for at, own in enumerate(occurrences) if own.place == lies]
            # Of the split classes of an axis, the one that is split so.
            there.sort(key=lambda at: self._split_before(axes.axes[occurrences[at].axis].name) != units)
            at = there[0] if there else None
            axis = None if at is None else axes.axes[occurrences[at].axis]
            if axis is None or axis.size != sum(units) or fixed.setdefault(axis.name, units) != units:
                raise PlanError(
                    f'"{entry.name}" is split over the devices in a way that this call cannot use: {units} '
                    f"units of dimension {lies.dim}, which are no axis for these inputs. Give hap.parallelize example "
                    "inputs of the shape that is used most, or keep the shapes of inputs alike."
                )
            placements[name] = (f"S{at}",)
        return placements, fixed

    def _split_before(self, axis: str) -> list[int] | None:
        latest = self.latest
        return None if latest is None or axis not in latest.splits else list(latest.active.units(latest.splits[axis]))

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers as they are now, by the names that graphs use and by all others."""
        return {name: value for name, table, key in self._places if (value := table[key]) is not None}

    @property
    def active(self) -> Active:
        """The ranks that run the plans. They stay the same, as parameters lie there."""
        assert self._active is not None, "there is a plan"
        return self._active

    @property
    def placed(self) -> bool:
        """Whether the first plan has placed parameters and buffers."""
        return self._stored is not None

    def check_whole(self) -> None:
        """Raise where parameters and buffers were left half placed: some are whole, some shards, some without values.

        Raises:
            HapError: says why.
        """
        if self.failure is not None:
            raise HapError(
                f"the module was left half made, as placing its parameters failed ({self.failure}): make it anew, and "
                "call hap.parallelize with that"
            )

    def layouts(self) -> dict[int, Layout]:
        """How parameters and buffers lie, by identity, as a tensor may have several names; whole where none is held."""
        state = self.state()
        return {id(state[name]): one for name, one in (self._stored or {}).items()}

    def whole(self, name: str, piece: torch.Tensor) -> torch.Tensor:
        """The whole of a parameter or buffer (or of its gradient) from this rank's piece. A collective."""
        layout = self.layouts().get(id(self.state()[name]))
        return piece if layout is None else layout.gather(piece, name, self.group)


def _hash(key: tuple[Any, ...]) -> int:
    """A number that is equal on all ranks for equal keys."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little", signed=True)

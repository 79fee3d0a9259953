"""One graph on one cluster in the Rust core: synthesis, simulation and stages with Python's types."""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
import numpy as np

from hap._core import LimitReachedError, WarmStart
from hap.balance import Machine, Shares, Simulation, Stages
from hap.cluster import Cluster, Device
from hap.errors import PlanError
from hap.planning.optimisers import NO_TEMPORARIES, OptimiserMemory, Temporaries
from hap.program import Program, Splits

_log = logging.getLogger("hap")

# Programs that are parsed but once, while others are.
PROGRAMS = 32
# Numbers of the core have 64 bits.
MOST = 2**64

Observer = Callable[[float, float, int, int], object]
"""Called during a synthesis with its bound, the cost of its best program, its work, and its open decisions."""


class CoreGraph(Protocol):
    """``hap._core.Graph``."""

    def synthesise(
        self,
        cluster: str,
        request: str,
        progress: Observer | None = None,
        warm: WarmStart | None = None,
        options: str = "{}",
    ) -> str:
        """The cheapest program, and one step of it."""

    def simulate(self, cluster: str, program: str, splits: str, options: str) -> str:
        """One step."""

    def stages(
        self, cluster: str, program: str, shares: str, options: str
    ) -> tuple[list[str], bytes, bytes, bytes, bytes]:
        """The data of the linear program."""


class MemoryPrices(msgspec.Struct, frozen=True):
    """What memory costs; with it, a synthesis weighs recomputation and re-gathering against keeping.

    Attributes:
        seconds_per_byte: by device.
        between: weight of what is held between forward and backward; gradients at the end of the step have the rest.
        optimiser_tensors: tensors of optimiser state per parameter.
        temporaries: what the optimiser makes beside them while it steps.
        segments: the forward is cut in so many; what crosses a cut runs once.
        skew: tensors early in the graph cost up to this fraction more, so that of many equal ones some are kept.

    Bounds hold for all programs only with one segment and without skew.
    """

    seconds_per_byte: tuple[float, ...]
    between: float
    optimiser_tensors: int
    temporaries: Temporaries = NO_TEMPORARIES
    segments: int = 1
    skew: float = 0.0

    def of(self, memory: Sequence[float]) -> float:
        """The price of so many bytes by device, in seconds."""
        return sum(price * size for price, size in zip(self.seconds_per_byte, memory, strict=True))


class Prices(msgspec.Struct, frozen=True):
    """The synthesiser's objective: ``theta * sum of weights * compute + (1 - theta * hidden) * communication``.

    Where memory has a price, that of the bytes held is added.
    """

    weights: tuple[float, ...]
    theta: float = 1.0
    memory: MemoryPrices | None = None


class NoProgramError(PlanError):
    """The core has found no program: no choices fit together, or the limits are too small to find any."""


class CutShortError(NoProgramError):
    """The limits ended the search before it had found any program."""


class Constraints(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a program may use.

    Attributes:
        forbidden_axes: axes that nothing is sharded along.
        allowed_axes: the only axes that anything is sharded along; ``None`` for all.
        placements: by name of a tensor, the placements that it may be stored or produced in.
        outputs: by name of an output of the module other than a loss, the placements that it may end in.
        require_axis: operators that can share their work along this axis must.
    """

    forbidden_axes: tuple[str, ...] = ()
    allowed_axes: tuple[str, ...] | None = None
    placements: dict[str, tuple[str, ...]] = {}
    outputs: dict[str, tuple[str, ...]] = {}
    require_axis: str | None = None


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits of one synthesis; under them the program may not be proven optimal, and its gap says so.

    ``None`` is the core's own limit, which models of usual size do not meet; of time there is none.

    Attributes:
        table_entries: entries (8 bytes) of all tables together in one exact elimination; also the memory of a search.
        work: table entries visited, added up over the whole synthesis.
        seconds: wall-clock time; another machine may then make another plan.

    Raises:
        PlanError: a limit is not a whole number (``seconds``: a finite number) of at least 0.
    """

    table_entries: int | None = None
    work: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("table_entries", "work"):
            limit = getattr(self, name)
            if limit is not None and not (type(limit) is int and 0 <= limit < MOST):
                raise PlanError(f"limits.{name}: expected a whole number from 0 to 2 ** 64 - 1, or None, got {limit!r}")
        seconds = self.seconds
        if seconds is not None and not (type(seconds) in (int, float) and 0.0 <= seconds <= sys.float_info.max):
            raise PlanError(f"limits.seconds: expected a finite number of at least 0, or None, got {seconds!r}")


@dataclass(frozen=True, slots=True)
class Synthesis:
    """A program from the synthesiser.

    Attributes:
        program: the program as JSON, the form that the core reads.
        cost: its priced cost in seconds.
        bound: a lower bound of that cost over all programs.
        search_gap: ``(cost - bound) / cost``; 0.0 when proven minimal. More where a limit was reached, or where the
            program needs one tensor in so many placements that the search did not tell all sets of them apart.
        seconds: wall time of the synthesis, from JSON to JSON.
        priced_memory: bytes by device that the cost counts, at most those of the peak; empty where none has a price.
    """

    program: str
    cost: float
    bound: float
    search_gap: float
    seconds: float
    priced_memory: tuple[float, ...] = ()


class _Reply(msgspec.Struct):
    program: msgspec.Raw
    cost: float
    bound: float
    search_gap: float
    simulation: Simulation
    priced_memory: tuple[float, ...] = ()


class Holder(msgspec.Struct, frozen=True):
    """What holds ``bytes`` of a device's memory at its peak: a tensor in a placement, and what for."""

    part: Literal["parameter", "gradient", "optimiser", "activation", "buffer"]
    tensor: str
    placement: tuple[str, ...]
    bytes: float


class _Holders(msgspec.Struct):
    holders: tuple[tuple[Holder, ...], ...] = ()


class Event(msgspec.Struct, frozen=True):
    """What a stream of a device does from ``start`` to ``end``, in seconds since the step began."""

    device: int
    stream: Literal["computation", "communication"]
    instruction: int
    start: float
    end: float


class Timeline(msgspec.Struct, frozen=True):
    """A step of the first device of each kind.

    Attributes:
        kinds: by device, the first one of its kind.
        timeline: what streams do, in program order.
        memory_timeline: by kind, when the bytes that it holds change, and to what.
    """

    kinds: tuple[int, ...]
    timeline: tuple[Event, ...]
    memory_timeline: tuple[tuple[tuple[float, float], ...], ...]


@dataclass(slots=True)
class Watch:
    """What all engines of one search share.

    Attributes:
        search_gap: the largest of all syntheses so far; 1.0 where limits left one without any program.
        observer: called now and then during a synthesis; what it raises ends the synthesis. It must not raise
            ``ValueError``, as the core does.
    """

    search_gap: float = 0.0
    observer: Observer | None = None


class Engine:
    """Calls of the core for one graph and one cluster. Remembers what it has made and simulated.

    Attributes:
        cluster_json: the cluster as the core reads it; equal clusters give equal text.
    """

    def __init__(
        self,
        graph: CoreGraph,
        cluster: Cluster,
        *,
        optimiser: OptimiserMemory,
        limits: Limits | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.graph = graph
        self.cluster = cluster
        self.machine = machine(cluster)
        self.optimiser = optimiser
        self.watch = watch or Watch()
        self.last_synthesis_time: float | None = None
        self.cluster_json = cluster.to_json()
        self._limits = limits or Limits()
        self._options = msgspec.json.encode(optimiser.as_options()).decode()
        self._simulations: dict[tuple[str, bytes], Simulation] = {}
        # By request: searches from different starts meet.
        self._syntheses: dict[bytes, Synthesis] = {}
        # By constraints: under others the synthesis has other choices.
        self._warm: dict[bytes, WarmStart] = {}

    def on(self, cluster: Cluster) -> Engine:
        """The same graph on another cluster, under the same limits, for the same search."""
        return Engine(self.graph, cluster, optimiser=self.optimiser, limits=self._limits, watch=self.watch)

    def synthesise(
        self, splits: Splits, prices: Prices, constraints: Constraints, work: int | None = None
    ) -> Synthesis:
        """The cheapest program under these splits and prices.

        With ``work`` it is a search for a bound, which may end after so much work. Then its own gap does not count.

        Raises:
            NoProgramError: no program satisfies the constraints, or (:class:`CutShortError`) limits ended the search.
        """
        units = msgspec.json.encode(splits)
        request = {"splits": msgspec.Raw(units), "prices": prices, "constraints": constraints, "random": None}
        limits = msgspec.to_builtins(self._limits)
        cut = work is not None and (self._limits.work is None or work < self._limits.work)
        if cut:
            limits["work"] = work
        if limits:
            request["limits"] = limits
        text = msgspec.json.encode(request)
        known = self._syntheses.get(text)
        if known is not None:
            return known
        # From one price of memory to the next, costs change too much for a warm start to save time.
        warm = None
        if prices.memory is None:
            warm = self._warm.setdefault(msgspec.json.encode(constraints), WarmStart())
        started = time.perf_counter()
        try:
            answer = self.graph.synthesise(self.cluster_json, text.decode(), self.watch.observer, warm, self._options)
        except LimitReachedError as error:
            if not cut:
                self.watch.search_gap = 1.0
            raise CutShortError(f"no program: {error}") from error
        except ValueError as error:
            raise NoProgramError(f"no program: {error}") from error
        reply = msgspec.json.decode(answer, type=_Reply)
        seconds = time.perf_counter() - started
        self.last_synthesis_time = seconds
        if not cut:
            self.watch.search_gap = max(self.watch.search_gap, reply.search_gap)
        _log.debug("synthesis: cost %.6g s, bound %.6g s, took %.3f s", reply.cost, reply.bound, seconds)
        program = bytes(reply.program).decode()
        self._simulations[program, units] = reply.simulation
        made = Synthesis(program, reply.cost, reply.bound, reply.search_gap, seconds, reply.priced_memory)
        self._syntheses[text] = made
        return made

    def simulate(self, program: str, splits: Splits) -> Simulation:
        """One step of a program under whole units."""
        units = msgspec.json.encode(splits)
        found = self._simulations.get((program, units))
        if found is None:
            reply = self.graph.simulate(self.cluster_json, program, units.decode(), self._options)
            found = self._simulations[program, units] = msgspec.json.decode(reply, type=Simulation)
        return found

    def holders(self, program: str, splits: Splits, count: int) -> tuple[tuple[Holder, ...], ...]:
        """By device, what holds the most memory at its peak, the largest first."""
        options = msgspec.json.encode({**self.optimiser.as_options(), "holders": count}).decode()
        text = msgspec.json.encode(splits).decode()
        return msgspec.json.decode(
            self.graph.simulate(self.cluster_json, program, text, options), type=_Holders
        ).holders

    def timeline(self, program: str, splits: Splits) -> Timeline:
        """What one device of each kind does when in a step of a program."""
        options = {**self.optimiser.as_options(), "timeline": True, "kinds": True}
        arguments = (
            self.cluster_json,
            program,
            msgspec.json.encode(splits).decode(),
            msgspec.json.encode(options).decode(),
        )
        return msgspec.json.decode(self.graph.simulate(*arguments), type=Timeline)

    def evaluator(self, program: str) -> ProgramEvaluator:
        """What balance needs to know of a program."""
        return ProgramEvaluator(self, program)

    def stages(self, program: str, shares: Shares) -> Stages:
        """The program's stages linearised at these shares."""
        return self.stages_at(program, msgspec.json.encode(shares))

    def stages_at(self, program: str, shares: bytes) -> Stages:
        """The same, for shares as JSON."""
        axes, kinds, counts, computation, terms = self.graph.stages(
            self.cluster_json, program, shares.decode(), self._options
        )
        of_kind = np.frombuffer(terms).reshape(-1, len(computation) + 1, 1 + len(axes))
        return Stages.of(
            axes,
            np.frombuffer(kinds, dtype=np.int64),
            np.frombuffer(counts, dtype=np.int64).astype(np.float64),
            np.frombuffer(computation, dtype=np.bool_),
            of_kind,
        )


class ProgramEvaluator:
    """A :class:`hap.balance.Evaluator` of one program. Remembers its stages."""

    def __init__(self, engine: Engine, program: str) -> None:
        self._engine = engine
        self._program = program
        self._stages: dict[bytes, Stages] = {}

    def stages(self, shares: Shares) -> Stages:
        """The program's stages, linearised at these shares."""
        key = msgspec.json.encode(shares)
        found = self._stages.get(key)
        if found is None:
            found = self._stages[key] = self._engine.stages_at(self._program, key)
        return found

    def simulate(self, splits: Splits) -> Simulation:
        """The program's step under these splits."""
        return self._engine.simulate(self._program, splits)


def machine(cluster: Cluster) -> Machine:
    """The devices' memory, relative speed, and which of them are equal.

    Balance starts from the speeds; the stages say what is true of each operator.
    """
    devices = cluster.devices
    figures = [_figures(device) for device in devices]
    return Machine(
        capacity=tuple(device.usable_memory for device in devices),
        speeds=tuple(device.speed for device in devices),
        kinds=tuple(figures.index(figure) for figure in figures),
    )


def _figures(device: Device) -> tuple[object, ...]:
    return (device.flops, device.memory_bandwidth, device.usable_memory, device.launch_overhead, device.measured)


@functools.lru_cache(maxsize=PROGRAMS)
def parse_program(text: str) -> Program:
    """The program that the core wrote."""
    return msgspec.json.decode(text, type=Program)

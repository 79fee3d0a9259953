"""A plan's step by the clock: what each device computes and sends when, and the memory that it holds meanwhile."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
import torch

from hap.balance import MemoryParts
from hap.cluster import Cluster, Device
from hap.errors import PlanError
from hap.files import write_whole
from hap.planning.made_for import cluster_of, graph_of
from hap.planning.plan import NOTHING, Plan
from hap.planning.subsets import news

if TYPE_CHECKING:
    from hap.rules import AxisGraph

T = TypeVar("T")

STREAMS = ("computation", "communication")


class Event(msgspec.Struct, frozen=True):
    """What a stream of a device does from ``start`` to ``end``, in seconds since the step began."""

    device: int
    stream: Literal["computation", "communication"]
    name: str
    start: float
    end: float


class SimulatedStep(msgspec.Struct, frozen=True):
    """One simulated training step.

    Attributes:
        seconds: the step's time.
        compute: seconds of computation by device, waiting excluded.
        communication: seconds of all collectives.
        memory: peak bytes by device.
        memory_parts: what the peak is made of.
        timeline: what the streams do when, in program order.
        memory_timeline: by device, seconds since the step began and the bytes held from then on. The optimiser's state
            counts all the time, communication buffers while their collectives are under way.
    """

    seconds: float
    compute: tuple[float, ...]
    communication: float
    memory: tuple[float, ...]
    memory_parts: tuple[MemoryParts, ...]
    timeline: tuple[Event, ...]
    memory_timeline: tuple[tuple[tuple[float, float], ...], ...]

    def chrome_trace(self) -> dict[str, Any]:
        """The timeline as the Trace Event Format, which Perfetto and Chrome's ``about:tracing`` show.

        Devices are processes and their streams threads; memory is a counter. Times are in microseconds.
        """
        return {"displayTimeUnit": "ms", "traceEvents": list(self._trace_events())}

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes :meth:`chrome_trace` to a file, as JSON, in one step: open it at https://ui.perfetto.dev.

        Raises:
            OSError: the file cannot be written.
        """
        write_whole(path, json.dumps(self.chrome_trace()))

    def _trace_events(self) -> Iterator[dict[str, Any]]:
        for device in range(len(self.memory)):
            yield {"ph": "M", "name": "process_name", "pid": device, "args": {"name": f"device {device}"}}
            for thread, stream in enumerate(STREAMS):
                yield {"ph": "M", "name": "thread_name", "pid": device, "tid": thread, "args": {"name": stream}}
        for event in self.timeline:
            yield {
                "ph": "X",
                "name": event.name,
                "cat": event.stream,
                "pid": event.device,
                "tid": STREAMS.index(event.stream),
                "ts": 1e6 * event.start,
                "dur": 1e6 * (event.end - event.start),
            }
        for device, line in enumerate(self.memory_timeline):
            for start, size in line:
                yield {"ph": "C", "name": "memory", "pid": device, "ts": 1e6 * start, "args": {"bytes": size}}


def simulate(
    plan: Plan,
    module: torch.nn.Module,
    *,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    devices: Cluster | Sequence[str | Device | Cluster] | None = None,
) -> SimulatedStep:
    """One step of a plan, as the search predicts it, with its timeline. Needs no devices and no process group.

    Args:
        plan: the plan.
        module: the module that it was made for.
        example_inputs: as for :func:`hap.plan`.
        example_kwargs: as for :func:`hap.plan`.
        devices: as many others as the plan has, to see what it would take there; by default the plan's.

    Raises:
        PlanError: the plan was made for another module or other inputs, the number of devices is another, or the
            plan's program, edited by hand, does not compute the module; the error names the instruction.
        ClusterError: a device is unknown or a figure is wrong.
        TraceError: the module or the inputs cannot be traced.
    """
    cluster = cluster_of(plan, devices, "simulate")
    return simulated(plan, graph_of(plan, module, example_inputs, example_kwargs), cluster)


def simulated(plan: Plan, axes: AxisGraph, cluster: Cluster) -> SimulatedStep:
    """One step of a plan on its graph, which :func:`hap.planning.made_for.graph_of` finds again.

    Raises:
        PlanError: the program does not compute the graph.
    """
    from hap import _core
    from hap.rules import divided

    try:
        reply = _core.Graph(divided(axes, plan.classes).to_json()).simulate(
            cluster.without(plan.left_out).to_json(),
            msgspec.json.encode(plan.program).decode(),
            msgspec.json.encode(plan.splits).decode(),
            msgspec.json.encode({**plan.optimiser.as_options(), "timeline": True}).decode(),
        )
    except ValueError as error:
        raise PlanError(f"simulate: the plan does not hold: {error}") from error
    step = msgspec.json.decode(reply, type=SimulatedStep)
    return _of_job(step, plan.stage.devices, cluster) if plan.left_out else step


def _of_job(step: SimulatedStep, devices: Sequence[int], cluster: Cluster) -> SimulatedStep:
    """A step of some devices, as one of all: the others have nothing to do, and hear of the loss."""

    def by_rank(values: Sequence[T], nothing: T) -> tuple[T, ...]:
        held = dict(zip(devices, values, strict=True))
        return tuple(held.get(rank, nothing) for rank in range(len(cluster.devices)))

    seconds = step.seconds + news(cluster)
    told = [rank for rank in range(len(cluster.devices)) if rank not in devices[1:]]
    return SimulatedStep(
        seconds=seconds,
        compute=by_rank(step.compute, 0.0),
        communication=step.communication,
        memory=by_rank(step.memory, 0.0),
        memory_parts=by_rank(step.memory_parts, NOTHING),
        timeline=(
            *(msgspec.structs.replace(event, device=devices[event.device]) for event in step.timeline),
            *(Event(rank, "communication", "the loss to idle devices", step.seconds, seconds) for rank in told),
        ),
        memory_timeline=by_rank(step.memory_timeline, ((0.0, 0.0),)),
    )

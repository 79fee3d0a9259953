"""What each command prints with ``--json``. ``hap schema NAME`` prints the JSON schema.

Fields may be added to a format; where one goes, or means something else, the format gets a new number. Seconds, bytes
and FLOP/s are plain numbers; lists by device are in rank order.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal

import msgspec


class Accelerator(msgspec.Struct, frozen=True):
    """A known accelerator: FLOP/s by element type, bytes per second, bytes."""

    name: str
    flops: dict[str, float]
    memory_bandwidth: float
    memory: float


class KnownLink(msgspec.Struct, frozen=True):
    """A known link: bytes per second and seconds."""

    name: str
    bandwidth: float
    latency: float


class Here(msgspec.Struct, frozen=True):
    """A device of this machine, with the name that hap knows it by, if it does."""

    name: str
    memory: int
    free: int
    known_as: str | None


class Member(msgspec.Struct, frozen=True):
    """A device of a cluster; ``flops`` is that of float32, ``measured`` whether it comes of a profile."""

    name: str
    flops: float
    memory_bandwidth: float
    usable_memory: float
    measured: bool


class Collective(msgspec.Struct, frozen=True):
    """A measured collective: seconds of latency, bytes per second, and how far the times are off that line.

    ``error`` is the root mean square, as a fraction; ``null`` where a file has none.
    """

    name: str
    latency: float
    bandwidth: float
    error: float | None = None


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``hap devices``: what is known and what is here, or the cluster that was asked about.

    ``fingerprint`` is that of the hardware that the cluster was measured on, if it was.
    """

    format: Literal["hap-cli-devices-1"] = "hap-cli-devices-1"
    accelerators: tuple[Accelerator, ...] = ()
    links: tuple[KnownLink, ...] = ()
    here: tuple[Here, ...] = ()
    cluster: tuple[Member, ...] = ()
    collectives: tuple[Collective, ...] = ()
    fingerprint: str | None = None
    output: str | None = None


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``hap profile``: the cluster that was measured, and its file."""

    format: Literal["hap-cli-profile-1"] = "hap-cli-profile-1"
    cluster: tuple[Member, ...]
    collectives: tuple[Collective, ...] = ()
    fingerprint: str | None = None
    seconds: float
    output: str


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``hap plan``; fields are those of :class:`hap.Plan`, ``splits`` of the axes that the program splits."""

    format: Literal["hap-cli-plan-1"] = "hap-cli-plan-1"
    output: str | None
    devices: tuple[str, ...]
    left_out: tuple[int, ...]
    active: tuple[int, ...] | None
    with_all: float | None
    predicted_time: float
    lower_bound: float
    optimality_gap: float | None
    search_gap: float
    predicted_memory: tuple[int, ...]
    usable_memory: tuple[float, ...]
    splits: dict[str, list[int]]
    baselines: dict[str, float | None]
    obstacles: dict[str, str]
    conversions: dict[str, int]
    replicated: tuple[str, ...]


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``hap simulate``; fields are those of :class:`hap.SimulatedStep`."""

    format: Literal["hap-cli-simulate-1"] = "hap-cli-simulate-1"
    seconds: float
    compute: tuple[float, ...]
    communication: float
    memory: tuple[float, ...]
    usable_memory: tuple[float, ...]
    trace: str | None
    linear_program: str | None = None


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``hap check``; fields are those of :class:`hap.CheckResult`; infinite errors are null.

    ``tolerance`` is what was asked for, else 1e-8, but 100 roundings of ``precision`` where that is coarser.
    """

    format: Literal["hap-cli-check-1"] = "hap-cli-check-1"
    equal: bool
    tolerance: float
    precision: str
    error: float | None
    errors: dict[str, float | None]
    sharded_flops: float
    programs: int
    replicated: tuple[str, ...]


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """``hap report``: the page that was written."""

    format: Literal["hap-cli-report-1"] = "hap-cli-report-1"
    output: str


RESULTS: dict[str, type[msgspec.Struct]] = {
    "check": Checked,
    "devices": Devices,
    "plan": Planned,
    "profile": Profile,
    "report": Reported,
    "simulate": Simulated,
}
"""By command; those of ``hap explain`` are in :mod:`hap.explain.data`."""


def described(name: str) -> type[msgspec.Struct]:
    """What a command prints, of which ``compare`` is ``hap explain`` of two plans; or what a ``cluster`` file holds."""
    if name == "cluster":
        from hap.cluster.schema import ClusterFile

        return ClusterFile
    from hap.explain import Difference, Explanation

    explained: dict[str, type[msgspec.Struct]] = {"compare": Difference, "explain": Explanation}
    return (RESULTS | explained)[name]


def schema(name: str) -> bytes:
    """The JSON schema of what a command prints with ``--json``, or of cluster files, indented."""
    found = _dedented(msgspec.json.schema(described(name)))
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def _dedented(part: Any) -> Any:
    """A part of a schema; descriptions lose the indentation of docstrings, which some versions of msgspec keep."""
    if isinstance(part, dict):
        return {
            key: inspect.cleandoc(value) if key == "description" and isinstance(value, str) else _dedented(value)
            for key, value in part.items()
        }
    return [_dedented(value) for value in part] if isinstance(part, list) else part

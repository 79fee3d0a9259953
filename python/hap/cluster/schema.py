"""What a cluster file holds, as types: ``hap schema cluster`` prints their JSON schema.

:mod:`hap.cluster.file` reads and writes it. It also checks what a schema cannot say: that less is reserved than the
device has, and that measured points rise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import torch
from msgspec import UNSET, Meta, Struct, UnsetType

from hap.cluster.device import FAMILIES, MEMORY, is_element_type
from hap.cluster.file import FORMAT
from hap.cluster.link import COLLECTIVES


def _one_of(names: Iterable[str]) -> str:
    return f"^({'|'.join(names)})$"


_TYPES = sorted(name for name in dir(torch) if is_element_type(name))
_Positive = Annotated[float, Meta(gt=0)]
_Part = Annotated[float, Meta(ge=0, le=1)]
_NotNegative = Annotated[float, Meta(ge=0)]
_Rate = Annotated[str, Meta(pattern=_one_of(["default", *_TYPES]))]
_Family = Annotated[str, Meta(pattern=f"^({MEMORY}|({'|'.join(FAMILIES)})/({'|'.join(_TYPES)}))$")]
_Points = Annotated[list[tuple[_Positive, _Positive]], Meta(min_length=2)]
_Collective = Annotated[str, Meta(pattern=_one_of(COLLECTIVES))]


class LinkEntry(Struct, forbid_unknown_fields=True):
    """A link between the members of a group."""

    bandwidth: Annotated[_Positive, Meta(description="bytes per second of each member, each way")]
    latency: Annotated[_NotNegative, Meta(description="seconds until the first byte arrives")]
    name: Annotated[str, Meta(description="for people: the figures count")] | UnsetType = UNSET
    assumed: Annotated[bool, Meta(description="whether nobody said that it is there")] | UnsetType = UNSET


class DeviceEntry(Struct, forbid_unknown_fields=True):
    """An accelerator, or one CPU process."""

    name: Annotated[str, Meta(description="for people: the figures count")]
    flops: Annotated[
        dict[_Rate, _Positive],
        Meta(
            description='FLOP/s by element type; "default" stands for every type without an entry',
            extra_json_schema={"required": ["default"]},
        ),
    ]
    memory_bandwidth: Annotated[_Positive, Meta(description="bytes per second between the device and its memory")]
    memory: Annotated[_Positive, Meta(description="bytes of its memory")]
    launch_overhead: Annotated[_NotNegative, Meta(description="seconds that starting one operator costs")]
    reserve: (
        Annotated[_NotNegative, Meta(description="bytes of its memory that training may not use; if absent, none")]
        | UnsetType
    ) = UNSET
    measured: (
        Annotated[
            dict[_Family, _Points],
            Meta(description="by family of operators, amounts of work (FLOP or bytes) and seconds; both rise"),
        ]
        | UnsetType
    ) = UNSET


class MemberEntry(Struct, forbid_unknown_fields=True):
    """A device or a group of its own, such as a host: one of the two."""

    device: DeviceEntry | UnsetType = UNSET
    group: GroupEntry | UnsetType = UNSET


_Member = Annotated[MemberEntry, Meta(extra_json_schema={"minProperties": 1, "maxProperties": 1})]


class GroupEntry(Struct, forbid_unknown_fields=True):
    """Devices or groups that are joined by one link."""

    link: LinkEntry
    members: Annotated[list[_Member], Meta(min_length=1, description="in rank order")]


class CollectiveEntry(Struct, forbid_unknown_fields=True):
    """A measured collective over the whole cluster: it takes latency + bytes / bandwidth."""

    latency: Annotated[_NotNegative, Meta(description="seconds for nothing")]
    bandwidth: Annotated[_Positive, Meta(description="bytes per second, of those that the slowest rank moves")]
    error: (
        Annotated[_NotNegative, Meta(description="how far the measured times are off: root mean square, a fraction")]
        | UnsetType
    ) = UNSET


class ClusterFile(Struct, forbid_unknown_fields=True):
    """A tree of groups with devices as leaves; ranks count these from the first to the last."""

    format: Annotated[str, Meta(extra_json_schema={"const": FORMAT})]
    root: GroupEntry
    fingerprint: (
        Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="of the hardware that was measured")] | UnsetType
    ) = UNSET
    collectives: (
        Annotated[
            dict[_Collective, CollectiveEntry],
            Meta(description="by kind and implementation; those that are absent follow from the links"),
        ]
        | UnsetType
    ) = UNSET
    overlap: (
        Annotated[_Part, Meta(description="part of communication that hides behind computation; if absent, 0")]
        | UnsetType
    ) = UNSET
    interference: (
        Annotated[_Part, Meta(description="of that, the part by which computation takes longer; if absent, 0")]
        | UnsetType
    ) = UNSET
    contention: (
        Annotated[_NotNegative, Meta(description="seconds that a collective takes longer then; if absent, 0")]
        | UnsetType
    ) = UNSET

"""The file format ``hap-cluster-1``: JSON, exactly what ``rust/cluster.rs`` reads, checked field by field."""

from __future__ import annotations

import json
from typing import Any

from hap.cluster.cluster import Cluster
from hap.cluster.device import Device, is_element_type, points_of
from hap.cluster.figures import digest, not_negative, part, positive
from hap.cluster.link import COLLECTIVES, CollectiveCost, Link
from hap.errors import ClusterError

FORMAT = "hap-cluster-1"


def encode(cluster: Cluster, *, indent: int | None = None) -> str:
    """The cluster as JSON; on one line unless an indent is given."""
    content = {
        "format": FORMAT,
        "root": _write_group(cluster),
        "collectives": {name: _write_cost(cost) for name, cost in cluster.collectives.items()},
        "overlap": cluster.overlap,
        **({"interference": cluster.interference} if cluster.interference else {}),
        **({"contention": cluster.contention} if cluster.contention else {}),
        **({} if cluster.fingerprint is None else {"fingerprint": cluster.fingerprint}),
    }
    return json.dumps(content, indent=indent, allow_nan=False)


def decode(text: str | bytes, source: str) -> Cluster:
    """The cluster that the text describes.

    Raises:
        ClusterError: names ``source``, the path of the field (``root.members[1].device.memory``) and what was expected.
    """
    if not isinstance(text, (str, bytes)):
        raise ClusterError(f"{source}: expected JSON as text, got {type(text).__name__}")
    try:
        content = json.loads(text, object_pairs_hook=_once)
    except ClusterError as error:
        raise ClusterError(f"{source}: {error}") from error
    except ValueError as error:
        raise ClusterError(f"{source}: not valid JSON: {error}") from error
    except RecursionError as error:
        raise ClusterError(f"{source}: nested too deeply") from error
    try:
        return _read_cluster(content)
    except ClusterError as error:
        raise ClusterError(f"{source}: {error}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON in which each name stands once: of two values, none would be sure to be meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ClusterError(f'"{twice}" stands twice in one object')
    return found


def _write_group(cluster: Cluster) -> dict[str, Any]:
    return {
        "link": _write_link(cluster.link),
        "members": [
            {"group": _write_group(member)} if isinstance(member, Cluster) else {"device": _write_device(member)}
            for member in cluster.members
        ],
    }


def _write_link(link: Link) -> dict[str, Any]:
    figures: dict[str, Any] = {"bandwidth": link.bandwidth, "latency": link.latency}
    named = {} if link.name is None else {"name": link.name}
    return figures | named | ({"assumed": True} if link.assumed else {})


def _write_device(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "flops": device.flops,
        "memory_bandwidth": device.memory_bandwidth,
        "memory": device.memory,
        **({"reserve": device.reserve} if device.reserve else {}),
        "launch_overhead": device.launch_overhead,
        **({"measured": device.measured} if device.measured else {}),
    }


def _write_cost(cost: CollectiveCost) -> dict[str, float]:
    figures = {"latency": cost.latency, "bandwidth": cost.bandwidth}
    return figures if cost.error is None else figures | {"error": cost.error}


def _read_cluster(value: object) -> Cluster:
    # The version first: a file of another version should not be reported as one of this version with odd fields.
    if isinstance(value, dict) and value.get("format", FORMAT) != FORMAT:
        raise ClusterError(f'format: expected "{FORMAT}", got {value["format"]!r}')
    optional = ("collectives", "overlap", "interference", "contention", "fingerprint")
    content = _object(value, "", required=("format", "root"), optional=optional)
    root = _read_group(content["root"], "root")
    figures = {name: part(content.get(name, 0.0), name) for name in ("overlap", "interference")}
    figures["contention"] = not_negative(content.get("contention", 0.0), "contention")
    collectives = _object(content.get("collectives", {}), "collectives", optional=COLLECTIVES)
    costs = {name: _read_cost(entry, f"collectives.{name}") for name, entry in collectives.items()}
    mark = digest(content["fingerprint"], "fingerprint") if "fingerprint" in content else None
    return Cluster(root.members, link=root.link, **figures, collectives=costs, fingerprint=mark)


def _read_cost(value: object, path: str) -> CollectiveCost:
    entry = _object(value, path, required=("latency", "bandwidth"), optional=("error",))
    return CollectiveCost(
        latency=not_negative(entry["latency"], f"{path}.latency"),
        bandwidth=positive(entry["bandwidth"], f"{path}.bandwidth"),
        error=not_negative(entry["error"], f"{path}.error") if "error" in entry else None,
    )


def _read_group(value: object, path: str) -> Cluster:
    group = _object(value, path, required=("link", "members"))
    members = group["members"]
    if not isinstance(members, list) or not members:
        raise ClusterError(f"{path}.members: expected a list of at least one member, got {_shown(members)}")
    return Cluster(
        [_read_member(member, f"{path}.members[{position}]") for position, member in enumerate(members)],
        link=_read_link(group["link"], f"{path}.link"),
    )


def _read_link(value: object, path: str) -> Link:
    link = _object(value, path, required=("bandwidth", "latency"), optional=("name", "assumed"))
    name, assumed = link.get("name"), link.get("assumed", False)
    if "name" in link and not isinstance(name, str):
        raise ClusterError(f"{path}.name: expected a string, got {_shown(name)}")
    if not isinstance(assumed, bool):
        raise ClusterError(f"{path}.assumed: expected true or false, got {_shown(assumed)}")
    return Link(
        name,
        bandwidth=positive(link["bandwidth"], f"{path}.bandwidth"),
        latency=not_negative(link["latency"], f"{path}.latency"),
        assumed=assumed,
    )


def _read_member(value: object, path: str) -> Device | Cluster:
    member = _object(value, path, optional=("device", "group"))
    if len(member) != 1:
        raise ClusterError(f'{path}: expected exactly one of "device" and "group", got {_shown(value)}')
    if "group" in member:
        return _read_group(member["group"], f"{path}.group")
    return _read_device(member["device"], f"{path}.device")


def _read_device(value: object, path: str) -> Device:
    required = ("name", "flops", "memory_bandwidth", "memory", "launch_overhead")
    device = _object(value, path, required=required, optional=("reserve", "measured"))
    if not isinstance(device["name"], str):
        raise ClusterError(f"{path}.name: expected a string, got {_shown(device['name'])}")
    flops, measured = device["flops"], device.get("measured", {})
    if not isinstance(measured, dict):
        raise ClusterError(f"{path}.measured: expected an object of points by family, got {_shown(measured)}")
    if not isinstance(flops, dict) or "default" not in flops:
        raise ClusterError(
            f'{path}.flops: expected an object of FLOP/s by element type with an entry "default", got {_shown(flops)}'
        )
    for name in flops:
        if not is_element_type(name):
            raise ClusterError(f'{path}.flops.{name}: unknown; expected "default" or an element type such as "float32"')
    memory = positive(device["memory"], f"{path}.memory")
    reserve = not_negative(device.get("reserve", 0.0), f"{path}.reserve")
    if reserve >= memory:
        raise ClusterError(f"{path}.reserve: expected less than its memory, {memory:g} bytes, got {reserve:g}")
    return Device(
        device["name"],
        flops={name: positive(rate, f"{path}.flops.{name}") for name, rate in flops.items()},
        memory_bandwidth=positive(device["memory_bandwidth"], f"{path}.memory_bandwidth"),
        memory=memory,
        reserve=reserve,
        launch_overhead=not_negative(device["launch_overhead"], f"{path}.launch_overhead"),
        measured={name: points_of(name, points, f"{path}.measured.{name}") for name, points in measured.items()},
    )


def _object(
    value: object, path: str, *, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """``value`` as an object with these fields and no others."""
    if not isinstance(value, dict):
        raise ClusterError(f"{path or 'top level'}: expected an object, got {_shown(value)}")
    prefix = f"{path}." if path else ""
    expected = ", ".join(required + optional)
    for field in value:
        if field not in required and field not in optional:
            raise ClusterError(f"{prefix}{field}: unknown field; expected {expected}")
    for field in required:
        if field not in value:
            raise ClusterError(f"{prefix}{field}: missing; expected {expected}")
    return value


def _shown(value: object) -> str:
    """A value from a file, shortened to fit into a message."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

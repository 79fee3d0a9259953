"""The machines at hand: a tree of clusters with devices as leaves."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from hap.cluster.accelerators import ACCELERATORS, canonical_name
from hap.cluster.device import Device
from hap.cluster.figures import digest, not_negative, part
from hap.cluster.link import COLLECTIVES, CollectiveCost, Link
from hap.errors import ClusterError
from hap.files import write_whole

_log = logging.getLogger("hap")


@dataclass(frozen=True, slots=True, init=False)
class Cluster:
    """Devices, or clusters of them, that are joined by one link.

    Ranks count the devices from left to right::

        Cluster(["V100", "V100", "P100"], link=Link(bandwidth=1.25e9, latency=5e-5))
        Cluster([Cluster(["A100-80GB"] * 4, link="NVLink 3"), Cluster(["T4"] * 2, link="PCIe 3")], link="10GbE")

    Attributes:
        members: the devices and clusters, in rank order.
        link: what joins them.
        overlap: share of communication that hides behind computation, 0 to 1: what the runtime does.
        interference: of that share, the part by which computation takes longer meanwhile, 0 to 1, as measured.
        contention: seconds by which a collective takes longer where computation goes on meanwhile, as measured.
        collectives: measured costs of collectives over the whole cluster, by ``kind/implementation``
            (:data:`hap.cluster.COLLECTIVES`); the others are derived from the links.
        fingerprint: of the hardware that it was measured on, as :func:`hap.profile` makes it: SHA-256, in hexadecimal
            digits. ``None`` where nobody has measured it as a whole. Plans do not depend on it.
    """

    members: tuple[Device | Cluster, ...]
    link: Link
    overlap: float = 0.0
    interference: float = 0.0
    contention: float = 0.0
    collectives: dict[str, CollectiveCost] = field(default_factory=dict)
    fingerprint: str | None = None

    def __init__(
        self,
        members: Iterable[str | Device | Cluster],
        *,
        link: str | Link | None = None,
        overlap: float = 0.0,
        interference: float = 0.0,
        contention: float = 0.0,
        collectives: Mapping[str, CollectiveCost] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        """Builds the tree; names are looked up as by :class:`hap.Device` and :class:`hap.Link`.

        Without ``link`` one is assumed: between devices, which stand in one host then, the slowest one's PCIe without
        peer-to-peer; between hosts 10 Gbit/s Ethernet. The log and the plan say so. Members that are clusters lose
        their fingerprint, which was that of a whole.

        Raises:
            ClusterError: no members, one of a wrong type, an unknown name, or a figure out of its range.
        """
        # Of a mapping only the keys would count, and a set has no order.
        single = isinstance(members, (str, bytes, Device, Cluster, Mapping, Set))
        if single or not isinstance(members, Iterable):
            raise ClusterError(f"Cluster: expected a list of devices, names or clusters, got {members!r}")
        leaves = tuple(_member(member, rank) for rank, member in enumerate(members))
        if not leaves:
            raise ClusterError("Cluster: expected at least one device, got none")
        if isinstance(link, str):
            link = Link(link)
        elif link is None:
            link = _assumed(leaves)
            if len(leaves) > 1:
                _log.info(
                    "no link given for %d members: assuming %s, %g B/s and %g s of latency",
                    len(leaves),
                    link.name,
                    link.bandwidth,
                    link.latency,
                )
        if not isinstance(link, Link):
            raise ClusterError(f"Cluster: link: expected a hap.Link or a known one's name, got {link!r}")
        object.__setattr__(self, "members", leaves)
        object.__setattr__(self, "link", link)
        object.__setattr__(self, "overlap", part(overlap, "Cluster: overlap"))
        object.__setattr__(self, "interference", part(interference, "Cluster: interference"))
        object.__setattr__(self, "contention", not_negative(contention, "Cluster: contention"))
        object.__setattr__(self, "collectives", _collectives({} if collectives is None else collectives))
        mark = None if fingerprint is None else digest(fingerprint, "Cluster: fingerprint")
        object.__setattr__(self, "fingerprint", mark)

    @classmethod
    def of(cls, devices: Cluster | Iterable[str | Device | Cluster]) -> Cluster:
        """The cluster that ``devices`` means: a cluster as it is, or a list of names, devices and clusters."""
        return devices if isinstance(devices, Cluster) else cls(devices)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices in rank order."""
        return tuple(
            device
            for member in self.members
            for device in (member.devices if isinstance(member, Cluster) else (member,))
        )

    @property
    def hidden(self) -> float:
        """Share of communication's time in which computation goes on."""
        return self.overlap * (1.0 - self.interference)

    @property
    def links(self) -> tuple[Link, ...]:
        """The links that join more than one member, the outermost first."""
        inner = (link for member in self.members if isinstance(member, Cluster) for link in member.links)
        return (*((self.link,) if len(self.members) > 1 else ()), *inner)

    def without(self, ranks: Iterable[int]) -> Cluster:
        """The cluster without some of its devices; those that stay keep their order. Fewer have no fingerprint.

        Measured costs of collectives stay. They count the bytes that the slowest rank moves, which are fewer then, with
        the latency and the bandwidth that all had together: fewer devices are no slower, and may be faster. But where
        only one of the clusters stays that the outermost link has joined, that link's collectives say nothing of those
        inside, whose costs follow from its own link then.

        Raises:
            ClusterError: a rank is not that of a device, or no device stays.
        """
        removed = frozenset(ranks)
        if odd := removed - set(range(len(self.devices))):
            raise ClusterError(f"Cluster.without: expected ranks from 0 to {len(self.devices) - 1}, got {sorted(odd)}")
        if len(removed) == len(self.devices):
            raise ClusterError("Cluster.without: expected at least one device to stay, got all of them")
        members, first = list[Device | Cluster](), 0
        for member in self.members:
            count = len(member.devices) if isinstance(member, Cluster) else 1
            inside = {rank - first for rank in removed if first <= rank < first + count}
            first += count
            if len(inside) < count:
                members.append(member.without(inside) if isinstance(member, Cluster) else member)
        left = replace(self, members=tuple(members), fingerprint=None if removed else self.fingerprint)
        return left if left._depth == self._depth else replace(left, collectives={})

    @property
    def _depth(self) -> int:
        """How many clusters of one member there are around the outermost link that joins several."""
        (first, *others) = self.members
        return 1 + first._depth if isinstance(first, Cluster) and not others else 0

    def with_devices(self, devices: Iterable[Device]) -> Cluster:
        """The cluster with other devices, in rank order, in place of its own; all else stays.

        Raises:
            ClusterError: they are not as many.
        """
        given = tuple(devices)
        if len(given) != len(self.devices):
            raise ClusterError(f"Cluster.with_devices: expected {len(self.devices)} devices, got {len(given)}")
        others = iter(given)

        def changed(cluster: Cluster) -> Cluster:
            members = (changed(each) if isinstance(each, Cluster) else next(others) for each in cluster.members)
            return replace(cluster, members=tuple(members))

        return changed(self)

    def to_json(self) -> str:
        """The cluster in the format ``hap-cluster-1``; equal clusters give equal text."""
        from hap.cluster import file

        return file.encode(self)

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str = "cluster") -> Cluster:
        """The cluster that :meth:`to_json` wrote; ``source`` names it in errors.

        Raises:
            ClusterError: names the field and what was expected there.
        """
        from hap.cluster import file

        return file.decode(text, source)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the cluster in one step, as indented JSON. Raises ``OSError`` where that cannot be written."""
        from hap.cluster import file

        write_whole(path, file.encode(self, indent=2) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cluster:
        """Reads a cluster from a file that :meth:`save` or a person wrote.

        Raises:
            ClusterError: the file cannot be read, or a field is missing, unknown or out of its range.
        """
        try:
            name = f"cluster file {os.fspath(path)}"
        except TypeError as error:
            raise ClusterError(f"Cluster.load: expected a path, got {path!r}") from error
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise ClusterError(f"{name}: {error.strerror or error}") from error
        return cls.from_json(text, source=name)


def _member(member: object, position: int) -> Device | Cluster:
    if isinstance(member, str):
        return Device(member)
    if isinstance(member, Cluster):
        if member.collectives or member.overlap or member.interference or member.contention:
            raise ClusterError(
                f"Cluster: member {position}: collectives, overlap, interference and contention "
                "belong to the outermost cluster"
            )
        return replace(member, fingerprint=None)
    if isinstance(member, Device):
        return member
    raise ClusterError(
        f"Cluster: member {position}: expected a device, an accelerator's name or a cluster, got {member!r}"
    )


def _assumed(members: tuple[Device | Cluster, ...]) -> Link:
    """The link where none is given: PCIe as old as the oldest of the devices, or a network between hosts."""
    if any(isinstance(member, Cluster) for member in members):
        return Link("10GbE", assumed=True)
    names = [canonical_name(member.name) for member in members if isinstance(member, Device)]
    generation = min(3 if name is None else ACCELERATORS[name].pcie for name in names)
    return Link(f"PCIe {generation}", assumed=True)


def _collectives(collectives: object) -> dict[str, CollectiveCost]:
    if not isinstance(collectives, Mapping):
        raise ClusterError(f"Cluster: collectives: expected a mapping from names to costs, got {collectives!r}")
    for name, cost in collectives.items():
        if name not in COLLECTIVES:
            raise ClusterError(f'Cluster: collectives: unknown "{name}"; expected one of {", ".join(COLLECTIVES)}')
        if not isinstance(cost, CollectiveCost):
            raise ClusterError(f'Cluster: collectives["{name}"]: expected a hap.cluster.CollectiveCost, got {cost!r}')
    return dict(sorted(collectives.items()))

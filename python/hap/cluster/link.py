"""Links between devices, known and measured, and measured collectives.

Rates of known links are the wire's, of one device and in one direction: the PCI Express Base Specification for 16
lanes, NVIDIA's data sheets for NVLink, and for networks the number in the name. Where devices cannot reach each other
over PCIe, as consumer cards, each byte crosses the bus twice, through the host's memory. Latencies are typical ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from hap.cluster.figures import not_negative, positive
from hap.cluster.spelling import nearest
from hap.errors import ClusterError


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Link:
    """A link between the members of a cluster: sending takes ``latency + bytes / bandwidth`` seconds.

    Either a known link by its name, ``Link("10GbE")``, whose figures may be overridden, or figures alone,
    ``Link(bandwidth=1.25e9, latency=5e-5)``.

    Attributes:
        bandwidth: bytes per second of each member, each way.
        latency: seconds until the first byte arrives.
        name: for people; a known link's name in its usual spelling.
        assumed: whether nobody said that it is there.
    """

    bandwidth: float
    latency: float
    name: str | None
    assumed: bool

    def __init__(
        self,
        name: str | None = None,
        *,
        bandwidth: float | None = None,
        latency: float | None = None,
        assumed: bool = False,
    ) -> None:
        """Looks a name up in :data:`hap.cluster.LINKS`, or takes the figures given.

        Raises:
            ClusterError: the name is not known and a figure is missing, the bandwidth is not a finite number above 0,
                or the latency not one of at least 0.
        """
        if name is not None and not isinstance(name, str):
            raise ClusterError(f"Link: expected a name, got {name!r}")
        if not isinstance(assumed, bool):
            raise ClusterError(f"Link: assumed: expected True or False, got {assumed!r}")
        known = None if name is None else _SPELLINGS.get(_squeezed(name))
        if known is not None:
            bandwidth = LINKS[known][0] if bandwidth is None else bandwidth
            latency = LINKS[known][1] if latency is None else latency
        given = {"bandwidth": bandwidth, "latency": latency}
        missing = [figure for figure, value in given.items() if value is None]
        if missing and name is not None:
            raise ClusterError(_unknown(name, missing))
        if missing:
            raise ClusterError(f"Link: {', '.join(missing)} missing; give a known link's name, or both figures")
        object.__setattr__(self, "bandwidth", positive(bandwidth, "Link: bandwidth"))
        object.__setattr__(self, "latency", not_negative(latency, "Link: latency"))
        object.__setattr__(self, "name", known or name)
        object.__setattr__(self, "assumed", assumed)

    def __repr__(self) -> str:
        known = self.name is not None and self.name in LINKS and LINKS[self.name] == (self.bandwidth, self.latency)
        parts = [] if self.name is None else [f'"{self.name}"']
        parts += [] if known else [f"bandwidth={self.bandwidth!r}", f"latency={self.latency!r}"]
        parts += ["assumed=True"] * self.assumed
        return f"Link({', '.join(parts)})"


LINKS: dict[str, tuple[float, float]] = {
    "PCIe 3": (15.75e9 / 2, 2e-5),
    "PCIe 4": (31.5e9 / 2, 2e-5),
    "PCIe 5": (63e9 / 2, 2e-5),
    "PCIe 3 peer-to-peer": (15.75e9, 1e-5),
    "PCIe 4 peer-to-peer": (31.5e9, 1e-5),
    "PCIe 5 peer-to-peer": (63e9, 1e-5),
    "NVLink 2": (150e9, 5e-6),
    "NVLink 3": (300e9, 5e-6),
    "NVLink 4": (450e9, 5e-6),
    "NVLink 5": (900e9, 5e-6),
    "1GbE": (1e9 / 8, 1e-4),
    "10GbE": (10e9 / 8, 5e-5),
    "25GbE": (25e9 / 8, 5e-5),
    "100GbE": (100e9 / 8, 2e-5),
    "200GbE": (200e9 / 8, 2e-5),
    "400GbE": (400e9 / 8, 2e-5),
    "InfiniBand EDR": (100e9 / 8, 5e-6),
    "InfiniBand HDR": (200e9 / 8, 5e-6),
    "InfiniBand NDR": (400e9 / 8, 5e-6),
}
"""Bytes per second and seconds of latency by name. PCIe without peer-to-peer unless the name says so, 16 lanes."""


def _squeezed(name: str) -> str:
    plain = "".join(character for character in name.lower().replace(".0", "") if character.isalnum())
    for long, short in (("peertopeer", "p2p"), ("gigabit", "gb"), ("gbit", "gb"), ("ethernet", "e"), ("gen", "")):
        plain = plain.replace(long, short)
    return plain


_SPELLINGS = {_squeezed(name): name for name in LINKS}


def _unknown(name: str, missing: list[str]) -> str:
    near = nearest(_squeezed(name), _SPELLINGS, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "hap devices lists the known ones."
    return f'"{name}" is not a known link: {hint} For any other give its figures too (missing: {", ".join(missing)}).'


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCost:
    """Measured cost of one collective over the whole cluster: ``latency + bytes / bandwidth`` seconds.

    Attributes:
        latency: seconds for nothing.
        bandwidth: bytes per second, of the bytes that the slowest rank moves.
        error: how far the measured times are off this line: root mean square, as a fraction. ``None`` where nobody has
            measured. For people: plans do not depend on it.

    Raises:
        ClusterError: the bandwidth is not a finite number above 0, or another figure not one of at least 0.
    """

    latency: float
    bandwidth: float
    error: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "latency", not_negative(self.latency, "CollectiveCost: latency"))
        object.__setattr__(self, "bandwidth", positive(self.bandwidth, "CollectiveCost: bandwidth"))
        if self.error is not None:
            object.__setattr__(self, "error", not_negative(self.error, "CollectiveCost: error"))


COLLECTIVES = (
    "all_gather/exchange",
    "all_gather/grouped",
    "all_gather/padded",
    "all_reduce/builtin",
    "all_to_all/exchange",
    "reduce_scatter/exchange",
    "reduce_scatter/grouped",
    "reduce_scatter/padded",
)
"""Every collective with its implementation, as programs and cluster files name them."""

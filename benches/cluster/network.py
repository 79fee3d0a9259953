"""A network namespace for each host, joined by a switch, with links of limited rate (``tc tbf``). Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from benches.cluster.layout import Host

INTERFACE = "eth0"
# Large packets cost less of the processors; a burst is what passes at once.
PACKET, BURST = 9000, 64 * 1024
# Bytes that wait at a link at most: nothing is dropped of what TCP has under way.
QUEUE = 32 * 1024 * 1024


def possible() -> bool:
    """Whether namespaces can be made here."""
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "nsenter")))


def address(host: int) -> str:
    """Of a host, within the namespaces."""
    return f"10.213.0.{host + 1}"


def namespace(name: str, host: int) -> str:
    """The name of a host's namespace."""
    return f"{name}-host{host}"


def inside(name: str, host: int) -> list[str]:
    """What to write before a command that is to run in a host's namespace."""
    # "ip netns exec" would hide the control groups.
    return ["nsenter", f"--net=/run/netns/{namespace(name, host)}"]


def build(name: str, hosts: Sequence[Host]) -> None:
    """Makes the namespaces of the cluster ``name``; all else lies in these, and goes with them."""
    switch = f"{name}-switch"
    _call("ip", "netns", "add", switch)
    _call("ip", "-n", switch, "link", "add", "name", "bridge0", "mtu", str(PACKET), "type", "bridge")
    _call("ip", "-n", switch, "link", "set", "bridge0", "up")
    for number, host in enumerate(hosts):
        inside, port = namespace(name, number), f"port{number}"
        _call("ip", "netns", "add", inside)
        ends = ("type", "veth", "peer", "name", port, "netns", switch, "mtu", str(PACKET))
        _call("ip", "link", "add", "name", INTERFACE, "netns", inside, "mtu", str(PACKET), *ends)
        _call("ip", "-n", switch, "link", "set", port, "master", "bridge0", "up")
        _call("ip", "-n", inside, "addr", "add", f"{address(number)}/24", "dev", INTERFACE)
        for device in (INTERFACE, "lo"):
            _call("ip", "-n", inside, "link", "set", device, "up")
        for where, device in ((inside, INTERFACE), (switch, port)):
            rate = f"{round(8 * host.bandwidth)}bit"
            limits = ("tbf", "rate", rate, "burst", str(BURST), "limit", str(QUEUE))
            _call("tc", "-n", where, "qdisc", "add", "dev", device, "root", *limits)


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")

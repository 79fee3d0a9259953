"""Runs a command under torchrun on a cluster of unequal devices that this machine emulates.

    python -m benches.cluster.emulate cluster.json -- python train.py

Every member of the cluster file's outermost cluster is a host: a network namespace with a link of the file's rate to
the others. Within a host nothing slows what is sent. Every device is a process with one thread on one processor, of
which it gets a share: the shares are in proportion to the devices' FLOP/s, as large as the processors allow at once.
Its memory is the file's. Without root the shares are made by signals, and neither links nor memory are limited: it says
so. All that it makes bears its name and is removed when it ends, however it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benches.cluster import enter, network, processors
from benches.cluster.layout import Host, Share, hosts, shares
from benches.cluster.leftovers import MARK, folder_of, kill, name_of, remove_orphans

import hap

ROOT = Path(__file__).parents[2]
PORT = 29500
# Seconds in which the other hosts may end by themselves, once one has failed.
GRACE = 2.0


class EmulationError(RuntimeError):
    """The command failed on the cluster, or took too long."""


class MemoryOverrunError(EmulationError):
    """Ranks needed more memory than their devices have."""


@dataclass(frozen=True, slots=True)
class Emulated:
    """A cluster that stands.

    Attributes:
        name: all that belongs to it begins so.
        hosts: the devices of each.
        shares: of processors, by rank.
        networked: whether hosts have links of their own.
        controlled: whether control groups limit processors and memory.
        places: what :mod:`benches.cluster.enter` needs to know.
    """

    name: str
    hosts: tuple[Host, ...]
    shares: tuple[Share, ...]
    networked: bool
    controlled: bool
    places: str

    def run(self, command: Sequence[str], *, timeout: float, output: int | None = None) -> None:
        """Runs a command on every rank, under torchrun on every host; its output goes to ours, or to ``output``.

        Raises:
            EmulationError: it failed on a rank, or took longer than so many seconds.
        """
        agents = [
            subprocess.Popen(
                self._agent(number, command), env=self._environment(), stdin=subprocess.DEVNULL, stdout=output
            )
            for number in range(len(self.hosts))
        ]
        deadline = time.monotonic() + timeout
        try:
            while any(agent.poll() is None for agent in agents):
                if any(agent.poll() for agent in agents):
                    deadline = min(deadline, time.monotonic() + GRACE)
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            failed = [number for number, agent in enumerate(agents) if agent.poll()]
            if self.controlled and (ranks := processors.overruns(self.name, len(self.shares))):
                named = ", ".join(map(str, ranks))
                raise MemoryOverrunError(f"the memory of rank {named} was too small: it was killed")
            if failed:
                raise EmulationError(f"the command failed on host {', '.join(map(str, failed))}")
            if any(agent.poll() is None for agent in agents):
                raise EmulationError(f"the command took longer than {timeout:.0f} seconds")
        finally:
            # Those that have failed or take too long would wait for each other.
            kill(self.name)
            for agent in agents:
                agent.wait()

    def _agent(self, number: int, command: Sequence[str]) -> list[str]:
        """The torchrun of one host."""
        inside = network.inside(self.name, number) if self.networked else []
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(self.hosts)}"]
        torchrun += [f"--node-rank={number}", f"--nproc-per-node={len(self.hosts[number].ranks)}"]
        address, port = (network.address(0), PORT) if self.networked else ("127.0.0.1", _free_port(self.name))
        torchrun += [f"--master-addr={address}", f"--master-port={port}", "--no-python"]
        return [*inside, *torchrun, sys.executable, enter.__file__, *command]

    def _environment(self) -> dict[str, str]:
        paths = [str(ROOT), str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            MARK: self.name,
            enter.PLACES: self.places,
            "GLOO_SOCKET_IFNAME": network.INTERFACE if self.networked else "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(paths),
        }


@contextlib.contextmanager
def emulated(cluster: hap.Cluster) -> Iterator[Emulated]:
    """The cluster, for as long as the context lasts, and no longer whatever happens: another process sees to it."""
    for orphan in remove_orphans():
        say(f"removed {orphan}, which was left behind")
    name = name_of(os.getpid())
    layout = hosts(cluster)
    parts = shares([device.flops["default"] for device in cluster.devices], sorted(os.sched_getaffinity(0)))
    networked, controlled = network.possible() and len(layout) > 1, processors.controlled()
    command = [sys.executable, "-m", "benches.cluster.leftovers", name]
    remover = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True)
    stopper = None
    try:
        folder = folder_of(name)
        folder.mkdir()
        if networked:
            network.build(name, layout)
        elif len(layout) > 1:
            say("network namespaces need root, ip, tc and nsenter: links are not limited")
        files: Sequence[tuple[Path, str | None]]
        if controlled:
            files = processors.make_groups(name, parts, [device.memory for device in cluster.devices])
        else:
            say("control groups (version 1) need root: processes are slowed by signals, their memory is not limited")
            files = [(folder / f"rank{rank}", None) for rank in range(len(parts))]
            stopper = processors.Stopper(folder, parts)
            stopper.start()
        entries = [(part.processor, str(file), limit) for part, (file, limit) in zip(parts, files, strict=True)]
        yield Emulated(name, layout, tuple(parts), networked, controlled, json.dumps(entries))
    finally:
        if stopper is not None:
            stopper.ended.set()
            stopper.join()
        assert remover.stdin is not None, "it was asked for"
        remover.stdin.close()
        remover.wait()


def say(text: str) -> None:
    """Tells the user, who may read the command's output elsewhere."""
    sys.stderr.write(f"emulate: {text}\n")


def _free_port(name: str) -> int:
    """A port of this machine that nobody uses; the same for all hosts of a cluster."""
    file = folder_of(name) / "port"
    if not file.exists():
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            file.write_text(str(listener.getsockname()[1]))
    return int(file.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs a command under torchrun on an emulated cluster.")
    parser.add_argument("cluster", help="a cluster file (hap.Cluster.save)")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds until the command is stopped")
    parser.add_argument("command", nargs="+", help="what each rank runs, behind --")
    options = parser.parse_args()
    with emulated(hap.Cluster.load(options.cluster)) as cluster:
        for rank, share in enumerate(cluster.shares):
            say(f"rank {rank}: {share.part:.0%} of processor {share.processor}")
        try:
            cluster.run(options.command, timeout=options.timeout)
        except EmulationError as error:
            say(str(error))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

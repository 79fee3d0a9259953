"""Says which ranks are missing when a collective has failed: every rank answers where it is, on a socket of its own.

The backend knows little: gloo names a socket, or says that time is up. Asking costs nothing until then, as the thread
that answers sleeps. It does not need the process group's store, which ends with rank 0.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
import sysconfig
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from hap.errors import CommunicationError
from hap.units import ranks_text

if TYPE_CHECKING:
    from hap.runtime.agree import Control

logger = logging.getLogger("hap")

ANSWER_WITHIN, FIRST_ANSWER_WITHIN = 5.0, 30.0
"""Seconds that a rank has to answer in; at first ranks may be slow, as they start."""

_AT: dict[int, str] = {}
"""The collectives that this process is in, by thread."""

_NOT_USERS = (
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(__file__).parents[1]),
    "<",
)


def entering(name: str) -> None:
    """Note that this thread begins a collective."""
    _AT[threading.get_ident()] = name


def leaving() -> None:
    """Note that it has ended."""
    _AT.pop(threading.get_ident(), None)


def failed(name: str, rank: int, size: int, error: Exception, hint: str = "") -> CommunicationError:
    """The error for a collective that failed on this rank, which says where the other ranks are."""
    found = "" if _WATCH is None else _WATCH.ask()
    _AT[threading.get_ident()] = f"{name}, which failed"
    text = f"{name} failed on rank {rank} of ranks 0 to {size - 1}: {str(error).rstrip('.')}."
    asked = found and f"The other ranks, when asked: {found}"
    advice = "Most often another rank has stopped: look for the first error among all ranks."
    return CommunicationError(" ".join(filter(None, (text, asked, advice, hint))))


def whereabouts() -> str:
    """The collective that this process is in, or else the user's line that its main thread is at."""
    collectives = list(_AT.values())
    if collectives:
        return f"in {' and '.join(collectives)}"
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    lines = traceback.extract_stack(frame)[::-1] if frame is not None else []
    if not lines:
        return "in no collective"
    line = next((one for one in lines if not one.filename.startswith(_NOT_USERS)), lines[0])
    return f"in no collective, but at {line.filename}:{line.lineno}, {line.name}: {line.line}"


class Watch:
    """The ranks of a job, to be asked where they are. Made by all ranks together."""

    def __init__(self, control: Control) -> None:
        self.rank, self.size = control.rank, control.size
        address = _own_address()
        self.server = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        self.secret: bytes = control.settle(lambda: secrets.token_bytes(16), "agreeing on a word")
        self.addresses: list[tuple[str, int]] = control.gather(self.server.getsockname()[:2], "exchanging addresses")
        threading.Thread(target=self._answer, name="hap-failure", daemon=True).start()
        # What a host takes for its address may lead elsewhere on another.
        reached = control.gather(self._reaches((self.rank + 1) % self.size), "trying the ranks' addresses")
        self.trusted = all(reached)
        if not self.trusted and self.rank == 0:
            unreached = [(rank + 1) % self.size for rank, good in enumerate(reached) if not good]
            logger.warning(
                "%s cannot be reached by another rank, so that errors of collectives will not say where the ranks are: "
                "MASTER_ADDR must be an address by which all hosts know one, and ports between them open",
                ranks_text(unreached),
            )

    def close(self) -> None:
        """Answer no longer."""
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)  # else the thread waits on, and keeps the port
        self.server.close()

    def ask(self) -> str:
        """Where the other ranks are, in words; empty where they cannot be asked."""
        if not self.trusted:
            return ""
        others = [rank for rank in range(self.size) if rank != self.rank]
        with ThreadPoolExecutor(32) as pool:
            answers = dict(zip(others, pool.map(self._ask, others), strict=True))
        together: dict[str, list[int]] = {}
        for rank, answer in answers.items():
            together.setdefault(answer, []).append(rank)
        # Those in a collective only wait for the others.
        texts = sorted(together.items(), key=lambda entry: entry[0].startswith("in ") and "in no" not in entry[0])
        return "; ".join(f"{ranks_text(ranks)}: {text}" for text, ranks in texts) + "."

    def _answer(self) -> None:
        """Answer, one rank after another, as long as the process lives."""
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(ANSWER_WITHIN)
                if secrets.compare_digest(connection.recv(len(self.secret)), self.secret):
                    connection.sendall(whereabouts().encode())

    def _ask(self, rank: int, limit: float = ANSWER_WITHIN) -> str:
        try:
            with socket.create_connection(self.addresses[rank], limit) as connection:
                connection.sendall(self.secret)
                answer = b""
                while part := connection.recv(4096):
                    answer += part
        except ConnectionRefusedError:
            return "its process has ended"
        except OSError:
            answer = b""
        return answer.decode() or f"no answer within {limit} s; it was killed, stands still, or is out of reach"

    def _reaches(self, rank: int) -> bool:
        return self._ask(rank, FIRST_ANSWER_WITHIN).startswith("in ")


_WATCH: Watch | None = None
_WATCHED: dist.ProcessGroup | None = None


def watch(control: Control) -> None:
    """From now on errors of collectives say where the other ranks are. A collective, the first time for a job."""
    global _WATCH, _WATCHED
    world = dist.group.WORLD if control.size > 1 else None
    if world is not None and world is not _WATCHED:
        if _WATCH is not None:
            _WATCH.close()
        _WATCH, _WATCHED = Watch(control), world


def _own_address() -> str:
    """The address by which other machines reach this one: that of the way to the process group's master."""
    master = os.environ.get("MASTER_ADDR") or socket.gethostname()
    try:
        family, *_, address = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"

"""A progress line for people who wait: only on a terminal, and only after a while."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType

_log = logging.getLogger("hap")

# Seconds before anything is shown.
PATIENCE = 2.0


class Progress:
    """Shows what planning is at, on standard error, if that is a terminal and it takes longer than two seconds."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._status: object | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()  # type: ignore[attr-defined]

    def update(self, text: str) -> None:
        """Planning has come to this."""
        _log.debug("planning: %s", text)
        if not sys.stderr.isatty() or time.monotonic() - self._started < PATIENCE:
            return
        if self._status is None:
            from rich.console import Console
            from rich.status import Status

            self._status = Status("hap: planning", console=Console(stderr=True))
            self._status.start()
        self._status.update(f"hap: planning, {text}")  # type: ignore[attr-defined]

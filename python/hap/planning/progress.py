"""A progress bar for people who wait: only on a terminal, and only after a while."""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType

from rich import progress as bars
from rich.console import Console

_log = logging.getLogger("hap")

# Seconds before anything is shown.
PATIENCE = 2.0
# Phases of planning, for the length of the bar: tracing, axes, baselines, up to four starts, the lower bound.
PHASES = 8


class Progress:
    """Shows the phase that planning is in, on standard error, if that is a terminal, after two seconds."""

    def __init__(self) -> None:
        self._bar = bars.Progress(
            bars.TextColumn("hap: {task.description}"),
            bars.BarColumn(),
            bars.TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("planning", total=PHASES)
        self._timer = threading.Timer(PATIENCE, self._bar.start)
        self._timer.daemon = True

    def __enter__(self) -> Progress:
        if sys.stderr is not None and sys.stderr.isatty():
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._timer.is_alive():
            # The timer may be just about to start the bar.
            self._timer.join()
        # Else rich would end the line of a bar that never was.
        if self._bar.live.is_started:
            self._bar.stop()

    def update(self, phase: str) -> None:
        """Planning has come to this phase."""
        _log.debug("planning: %s", phase)
        self._bar.update(self._task, description=phase, advance=1)

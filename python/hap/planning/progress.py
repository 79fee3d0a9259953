"""How far planning has come: a bar for people who wait, on a terminal and after a while, and reports for a callback."""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from rich import progress as bars
from rich.console import Console

from hap.errors import PlanError

_log = logging.getLogger("hap")

# Seconds before anything is shown.
PATIENCE = 2.0
# Phases of planning, for the length of the bar: tracing, axes, baselines, up to five starts, splits, split
# classes, fewer devices, the lower bound. Where fewer devices may be faster, starts to split classes come again for
# them; where memory is scarce, fewer devices come first, and memory before split classes.
PHASES = 12


@dataclass(frozen=True, slots=True)
class Report:
    """How far planning has come, for the callback of :func:`hap.plan`.

    A plan takes many syntheses; the numbers are those of the one that runs, and defaults between two.

    Attributes:
        phase: what is being done.
        bound: a lower bound, in priced seconds, of all programs; it only rises during a synthesis.
        cost: priced seconds of the best program so far; it only falls during a synthesis.
        work: table entries that the synthesis has visited.
        variables: decisions of it that are still open.
    """

    phase: str
    bound: float = -math.inf
    cost: float = math.inf
    work: int = 0
    variables: int = 0


class _Interruption(BaseException):
    """What a callback raised, on its way through code that handles errors of its own, maybe of the same kind."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(raised)
        self.raised = raised


class Progress:
    """Shows the phase that planning is in, on standard error, if that is a terminal, after two seconds.

    Args:
        callback: called with a :class:`Report` at each phase, and about every 20 ms during a synthesis; what it raises
            is raised from the ``with`` statement, whatever handles errors in it.

    Raises:
        PlanError: the callback cannot be called.
    """

    def __init__(self, callback: Callable[[Report], object] | None = None) -> None:
        if callback is not None and not callable(callback):
            raise PlanError(f"progress: expected a function of one report, or None, got {callback!r}")
        self.callback = callback
        self._phase = "planning"
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
        if isinstance(error, _Interruption):
            raise error.raised from error.raised.__cause__

    def update(self, phase: str) -> None:
        """Planning has come to this phase."""
        _log.debug("planning: %s", phase)
        self._bar.update(self._task, description=phase, advance=1)
        self._phase = phase
        self._report(Report(phase))

    def observe(self, bound: float, cost: float, work: int, variables: int) -> None:
        """A synthesis has come this far."""
        self._report(Report(self._phase, bound, cost, work, variables))

    def _report(self, report: Report) -> None:
        if self.callback is None:
            return
        try:
            self.callback(report)
        except BaseException as error:
            raise _Interruption(error) from error

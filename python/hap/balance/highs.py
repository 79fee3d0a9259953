"""Linear programs, solved by HiGHS."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import highspy
import numpy as np

from hap.balance.stages import Array, Marks, Numbers
from hap.errors import PlanError
from hap.files import write_whole

INFINITY = float("inf")
# Beyond so many rows the interior point method beats the simplex method (measured on 64 devices x 1000 stages).
INTERIOR_POINT_ROWS = 10_000
# The search for whole numbers ends at this relative gap, or after so many nodes (not seconds: plans repeat).
GAP, NODES = 1e-4, 1000


@dataclass(frozen=True, slots=True)
class LinearProgram:
    """Minimise ``cost @ x`` where ``lower <= x <= upper`` and ``row_lower <= matrix @ x <= row_upper``.

    The matrix is given by its entries: ``values`` at ``rows`` and ``columns``, in any order, no place twice.
    """

    cost: Array
    lower: Array
    upper: Array
    row_lower: Array
    row_upper: Array
    rows: Numbers
    columns: Numbers
    values: Array


class Solver:
    """Solves linear programs, each from the optimum of the one before where that has the same shape."""

    def __init__(self) -> None:
        self._highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self._highs.setOptionValue("output_flag", False)
        self._highs.setOptionValue("threads", 1)
        self._highs.setOptionValue("primal_feasibility_tolerance", 1e-9)
        self._highs.setOptionValue("dual_feasibility_tolerance", 1e-9)
        self._shape: tuple[int, int] | None = None

    def minimise(self, program: LinearProgram) -> tuple[Array, Array] | None:
        """Values of the columns and duals of the rows of the optimum; ``None`` where there is no feasible point.

        Raises:
            PlanError: the solver gives up.
        """
        highs, shape = self._highs, (len(program.cost), len(program.row_lower))
        basis = highs.getBasis() if shape == self._shape else None
        _pass(highs, program)
        highs.setOptionValue("solver", "ipm" if shape[1] > INTERIOR_POINT_ROWS else "simplex")
        if basis is not None:
            highs.setBasis(basis)
        highs.run()
        outcome = highs.getModelStatus()
        self._shape = shape if outcome == highspy.HighsModelStatus.kOptimal else None
        if outcome in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
            return None
        if outcome != highspy.HighsModelStatus.kOptimal:
            raise PlanError(
                f"the linear program of the shares was not solved: HiGHS says {highs.modelStatusToString(outcome)}"
            )
        solution = highs.getSolution()
        return np.array(solution.col_value), np.array(solution.row_dual)


def minimise_whole(program: LinearProgram, whole: Marks) -> Array | None:
    """Values of the columns where those marked are whole numbers.

    To within :data:`GAP` of the optimum, or the best that was found within :data:`NODES`; ``None`` where none was.
    """
    highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", 0)
    highs.setOptionValue("mip_rel_gap", GAP)
    highs.setOptionValue("mip_abs_gap", 0.0)
    highs.setOptionValue("mip_max_nodes", NODES)
    highs.setOptionValue("primal_feasibility_tolerance", 1e-9)
    highs.setOptionValue("mip_feasibility_tolerance", 1e-9)
    _pass(highs, program, whole)
    assert highs.run() != highspy.HighsStatus.kError, "the program is well-formed"
    if highs.getInfo().primal_solution_status != int(highspy.SolutionStatus.kSolutionStatusFeasible):
        return None
    return np.array(highs.getSolution().col_value)


def check_path(path: Path) -> None:
    """Raises ``PlanError`` where a file's name does not end in ``.lp``, which would be another format."""
    if path.suffix != ".lp":
        raise PlanError(f"the linear program is written in LP format, expected a file {path.stem}.lp, not {path.name}")


def write(
    program: LinearProgram, columns: Sequence[str], rows: Sequence[str], path: Path, notes: Sequence[str] = ()
) -> None:
    """Writes a program in LP format, in one step.

    Args:
        program: the program.
        columns: their names, which must differ and consist of letters, digits and ``_.``.
        rows: likewise.
        path: the file.
        notes: comments at its head, a line each.

    Raises:
        PlanError: the file cannot be written.
    """
    check_path(path)
    highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    _pass(highs, program)
    statuses = [highs.passColName(number, name) for number, name in enumerate(columns)]
    statuses += [highs.passRowName(number, name) for number, name in enumerate(rows)]
    # HiGHS crashes where it cannot open the file.
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "program.lp"
        # This warns where it leaves all names out, as it does where two are the same.
        statuses.append(highs.writeModel(str(written)))
        assert set(statuses) == {highspy.HighsStatus.kOk}, "the names are unique, and the file can be written"
        text = written.read_text(encoding="ascii")
    comments = (note.encode("ascii", "backslashreplace").decode() for note in notes)
    try:
        write_whole(path, "".join(f"\\ {' '.join(comment.split())}\n" for comment in comments) + text)
    except OSError as error:
        raise PlanError(f"the linear program cannot be written to {path}: {error}") from error


def _pass(highs: Any, program: LinearProgram, whole: Marks | None = None) -> None:
    order = np.argsort(program.rows, kind="stable")
    starts = np.searchsorted(program.rows[order], np.arange(len(program.row_lower)))
    status = highs.passModel(
        len(program.cost),
        len(program.row_lower),
        len(program.values),
        int(highspy.MatrixFormat.kRowwise),
        int(highspy.ObjSense.kMinimize),
        0.0,
        program.cost,
        program.lower,
        program.upper,
        program.row_lower,
        program.row_upper,
        starts.astype(np.int32),
        program.columns[order].astype(np.int32),
        program.values[order],
        np.zeros(len(program.cost), dtype=np.int32) if whole is None else whole.astype(np.int32),
    )
    assert status != highspy.HighsStatus.kError, "the linear program is malformed"

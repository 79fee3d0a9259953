"""One linear program, solved by HiGHS."""

from __future__ import annotations

from typing import Any

import highspy
import numpy as np
import numpy.typing as npt

from hap.errors import PlanError

Array = npt.NDArray[np.float64]

INFINITY = float("inf")
# Beyond so many rows the interior point method beats the simplex method (measured on 64 devices x 1000 stages).
INTERIOR_POINT_ROWS = 10_000


class Rows:
    """Rows of a linear program, collected as compressed sparse rows."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.starts: list[int] = []
        self.index: list[int] = []
        self.value: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []

    def add(self, columns: Any, values: Any, lower: float = -INFINITY, upper: float = INFINITY) -> None:
        """One row: ``lower <= sum of values * columns <= upper``."""
        self.starts.append(len(self.index))
        self.index.extend(int(column) for column in columns)
        self.value.extend(float(value) for value in values)
        self.lower.append(float(lower))
        self.upper.append(float(upper))


def minimise(rows: Rows, cost: Array, lower: Array, upper: Array) -> tuple[Array, Array] | None:
    """Values of the columns and duals of the rows of the optimum; ``None`` where there is no feasible point.

    Raises ``PlanError`` where the solver gives up.
    """
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("primal_feasibility_tolerance", 1e-9)
    solver.setOptionValue("dual_feasibility_tolerance", 1e-9)
    solver.setOptionValue("solver", "ipm" if len(rows.lower) > INTERIOR_POINT_ROWS else "simplex")
    status = solver.passModel(
        rows.columns,
        len(rows.lower),
        len(rows.index),
        int(highspy.MatrixFormat.kRowwise),
        int(highspy.ObjSense.kMinimize),
        0.0,
        np.asarray(cost, dtype=np.float64),
        np.asarray(lower, dtype=np.float64),
        np.asarray(upper, dtype=np.float64),
        np.array(rows.lower),
        np.array(rows.upper),
        np.array(rows.starts, dtype=np.int32),
        np.array(rows.index, dtype=np.int32),
        np.array(rows.value),
        np.zeros(rows.columns, dtype=np.int32),
    )
    assert status != highspy.HighsStatus.kError, "the linear program is malformed"
    solver.run()
    outcome = solver.getModelStatus()
    if outcome in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return None
    if outcome != highspy.HighsModelStatus.kOptimal:
        raise PlanError(
            f"the linear program of the shares was not solved: HiGHS says {solver.modelStatusToString(outcome)}"
        )
    solution = solver.getSolution()
    return np.array(solution.col_value), np.array(solution.row_dual)

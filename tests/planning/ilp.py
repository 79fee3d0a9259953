"""A weighted constraint problem (``hap-cfn-1``) as an integer linear program: the oracle of the synthesiser."""

import itertools
import math
from typing import NamedTuple

import highspy
import numpy as np
from highspy import Highs


class Outcome(NamedTuple):
    """The cost of the best assignment found, ``inf`` if there is none, a lower bound, and the time that HiGHS took."""

    cost: float
    bound: float
    seconds: float


def optimum(problem):
    """The least cost of ``{"domains": [...], "factors": [{"scope", "costs"}]}``, ``inf`` where nothing is feasible."""
    found = solve(problem)
    assert found.cost == found.bound, "without a limit it is proven"
    return found.cost


def solve(problem, seconds=math.inf):
    """The best assignment that is found in so many seconds.

    The local polytope with integer labels: one binary per variable and label, one weight per tuple of finite cost of
    each factor; a factor's weights sum, over the tuples that hold a label, to the label's binary.
    """
    offsets = np.concatenate([[0], np.cumsum(problem["domains"])]).tolist()
    labels = offsets[-1]
    cost, upper = [0.0] * labels, [1.0] * labels
    rows = [([*range(offsets[v], offsets[v + 1])], [1.0] * size, 1.0) for v, size in enumerate(problem["domains"])]
    constant = 0.0
    for factor in problem["factors"]:
        scope, costs = factor["scope"], factor["costs"]
        if not scope:
            constant += float("inf") if costs[0] is None else costs[0]
            continue
        tuples = list(itertools.product(*(range(problem["domains"][v]) for v in scope)))
        assert len(tuples) == len(costs)
        if len(scope) == 1:
            for (label,), value in zip(tuples, costs, strict=True):
                column = offsets[scope[0]] + label
                if value is None:
                    upper[column] = 0.0
                else:
                    cost[column] += value
            continue
        holding = {}
        for labels_of, value in zip(tuples, costs, strict=True):
            if value is None:
                continue
            for variable, label in zip(scope, labels_of, strict=True):
                holding.setdefault((variable, label), []).append(len(cost))
            cost.append(value)
            upper.append(1.0)
        for variable in scope:
            for label in range(problem["domains"][variable]):
                columns = holding.get((variable, label), [])
                rows.append(([*columns, offsets[variable] + label], [1.0] * len(columns) + [-1.0], 0.0))
    if constant == float("inf"):
        return Outcome(constant, constant, 0.0)
    scale = max(cost, default=1.0) or 1.0
    found = _solve(labels, np.array(cost) / scale, np.array(upper), rows, seconds)
    return found._replace(cost=found.cost * scale + constant, bound=found.bound * scale + constant)


def _solve(integers, cost, upper, rows, seconds):
    starts = np.concatenate([[0], np.cumsum([len(columns) for columns, _, _ in rows])])[:-1].astype(np.int32)
    sides = np.array([side for _, _, side in rows])
    solver = Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", 1e-9)
    # Else it calls optimal what could be 1e-6 of the largest cost better.
    solver.setOptionValue("mip_feasibility_tolerance", 1e-9)
    solver.setOptionValue("time_limit", seconds)
    solver.passModel(
        len(cost),
        len(rows),
        sum(len(columns) for columns, _, _ in rows),
        int(highspy.MatrixFormat.kRowwise),
        int(highspy.ObjSense.kMinimize),
        0.0,
        cost,
        np.zeros(len(cost)),
        upper,
        sides,
        sides,
        starts,
        np.array([column for columns, _, _ in rows for column in columns], dtype=np.int32),
        np.array([value for _, values, _ in rows for value in values]),
        np.array([1] * integers + [0] * (len(cost) - integers), dtype=np.int32),
    )
    solver.run()
    seconds = solver.getRunTime()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return Outcome(math.inf, math.inf, seconds)
    info = solver.getInfo()
    if status == highspy.HighsModelStatus.kOptimal:
        return Outcome(info.objective_function_value, info.objective_function_value, seconds)
    assert status == highspy.HighsModelStatus.kTimeLimit, solver.modelStatusToString(status)
    # Without a solution the value is infinite; before the root is solved the bound is.
    return Outcome(info.objective_function_value, info.mip_dual_bound, seconds)

"""A weighted constraint problem (``hap-cfn-1``) as an integer linear program: the oracle of the synthesiser."""

import itertools
import math

import highspy
import numpy as np
from highspy import Highs


def optimum(problem):
    """The least cost of ``{"domains": [...], "factors": [{"scope", "costs"}]}``, ``inf`` where nothing is feasible."""
    cost, bound = solve(problem)
    assert cost == bound, "without a limit it is proven"
    return cost


def solve(problem, seconds=math.inf):
    """The cost of the best assignment found in so many seconds, ``inf`` if there is none, and a lower bound.

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
        return constant, constant
    scale = max(cost, default=1.0) or 1.0
    found, bound = _solve(labels, np.array(cost) / scale, np.array(upper), rows, seconds)
    return found * scale + constant, bound * scale + constant


def _solve(integers, cost, upper, rows, seconds):
    starts = np.concatenate([[0], np.cumsum([len(columns) for columns, _, _ in rows])])[:-1].astype(np.int32)
    sides = np.array([side for _, _, side in rows])
    solver = Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", 1e-9)
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
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return math.inf, math.inf
    info = solver.getInfo()
    if status == highspy.HighsModelStatus.kOptimal:
        return info.objective_function_value, info.objective_function_value
    assert status == highspy.HighsModelStatus.kTimeLimit, solver.modelStatusToString(status)
    # Without a solution the value is infinite; before the root is solved the bound is.
    return info.objective_function_value, info.mip_dual_bound

"""A checker of the core's certificates that shares no code with the core.

A certificate (``hap-certificate-1``) says why no assignment of a weighted constraint problem (``hap-cfn-1``) costs less
than a bound: a list of steps, each of which turns the problem into a simpler one. What each does, and why that proves
the bound, stands in ``rust/synthesis/solver/certificate.rs``. To check that a synthesis was optimal::

    warm = _core.WarmStart()
    program = graph.synthesise(cluster, request, warm=warm)
    bound = check(graph.problem(cluster, request), warm.certificate())
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

_Variable = Annotated[int, msgspec.Meta(ge=0)]
_Scope = tuple[_Variable, ...]
_Costs = NDArray[np.float64]


class CertificateError(ValueError):
    """A certificate does not prove what it claims."""


class _Factor(msgspec.Struct, forbid_unknown_fields=True):
    scope: _Scope
    costs: list[float | None]


class _Problem(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["hap-cfn-1"]
    name: str
    domains: list[_Variable]
    factors: list[_Factor]


class _Step(msgspec.Struct, forbid_unknown_fields=True, tag_field="step", tag=lambda name: name[1:].lower()):
    pass


class _Shift(_Step):
    scope: _Scope
    costs: list[float]


class _Join(_Step):
    scope: _Scope
    into: _Scope


class _Drop(_Step):
    variable: _Variable
    labels: list[int]


class _Fix(_Step):
    variable: _Variable


class _Eliminate(_Step):
    variable: _Variable


class _Certificate(msgspec.Struct, forbid_unknown_fields=True):
    assignment: list[_Variable]
    cost: float
    steps: list[_Shift | _Join | _Drop | _Fix | _Eliminate]
    bound: float


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["hap-certificate-1"]
    certificate: _Certificate


def check(problem: str | bytes, certificate: str | bytes, tolerance: float = 1e-9) -> float:
    """Checks a certificate of a problem, both JSON, and returns the bound that it proves.

    Takes time and memory as the eliminations do that the certificate names.

    Args:
        problem: ``hap-cfn-1``.
        certificate: ``hap-certificate-1``.
        tolerance: costs nearer than this are equal, relative to the cost and to a thousandth of the largest one.

    Raises:
        CertificateError: something does not hold; the error names the step, or what of the problem is malformed.
    """
    try:
        asked = msgspec.json.decode(problem, type=_Problem)
        given = msgspec.json.decode(certificate, type=_File).certificate
    except msgspec.ValidationError as error:
        raise CertificateError(str(error)) from error
    factors = [_costs(asked.domains, number, factor) for number, factor in enumerate(asked.factors)]
    chosen = given.assignment
    if len(chosen) != len(asked.domains) or any(x >= size for x, size in zip(chosen, asked.domains, strict=True)):
        raise CertificateError("the assignment must give every variable a label of its domain")
    cost = sum(float(costs[tuple(chosen[v] for v in scope)]) for scope, costs in factors)
    if cost == np.inf:
        raise CertificateError("the assignment is forbidden")
    largest = max((abs(c) for factor in asked.factors for c in factor.costs if c is not None), default=0.0)
    slack = tolerance * (abs(cost) + largest / 1000.0)
    if not abs(cost - given.cost) <= slack:
        raise CertificateError(f"the assignment costs {cost}, not {given.cost}")
    remainder = _Remainder(asked.domains, factors)
    for number, step in enumerate(given.steps):
        try:
            remainder.take(step, cost - slack)
        except CertificateError as error:
            raise CertificateError(f"step {number} ({type(step).__name__[1:].lower()}): {error}") from error
    proven = min(cost, remainder.bound())
    if not proven >= given.bound - slack:
        raise CertificateError(f"the steps prove a bound of {proven}, not {given.bound}")
    return given.bound


def _costs(domains: Sequence[int], number: int, factor: _Factor) -> tuple[_Scope, _Costs]:
    """A factor over its variables in ascending order."""
    scope = factor.scope
    if len(set(scope)) < len(scope) or any(v >= len(domains) for v in scope):
        raise CertificateError(
            f"factor {number}: expected variables below {len(domains)}, each once, got {list(scope)}"
        )
    shape = [domains[v] for v in scope]
    if len(factor.costs) != math.prod(shape):
        raise CertificateError(f"factor {number}: expected {math.prod(shape)} costs, got {len(factor.costs)}")
    costs = np.array([np.inf if cost is None else cost for cost in factor.costs], dtype=np.float64).reshape(shape)
    return tuple(sorted(scope)), costs.transpose(np.argsort(scope, kind="stable"))


class _Remainder:
    """The problem as the steps so far have made it. A table has one dimension for each variable of its scope."""

    def __init__(self, domains: Sequence[int], factors: Sequence[tuple[_Scope, _Costs]]) -> None:
        self._labels = [list(range(size)) for size in domains]
        self._there = [True] * len(domains)
        self._tables: dict[_Scope, _Costs] = {}
        self._least: dict[_Scope, float] = {}
        self._scopes: list[set[_Scope]] = [set() for _ in domains]
        for variable, size in enumerate(domains):
            self._add((variable,), np.zeros(size))
        for scope, costs in factors:
            self._add(scope, costs)

    def bound(self) -> float:
        """No assignment costs less."""
        return sum(self._least.values())

    def take(self, step: _Shift | _Join | _Drop | _Fix | _Eliminate, reach: float) -> None:
        """Takes a step; a dropped label must cost at least ``reach``."""
        if isinstance(step, _Shift):
            self._shift(step.scope, step.costs)
            return
        if isinstance(step, _Join):
            self._join(step.scope, step.into)
            return
        if step.variable >= len(self._there) or not self._there[step.variable]:
            raise CertificateError(f"variable {step.variable} is not there")
        tables = [(scope, self._remove(scope)) for scope in sorted(self._scopes[step.variable])]
        if isinstance(step, _Drop):
            self._drop(step.variable, step.labels, tables, reach)
            return
        self._there[step.variable] = False
        if isinstance(step, _Fix):
            if len(self._labels[step.variable]) != 1:
                raise CertificateError(f"variable {step.variable} has {len(self._labels[step.variable])} labels")
            reduced = tables
        else:
            scope = tuple(sorted({v for other, _ in tables for v in other}))
            reduced = [(scope, functools.reduce(operator.add, (_spread(*table, scope) for table in tables)))]
        for scope, costs in reduced:
            least = np.min(costs, axis=scope.index(step.variable), initial=np.inf)
            self._add(tuple(v for v in scope if v != step.variable), least)

    def _shift(self, scope: _Scope, moved: Sequence[float]) -> None:
        costs = self._remove(scope)
        sizes = [len(self._labels[v]) for v in scope]
        if len(scope) < 2 or len(moved) != sum(sizes) or not np.isfinite(moved).all():
            raise CertificateError(f"{sum(sizes)} finite costs can move from the table over {list(scope)}")
        start = 0
        for variable, size in zip(scope, sizes, strict=True):
            part = np.array(moved[start : start + size])
            costs = costs - _spread((variable,), part, scope)
            self._add((variable,), part)
            start += size
        self._add(scope, costs)

    def _join(self, scope: _Scope, into: _Scope) -> None:
        if into not in self._tables:
            raise CertificateError(f"no table over {list(into)}")
        if not set(scope) < set(into):
            raise CertificateError(f"the table over {list(into)} cannot take up the one over {list(scope)}")
        self._add(into, _spread(scope, self._remove(scope), into))

    def _drop(
        self, variable: int, labels: Sequence[int], tables: Sequence[tuple[_Scope, _Costs]], reach: float
    ) -> None:
        # The least cost of an assignment with each label: of the tables without the variable, and of each with it.
        least = np.full(len(self._labels[variable]), self.bound())
        for scope, costs in tables:
            others = tuple(axis for axis, v in enumerate(scope) if v != variable)
            least = least + np.min(costs, axis=others, initial=np.inf)
        keep = [position for position, label in enumerate(self._labels[variable]) if label not in labels]
        for position, label in enumerate(self._labels[variable]):
            if position not in keep and not least[position] >= reach:
                cost = float(least[position])
                raise CertificateError(
                    f"label {label} of variable {variable} can cost {cost}, less than the assignment"
                )
        self._labels[variable] = [self._labels[variable][position] for position in keep]
        for scope, costs in tables:
            self._add(scope, costs.take(keep, axis=scope.index(variable)))

    def _add(self, scope: _Scope, costs: _Costs) -> None:
        costs = costs + self._tables.get(scope, 0.0)
        self._tables[scope] = costs
        self._least[scope] = float(np.min(costs, initial=np.inf))
        for variable in scope:
            self._scopes[variable].add(scope)

    def _remove(self, scope: _Scope) -> _Costs:
        if scope not in self._tables:
            raise CertificateError(f"no table over {list(scope)}")
        for variable in scope:
            self._scopes[variable].remove(scope)
        del self._least[scope]
        return self._tables.pop(scope)


def _spread(scope: _Scope, costs: _Costs, into: _Scope) -> _Costs:
    """A table as one over more variables, for sums."""
    return costs[tuple(slice(None) if variable in scope else np.newaxis for variable in into)]

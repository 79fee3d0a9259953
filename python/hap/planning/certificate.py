"""A checker of the core's certificates that shares no code with the core.

A certificate (``hap-certificate-1``) says why no assignment of a weighted constraint problem (``hap-cfn-1``) costs less
than a bound: a list of steps, each of which turns the problem into a simpler one. What each does, and why that proves
the bound, stands in ``rust/synthesis/solver/certificate.rs``. To check that a synthesis was optimal::

    warm = _core.WarmStart()
    program = graph.synthesise(cluster, request, warm=warm)
    bound = check(graph.problem(cluster, request), warm.certificate())

Sums of costs are rounded down (:func:`_below`), so that each table stays a lower bound of the exact one, whatever
numbers a certificate moves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

_Variable = Annotated[int, msgspec.Meta(ge=0)]
_Scope = tuple[_Variable, ...]
_Costs = NDArray[np.float64]
# Entries of one table (1 GiB), and of all domains together, that are checked.
_MOST_ENTRIES = 2**27
# The most that numpy has.
_MOST_DIMENSIONS = 64


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
        tolerance: what is proven is that no assignment costs less than ``bound - tolerance * abs(bound)``. Nothing else
            in either text widens it.

    Raises:
        CertificateError: something does not hold, is malformed, or is too large to be checked; the error names the
            step, or what of the problem it is.
    """
    try:
        asked = msgspec.json.decode(problem, type=_Problem)
        given = msgspec.json.decode(certificate, type=_File).certificate
        _check(asked, given, tolerance)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise CertificateError(str(error)) from error
    except MemoryError as error:
        raise CertificateError("the tables need more memory than there is") from error
    return given.bound


def _check(asked: _Problem, given: _Certificate, tolerance: float) -> None:
    if sum(asked.domains) > _MOST_ENTRIES:
        raise CertificateError(f"the domains have {sum(asked.domains)} labels; at most {_MOST_ENTRIES} are checked")
    factors = [_costs(asked.domains, number, factor) for number, factor in enumerate(asked.factors)]
    chosen = given.assignment
    if len(chosen) != len(asked.domains) or any(x >= size for x, size in zip(chosen, asked.domains, strict=True)):
        raise CertificateError("the assignment must give every variable a label of its domain")
    cost = _total([float(costs[tuple(chosen[v] for v in scope)]) for scope, costs in factors])
    if cost == np.inf:
        raise CertificateError("the assignment is forbidden")
    if not abs(cost - given.cost) <= tolerance * abs(cost):
        raise CertificateError(f"the assignment costs {cost}, not {given.cost}")
    # What each dropped label and the last problem must reach.
    reach = given.bound - tolerance * abs(given.bound)
    if not cost >= reach:
        raise CertificateError(f"the assignment costs {cost}, less than the bound {given.bound}")
    remainder = _Remainder(asked.domains, factors)
    for number, step in enumerate(given.steps):
        try:
            remainder.take(step, reach)
        except CertificateError as error:
            raise CertificateError(f"step {number} ({type(step).__name__[1:].lower()}): {error}") from error
    if not remainder.bound() >= reach:
        raise CertificateError(f"the steps prove {remainder.bound()}, less than the bound {given.bound}")


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
    _check_size(shape)
    costs = np.array([np.inf if cost is None else cost for cost in factor.costs], dtype=np.float64).reshape(shape)
    return tuple(sorted(scope)), costs.transpose(np.argsort(scope, kind="stable"))


class _Remainder:
    """The problem as the steps so far have made it. A table has one dimension for each variable of its scope."""

    def __init__(self, domains: Sequence[int], factors: Sequence[tuple[_Scope, _Costs]]) -> None:
        self._labels: list[Sequence[int]] = [range(size) for size in domains]
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
        return _total(list(self._least.values()))

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
            _check_size([len(self._labels[v]) for v in scope])
            reduced = [(scope, functools.reduce(_below, (_spread(*table, scope) for table in tables)))]
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
            costs = _below(costs, -_spread((variable,), part, scope))
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
            least = _below(least, np.min(costs, axis=others, initial=np.inf))
        keep = [position for position, label in enumerate(self._labels[variable]) if label not in labels]
        for position, label in enumerate(self._labels[variable]):
            if position not in keep and not least[position] >= reach:
                cost = float(least[position])
                raise CertificateError(f"label {label} of variable {variable} can cost {cost}, less than the bound")
        self._labels[variable] = [self._labels[variable][position] for position in keep]
        for scope, costs in tables:
            self._add(scope, costs.take(keep, axis=scope.index(variable)))

    def _add(self, scope: _Scope, costs: _Costs) -> None:
        if scope in self._tables:
            costs = _below(costs, self._tables[scope])
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


def _check_size(shape: Sequence[int]) -> None:
    if math.prod(shape) > _MOST_ENTRIES or len(shape) > _MOST_DIMENSIONS:
        raise CertificateError(
            f"a table has {math.prod(shape)} entries over {len(shape)} variables; at most {_MOST_ENTRIES} over "
            f"{_MOST_DIMENSIONS} are checked"
        )


def _below(one: _Costs, other: _Costs) -> _Costs:
    """The sum, rounded down where it is not exact. What is forbidden stays so; no entry is NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = one + other
        # Two-sum: the exact sum is this and the total. It is NaN where the total has overflown.
        part = total - one
        error = (one - (total - part)) + (other - part)
        rounded = np.where(error >= 0.0, total, np.nextafter(total, -np.inf))
    return np.where(np.isposinf(one) | np.isposinf(other), np.inf, rounded)


def _total(costs: Sequence[float]) -> float:
    """As :func:`_below`, of many."""
    for limit in (math.inf, -math.inf):
        if limit in costs:
            return limit
    try:
        total = math.fsum(costs)
        return total if math.fsum([*costs, -total]) >= 0.0 else math.nextafter(total, -math.inf)
    except OverflowError:
        return -math.inf

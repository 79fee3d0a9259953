"""Certificates against a checker that shares nothing with the core; the core's own checker is tested in Rust."""

import copy
import functools
import gzip
import itertools
import json
import math
import os
import random
import re
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hap import _core
from hap.planning.certificate import CertificateError, check
from tests.planning.graphs import random_axes
from tests.planning.test_ilp import cluster, request

INSTANCES = Path(__file__).parents[2] / "benches" / "instances"


def problem_text(domains, factors):
    factors = [{"scope": list(scope), "costs": costs} for scope, costs in factors]
    return json.dumps({"format": "hap-cfn-1", "name": "", "domains": domains, "factors": factors})


@st.composite
def problems(draw):
    """Small enough for brute force; some assignments are forbidden."""
    domains = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    chosen = draw(st.randoms(use_true_random=False))
    factors = []
    for _ in range(draw(st.integers(0, 8))):
        scope = chosen.sample(range(len(domains)), chosen.randint(0, min(3, len(domains))))
        forbidden = chosen.choice([0.0, 0.3])
        size = math.prod(domains[v] for v in scope)
        factors.append((scope, [None if chosen.random() < forbidden else chosen.uniform(-1, 3) for _ in range(size)]))
    return domains, factors


def brute_force(domains, factors):
    def cost(labels):
        total = 0.0
        for scope, costs in factors:
            value = costs[functools.reduce(lambda index, v: index * domains[v] + labels[v], scope, 0)]
            total += math.inf if value is None else value
        return total

    return min(map(cost, itertools.product(*map(range, domains))))


def solved(problem, limits="{}"):
    """The certificate of a solve."""
    warm = _core.WarmStart()
    _core.solve(problem, limits, warm=warm)
    return warm.certificate()


@given(problems())
def test_random_problems(problem):
    text, least = problem_text(*problem), brute_force(*problem)
    assume(least < math.inf)
    certificate = solved(text)
    assert check(text, certificate) == pytest.approx(least, abs=1e-9)
    claim = json.loads(certificate)
    claim["certificate"]["bound"] += 1e-6
    with pytest.raises(CertificateError, match="less than the bound"):
        check(text, json.dumps(claim))


def claim(assignment, cost, steps, bound):
    certificate = {"assignment": assignment, "cost": cost, "steps": steps, "bound": bound}
    return json.dumps({"format": "hap-certificate-1", "certificate": certificate})


finite = st.floats(allow_nan=False, allow_infinity=False)


@example([1e17, 1e17, 0.0, 0.0], [])
@example([-1e17, -1e17, 0.0, 0.0], [1e17, 1e17, 0.0, 0.0])
@given(*[st.lists(finite, min_size=4, max_size=4)] * 2)
def test_no_number_in_a_certificate_absorbs_costs(one, other):
    problem = problem_text([2, 2], [([0, 1], [9.0, 16.0, 30.0, 30.0])])
    steps = [{"step": "shift", "scope": [0, 1], "costs": costs} for costs in (one, other) if costs]
    for end in ([], [{"step": "join", "scope": [0], "into": [0, 1]}, {"step": "eliminate", "variable": 0}]):
        with pytest.raises(CertificateError, match=r"prove .*, less than the bound 16\.0"):
            check(problem, claim([0, 1], 16.0, steps + end, 16.0))


@pytest.mark.parametrize("large", [1e12, 1e300])
def test_no_cost_of_a_problem_widens_the_tolerance(large):
    problem = problem_text([2], [([], [large]), ([], [-large]), ([0], [1.0, 2.0])])
    assert check(problem, claim([0], 1.0, [], 1.0)) == 1.0
    with pytest.raises(CertificateError, match=r"prove 1\.0, less than the bound 2\.0"):
        check(problem, claim([1], 2.0, [], 2.0))
    # Nor does an assignment that is far from the best.
    problem = problem_text([3], [([0], [1.0, 2.0, large])])
    with pytest.raises(CertificateError, match=r"prove 1\.0, less than the bound 2\.0"):
        check(problem, claim([2], large, [], 2.0))


@pytest.mark.parametrize("text", ["{", b"\xff", "\ud800", "[" * 100_000])
def test_text_that_is_no_json_is_refused(text):
    for arguments in ((text, json.dumps(proof())), (ladder(), text)):
        with pytest.raises(CertificateError):
            check(*arguments)


def test_what_is_too_large_to_be_checked_is_refused():
    with pytest.raises(CertificateError, match="the domains have 1000000000000 labels; at most"):
        check(problem_text([10**12], []), claim([0], 0.0, [], 0.0))
    star = problem_text([200] * 4, [([0, v], [0.0] * 200**2) for v in (1, 2, 3)])
    with pytest.raises(CertificateError, match=r"step 0 \(eliminate\): a table has 1600000000 entries over 4"):
        check(star, claim([0] * 4, 0.0, [{"step": "eliminate", "variable": 0}], 0.0))
    with pytest.raises(CertificateError, match="a table has 1 entries over 65 variables"):
        check(problem_text([1] * 65, [(range(65), [0.0])]), claim([0] * 65, 0.0, [], 0.0))


@pytest.mark.parametrize("seed", range(5))
def test_random_graphs(seed):
    axes, machines = random_axes(seed), cluster(seed)
    graph, asked = _core.Graph(axes.to_json()), json.dumps(request(axes, len(machines.devices), seed))
    warm = _core.WarmStart()
    found = json.loads(graph.synthesise(machines.to_json(), asked, warm=warm))
    bound = check(graph.problem(machines.to_json(), asked), warm.certificate())
    assert bound == pytest.approx(found["bound"], rel=1e-7) == pytest.approx(found["cost"], rel=1e-7)


def test_the_certificate_is_that_of_the_last_one():
    warm = _core.WarmStart()
    with pytest.raises(ValueError, match="there is no certificate: pass this warm start to a synthesis or a solve"):
        warm.certificate()
    one, other = problem_text([2], [([0], [1.0, 2.0])]), problem_text([2], [([0], [4.0, 3.0])])
    _core.solve(one, "{}", warm=warm)
    _core.solve(other, "{}", warm=warm)
    assert check(other, warm.certificate()) == 3.0
    # The costs are its own, not those of the solve that it was started from.
    assert warm.certificate() == solved(other)
    with pytest.raises(ValueError, match="no assignment is allowed"):
        _core.solve(problem_text([1], [([0], [None])]), "{}", warm=warm)
    with pytest.raises(ValueError, match="there is no certificate"):
        warm.certificate()


ROWS = re.findall(r"^\| ([\w.]+) \| [\d,]+ \| ([\d.]+) \|", (INSTANCES / "README.md").read_text(), re.MULTILINE)


def test_the_readme_names_all_problems():
    assert {name for name, _ in ROWS} == {path.name.removesuffix(".json.gz") for path in INSTANCES.glob("*.gz")}


@pytest.mark.parametrize(("name", "optimum"), ROWS)
def test_problems_of_real_models(name, optimum):
    path = INSTANCES / f"{name}.json.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    if path.stat().st_size < 100_000 or "HAP_TEST_EXAMPLES" in os.environ:
        assert check(text, solved(text)) == pytest.approx(float(optimum), rel=1e-6)
    else:
        # Large certificates take the checker seconds: they are for `make test-full`.
        solution = json.loads(_core.solve(text, "{}"))
        assert solution["gap"] == 0.0
        assert solution["cost"] == pytest.approx(float(optimum), rel=1e-6)


def test_a_solve_cut_short_has_a_certificate_of_a_smaller_bound():
    text = ladder()
    whole = check(text, solved(text))
    cut = check(text, solved(text, '{"table_entries": 100, "work": 20000}'))
    assert cut < whole


@functools.cache
def ladder(count=60, labels=4, step=8):
    """A problem that takes every kind of step."""
    chosen = random.Random(5)
    scopes = [(v,) for v in range(count)] + [(v - d, v) for d in (1, step) for v in range(d, count)]
    return problem_text([labels] * count, [(s, [chosen.random() for _ in range(labels ** len(s))]) for s in scopes])


@functools.cache
def proof():
    return json.loads(solved(ladder()))


def tampered(change):
    claim = copy.deepcopy(proof())
    change(claim["certificate"])
    assert claim != proof()
    return json.dumps(claim)


def steps_of(certificate, kind):
    found = [step for step in certificate["steps"] if step["step"] == kind]
    assert found, kind
    return found


def insert(**step):
    return lambda certificate: certificate["steps"].insert(0, step)


def shift_more(certificate):
    for step in steps_of(certificate, "shift"):
        step["costs"][0] += 1.0


def drop_the_best(certificate):
    step = steps_of(certificate, "drop")[0]
    step["labels"].append(certificate["assignment"][step["variable"]])


def drop_all(certificate):
    for step in steps_of(certificate, "drop"):
        step["labels"] = [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c.update(bound=c["bound"] * 1.001), r"the assignment costs [\d.]+, less than the bound "),
        (lambda c: c.update(cost=c["cost"] * 0.999), r"the assignment costs [\d.]+, not "),
        (lambda c: c["assignment"].__setitem__(0, (c["assignment"][0] + 1) % 4), r"the assignment costs"),
        (lambda c: c["assignment"].__setitem__(0, 4), r"a label of its domain"),
        (lambda c: c["assignment"].pop(), r"must give every variable a label"),
        (lambda c: c["steps"].clear(), r"the steps prove [-\d.e]+, less than the bound"),
        (shift_more, r"step \d+ \(drop\): label \d of variable \d+ can cost .*, less than the bound"),
        (lambda c: steps_of(c, "shift")[0]["costs"].pop(), r"step \d+ \(shift\): 8 finite costs can move"),
        (lambda c: steps_of(c, "shift")[0].update(scope=[0, 59]), r"step \d+ \(shift\): no table over \[0, 59\]"),
        (drop_the_best, r"step \d+ \(drop\): label \d of variable \d+ can cost"),
        (drop_all, r"step \d+ \(drop\): label \d of variable \d+ can cost"),
        (lambda c: steps_of(c, "eliminate")[0].update(variable=60), r"step \d+ \(eliminate\): variable 60 is not"),
        (lambda c: steps_of(c, "eliminate")[1].update(steps_of(c, "eliminate")[0]), r"variable \d+ is not there"),
        (lambda c: steps_of(c, "eliminate")[0].update(variable=-1), r"Expected `int` >= 0"),
        (lambda c: steps_of(c, "fix")[0].update(variable=99), r"step \d+ \(fix\): variable 99 is not there"),
        (insert(step="fix", variable=0), r"step 0 \(fix\): variable 0 has 4 labels"),
        (insert(step="join", scope=[0], into=[1, 2]), r"step 0 \(join\): the table over \[1, 2\] cannot take up"),
        (insert(step="join", scope=[0], into=[0, 59]), r"step 0 \(join\): no table over \[0, 59\]"),
        (insert(step="join", scope=[1, 2], into=[1, 2]), r"step 0 \(join\): the table over \[1, 2\] cannot take up"),
        (lambda c: steps_of(c, "join")[0].update(into=[0, 59]), r"step \d+ \(join\): no table over \[0, 59\]"),
        (insert(step="guess", variable=0), r"Invalid value 'guess'"),
    ],
)
def test_tampered_certificates_are_refused(change, reason):
    with pytest.raises(CertificateError, match=reason):
        check(ladder(), tampered(change))


def another(value, data):
    """A part of a certificate with another number, another length, or its parts in another order."""
    if isinstance(value, dict):
        key = data.draw(st.sampled_from([key for key in value if key != "step"]))
        return {**value, key: another(value[key], data)}
    if isinstance(value, float):
        return value + data.draw(st.floats(-1, 1))
    if isinstance(value, int):
        return data.draw(st.integers(0, 60))
    value, at = list(value), data.draw(st.integers(0, max(len(value) - 1, 0)))
    match data.draw(st.sampled_from(["change", "delete", "repeat", "swap"])) if value else "add":
        case "add":
            return [0]
        case "change":
            value[at] = another(value[at], data)
        case "delete":
            del value[at]
        case "repeat":
            value.insert(data.draw(st.integers(0, len(value))), copy.deepcopy(value[at]))
        case "swap":
            other = data.draw(st.integers(0, len(value) - 1))
            value[at], value[other] = value[other], value[at]
    return value


@given(st.data())
def test_no_change_proves_too_high_a_bound(data):
    claim = copy.deepcopy(proof())["certificate"]
    optimum = claim["cost"]
    for _ in range(data.draw(st.integers(1, 3))):
        claim = another(claim, data)
    claim["bound"] = optimum + 1e-6
    with pytest.raises(CertificateError):
        check(ladder(), json.dumps({"format": "hap-certificate-1", "certificate": claim}))


@pytest.mark.parametrize(
    ("scope", "costs", "reason"),
    [
        ([0, 1], [0.0] * 5, r"factor 1: expected 6 costs, got 5"),
        ([0, 1], [], r"factor 1: expected 6 costs, got 0"),
        ([], [1.0, 2.0], r"factor 1: expected 1 costs, got 2"),
        ([1, 1], [0.0] * 9, r"factor 1: expected variables below 2, each once, got \[1, 1\]"),
        ([0, 2], [0.0] * 4, r"factor 1: expected variables below 2, each once, got \[0, 2\]"),
        ([0, -1], [0.0] * 6, r"Expected `int` >= 0"),
    ],
)
def test_malformed_problems_are_refused(scope, costs, reason):
    right = ([0], [1.0, 2.0])
    claim = solved(problem_text([2, 3], [right]))
    with pytest.raises(CertificateError, match=reason):
        check(problem_text([2, 3], [right, (scope, costs)]), claim)


def test_other_formats_are_refused():
    with pytest.raises(CertificateError, match="hap-certificate-2"):
        check(ladder(), json.dumps({**proof(), "format": "hap-certificate-2"}))
    with pytest.raises(CertificateError, match="hap-cfn-2"):
        check(ladder().replace("hap-cfn-1", "hap-cfn-2"), json.dumps(proof()))

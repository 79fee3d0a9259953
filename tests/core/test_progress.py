"""Long work in the core: it answers Ctrl-C, reports how far it has come, and ends where a callback raises."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from torch.distributed.tensor import Replicate

import hap
from hap import _core
from hap.cluster import Cluster, Link
from hap.errors import PlanError
from hap.planning import plan_axes
from hap.planning.engine import NoProgramError
from tests import models
from tests.planning.graphs import axes_of

CLUSTER = Cluster(["A100-40GB", "T4"], link=Link(bandwidth=1e9, latency=1e-6))


def hard(count=400, labels=8, step=30):
    """A random problem of large treewidth, which takes minutes."""
    chosen = random.Random(0)
    scopes = [[v] for v in range(count)] + [[v - d, v] for d in (1, step) for v in range(d, count)]
    factors = [{"scope": s, "costs": [chosen.random() for _ in range(labels ** len(s))]} for s in scopes]
    return json.dumps({"format": "hap-cfn-1", "name": "hard", "domains": [labels] * count, "factors": factors})


def test_ctrl_c_ends_a_long_solve_at_once():
    script = """
import signal, sys
from hap import _core
# A job in the background of a script ignores interrupts, and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
text = sys.stdin.read()
print("ready", flush=True)
try:
    _core.solve(text, "{}")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        child.stdin.write(hard())
        child.stdin.close()
        assert child.stdout.readline() == "ready\n"
        time.sleep(1.0)
        assert child.poll() is None, "it takes longer than that"
        started = time.monotonic()
        os.kill(child.pid, signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
        seconds = time.monotonic() - started
    assert seconds < 2.0  # on a busy machine; the whole takes minutes


class EnoughError(ValueError):
    """A kind of error that the core raises too."""


def test_bounds_rise_costs_fall_and_a_callback_may_end_it():
    reports = []

    def progress(bound, cost, work, variables):
        reports.append((bound, cost, work, variables))
        if len(reports) == 30:
            raise EnoughError

    with pytest.raises(EnoughError):
        _core.solve(hard(), "{}", progress)
    bounds, costs, work, variables = zip(*reports, strict=True)
    assert list(bounds) == sorted(bounds)
    assert list(costs) == sorted(costs, reverse=True)
    assert list(work) == sorted(work)
    assert bounds[0] < bounds[-1] <= costs[-1] < float("inf")
    assert 0 < variables[-1] <= 400


def test_the_last_report_is_what_was_found():
    problem = hard(count=40, labels=3, step=4)
    reports = []
    quiet, watched = _core.WarmStart(), _core.WarmStart()
    solution = json.loads(_core.solve(problem, "{}", warm=quiet))
    _core.solve(problem, "{}", lambda *progress: reports.append(progress), watched)
    assert watched.certificate() == quiet.certificate()
    assert solution["gap"] == 0.0
    assert reports[-1][:2] == (solution["bound"], solution["cost"])


def test_a_plan_reports_its_phases_and_syntheses():
    reports = []
    axes = axes_of("mlp")
    plan = plan_axes(axes, CLUSTER, progress=reports.append)
    assert plan.to_json() == plan_axes(axes, CLUSTER).to_json()
    phases = list(dict.fromkeys(report.phase for report in reports))
    assert phases[:2] == ["baselines", "start 1 of 4"]
    assert "fewer devices" in phases
    assert phases[-1] == "lower bound"
    found = [report for report in reports if report.cost < float("inf")]
    assert found
    assert all(0.0 < report.bound <= report.cost and report.work > 0 for report in found)


def test_what_the_callback_of_a_plan_raises_is_raised():
    module, args, kwargs = models.mlp()

    def at_a_synthesis(report):
        if report.work > 0:
            raise EnoughError(report.phase)

    with pytest.raises(EnoughError, match="baselines"):
        hap.plan(module, devices=CLUSTER, example_inputs=args, example_kwargs=kwargs, progress=at_a_synthesis)
    seen = []

    def at_once(report):
        seen.append(report.phase)
        raise EnoughError

    with pytest.raises(EnoughError):
        hap.plan(module, devices=CLUSTER, example_inputs=args, example_kwargs=kwargs, progress=at_once)
    assert seen == ["tracing"]


@pytest.mark.parametrize(
    ("phase", "at_a_synthesis"),
    # The syntheses for the bound may have been made before.
    [*itertools.product(["baselines", "start 1 of 4", "splits"], [False, True]), ("lower bound", False)],
)
@pytest.mark.parametrize("error", [NoProgramError("mine"), KeyboardInterrupt()])
def test_an_error_of_the_callback_is_never_taken_for_one_of_the_search(phase, error, at_a_synthesis):
    def progress(report):
        if report.phase == phase and (report.work > 0) == at_a_synthesis:
            raise error

    axes = axes_of("mlp")
    with pytest.raises(type(error)) as raised:
        # With a constraint, a search that finds no program looks for the ones that conflict.
        plan_axes(axes, CLUSTER, pin={"": Replicate()}, progress=progress)
    assert raised.value is error
    assert error.__cause__ is None


def test_a_callback_that_cannot_be_called_is_refused_at_once():
    with pytest.raises(PlanError, match="progress: expected a function of one report, or None, got 5"):
        hap.plan(models.mlp()[0], devices=CLUSTER, progress=5)

"""The linear program of a plan in a file: the optimum that another reads from it is that of hap's own solver."""

import re

import highspy
import msgspec
import pytest
import torch
from torch import nn

import hap
from hap import _core
from hap.balance import fractions
from hap.balance.linear_program import solve
from hap.errors import PlanError
from hap.planning.engine import Engine
from hap.planning.made_for import graph_of
from hap.rules import divided
from tests.cli.model import small

LINK = hap.Link("25GbE")
DEVICES = ["P100", "V100", "V100", "V100", "T4"]


class Wide(nn.Module):
    """Weights are so large beside the batch that hidden features are split, and the batch otherwise."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU())
        self.head = nn.Linear(4096, 16)

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.head(self.layers(x)), y)


def wide():
    with torch.device("meta"):
        module = Wide()
    return module, (torch.zeros(4096, 512), torch.zeros(4096, dtype=torch.long))


@pytest.fixture(scope="module", params=[[0, 1, 2, 3, 4], [1, 2, 3, 4]], ids=["all devices", "one left out"])
def planned(request):
    module, inputs = wide()
    cluster = hap.Cluster(DEVICES, link=LINK)
    plan = hap.plan(module, devices=cluster, example_inputs=inputs, active=request.param)
    assert len({tuple(units) for units in plan.split_units.values()}) > 1, "several axes are split"
    return plan, module, inputs


def read(path):
    """The optimum of the file: the step's seconds, and by axis and rank the shares, as its comments explain them."""
    text = path.read_text()
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    assert highs.readModel(str(path)) == highspy.HighsStatus.kOk
    highs.run()
    assert highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    fixed, unit = map(
        float, re.search(r"^\\ the step takes (\S+) \+ (\S+) \* obj seconds$", text, re.MULTILINE).groups()
    )
    names = dict(re.findall(r"^\\ axis (\S+) is (\S+)$", text, re.MULTILINE))
    alike = {}
    for first, ranks in re.findall(r"^\\ device (\d+) is each of (.+)$", text, re.MULTILINE):
        for run in ranks.split(", "):
            low, _, high = run.partition("-")
            alike.setdefault(first, []).extend(range(int(low), int(high or low) + 1))
    shares = {}
    for name, value in zip(highs.getLp().col_names_, highs.getSolution().col_value, strict=True):
        kind, _, rest = name.partition(".")
        if kind == "share":
            axis, _, first = rest.rpartition(".")
            for rank in alike.get(first, [int(first)]):
                shares.setdefault(names.get(axis, axis), {})[rank] = value
    return fixed + unit * highs.getInfo().objective_function_value, shares, alike


def stages_of(plan, module, inputs, cluster):
    axes = divided(graph_of(plan, module, inputs, None), plan.classes)
    engine = Engine(_core.Graph(axes.to_json()), cluster.without(plan.left_out), optimiser=plan.optimiser)
    return engine.stages(msgspec.json.encode(plan.program).decode(), fractions(plan.splits)), engine.machine.capacity


@pytest.mark.parametrize("others", [None, hap.Cluster(["T4", "V100", "V100", "V100", "H100"], link=LINK)])
def test_the_optimum_of_the_file_is_that_of_the_own_solver(planned, tmp_path, others):
    plan, module, inputs = planned
    hap.write_linear_program(plan, module, tmp_path / "shares.lp", example_inputs=inputs, devices=others)
    seconds, shares, _ = read(tmp_path / "shares.lp")
    stages, capacity = stages_of(plan, module, inputs, others or plan.cluster)
    current = fractions(plan.splits)
    best = solve(stages, current, capacity)
    assert seconds == pytest.approx(best.seconds, rel=1e-7)
    assert set(shares) == set(stages.axes)
    found = {axis: [ranks[rank] for rank in plan.stage.devices] for axis, ranks in shares.items()}
    assert stages.seconds(current | found) == pytest.approx(best.seconds, rel=1e-6)
    # Elsewhere other shares are better, and here the plan is as good as one in whole units is.
    assert best.seconds <= stages.seconds(current)
    if others is not None:
        assert best.seconds < 0.99 * stages.seconds(current)


def test_devices_with_the_same_shares_are_one(tmp_path):
    module, inputs = small()
    cluster = hap.Cluster(["P100", "V100", "P100", "P100"], link=LINK)
    plan = hap.plan(module, devices=cluster, example_inputs=inputs, required_axis="batch", active=[0, 1, 2, 3])
    even = msgspec.structs.replace(plan.stage, splits={axis: [size // 4] * 4 for axis, size in plan.axes.items()})
    edited = msgspec.structs.replace(plan, replicas=(msgspec.structs.replace(plan.replicas[0], stages=(even,)),))
    hap.write_linear_program(edited, module, tmp_path / "shares.lp", example_inputs=inputs)
    _, shares, alike = read(tmp_path / "shares.lp")
    assert alike == {"0": [0, 2, 3]}
    assert sum(shares["batch"].values()) == pytest.approx(1.0)


def test_what_cannot_be_written(planned, tmp_path, monkeypatch):
    plan, module, inputs = planned
    with pytest.raises(PlanError, match=r"cannot be written to .*No such file"):
        hap.write_linear_program(plan, module, tmp_path / "none" / "x.lp", example_inputs=inputs)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PlanError, match="the plan was made for another module"):
        hap.write_linear_program(plan, torch.nn.Linear(2, 2), tmp_path / "x.lp", example_inputs=(torch.ones(2, 2),))
    with pytest.raises(PlanError, match="write_linear_program: devices: expected 5, as the plan has, got 1"):
        hap.write_linear_program(plan, module, tmp_path / "x.lp", example_inputs=inputs, devices=["V100"])
    with pytest.raises(PlanError, match=r"write_linear_program: plan: expected a hap\.Plan, got 'plan\.json'"):
        hap.write_linear_program("plan.json", module, tmp_path / "x.lp", example_inputs=inputs)
    program = msgspec.structs.replace(plan.program, instructions=plan.program.instructions[:-1])
    stage = msgspec.structs.replace(plan.stage, program=program)
    edited = msgspec.structs.replace(plan, replicas=(msgspec.structs.replace(plan.replicas[0], stages=(stage,)),))
    with pytest.raises(PlanError, match="write_linear_program: the plan does not hold: "):
        hap.write_linear_program(edited, module, tmp_path / "x.lp", example_inputs=inputs)
    monkeypatch.setattr("hap.planning.shares.graph_of", lambda *_: pytest.fail("traced before the name was looked at"))
    with pytest.raises(PlanError, match=r"expected a file x\.lp, not x\.txt"):
        hap.write_linear_program(plan, module, tmp_path / "x.txt", example_inputs=inputs)


def test_a_plan_that_splits_nothing_has_none(tmp_path):
    module, inputs = small()
    axes = hap.plan(module, devices=["V100"], example_inputs=inputs).axes
    plan = hap.plan(module, devices=["V100", "V100"], example_inputs=inputs, forbidden_axes=[*axes], active=[0, 1])
    with pytest.raises(PlanError, match="the plan's program splits nothing"):
        hap.write_linear_program(plan, module, tmp_path / "x.lp", example_inputs=inputs)

"""Plans as files and as text, on a program written by hand."""

import json

import msgspec
import pytest

from hap.balance import MemoryParts
from hap.cluster import Cluster, Device, Link
from hap.errors import HapError, PlanError
from hap.planning import Plan, program_text
from hap.planning.details import Busy, Details, Line, Place, Strategy
from hap.planning.optimisers import Temporaries
from hap.planning.plan import Fingerprints, Replica, Stage
from hap.program import Compute, Convert, Free, InputInstruction, OutputInstruction, Program, Replicated

PROGRAM = Program(
    (
        InputInstruction("x", ("R",)),
        InputInstruction("w", ("S1",)),
        Convert("slice", "x", ("R",), ("S0",), "batch", None),
        Convert("all_gather", "w", ("S1",), ("R",), "hidden", "padded"),
        Compute("mm", "aten.mm.default", (("x", ("S0",)), ("w", ("R",))), (("mm", ("S0",)),), "batch"),
        Compute("sum_1", "aten.sum.dim_IntList", (("mm", ("S0",)),), (("sum_1", ("P",)),), "batch"),
        Compute("norm", "aten._softmax.default", (("mm", ("S0",)),), (("norm", ("S0",)),), "batch", "softmax"),
        Convert("all_reduce", "sum_1", ("P",), ("R",), None, "builtin"),
        Compute("split", "aten.split.Tensor", (("mm", ("S0",)),), (("a", ("S0",)), ("b", ("S0",))), None),
        Compute("mm_again", "aten.mm.default", (("x", ("R",)), ("w", ("R",))), (("mm", ("R",)),), None),
        Free("w", ("R",)),
        Free("mm", ("S0",)),
        Convert("all_gather", "w", ("S1",), ("R",), "hidden", "grouped"),
        Compute("mm", "aten.mm.default", (("x", ("S0",)), ("w", ("R",))), (("mm", ("S0",)),), "batch"),
        OutputInstruction("loss", "sum_1", ("R",)),
        OutputInstruction("", "mm", ("S0",)),
    )
)

TEXT = """\
%x: R = input
%w: S1 = input
%x.S0 = slice(%x, axis=batch)
%w.R = all_gather(%w, axis=hidden, padded)
%mm: S0 = aten.mm(%x.S0, %w.R, axis=batch)
%sum_1: P = aten.sum.dim_IntList(%mm, axis=batch)
%norm: S0 = aten._softmax(%mm, axis=batch, composite=softmax)
%sum_1.R = all_reduce(%sum_1)
%a: S0, %b: S0 = aten.split.Tensor(%mm)
%mm.R = aten.mm(%x, %w.R)
free(%w.R)
free(%mm)
%w.R = all_gather(%w, axis=hidden, grouped)
%mm: S0 = aten.mm(%x.S0, %w.R, axis=batch)
return loss = %sum_1.R
return %mm"""


def make():
    cluster = Cluster(
        ["V100", "V100", Device(flops=1e12, memory_bandwidth=1e11, memory=8 * 2**30)],
        link=Link(bandwidth=1e9, latency=1e-5),
    )
    return Plan(
        format="hap-plan-1",
        description=json.loads(cluster.to_json()),
        fingerprints=Fingerprints("g", "c", "0.1", "2.13"),
        axes={"batch": 8, "hidden": 3},
        replicas=(Replica(1, (Stage((0, 1, 2), "all", PROGRAM, {"batch": [4, 4, 0], "hidden": [1, 1, 1]}),)),),
        optimiser_tensors=2,
        temporaries=Temporaries(together=1),
        predicted_time=0.0123,
        predicted_memory=(2**30, 2**30, 2**20),
        memory_parts=(MemoryParts(1.0, 2.0, 3.0, 4.0, 5.0),) * 3,
        search_gap=0.0,
        lower_bound=0.012,
        optimality_gap=0.025,
        rounding_loss=0.001,
        baselines={"ddp_even": 0.02, "zero3_even": None, "tensor_even": None},
        obstacles={"zero3_even": "memory", "tensor_even": "impossible"},
        synthesis_time=0.05,
    )


def test_a_program_prints_one_instruction_a_line():
    assert program_text(PROGRAM) == TEXT


def test_a_plan_prints_a_header_and_the_program():
    header, _, program = str(make()).partition("%x: R = input")
    assert "%x: R = input" + program == TEXT
    assert header.splitlines() == [
        "# 3 devices: 2 x V100, device",
        "# link: 1 GB/s, latency 10 us",
        "# predicted step 12.3 ms, at least 12 ms (optimality gap 2.50%, search gap 0.00%, lost to rounding 0.10%)",
        "# baselines: ddp_even 20 ms, zero3_even does not fit, tensor_even not possible here",
        "# predicted memory: 2 x (1.00 GiB of 13.97 GiB), 1.00 MiB of 8.00 GiB",
        "# split 4 4 0: batch",
        "# split 1 1 1: hidden",
    ]


def test_an_assumed_link_is_printed():
    hosts = Cluster([Cluster(["V100"]), Cluster(["V100", "T4"])])
    plan = msgspec.structs.replace(make(), description=json.loads(hosts.to_json()))
    assert str(plan).splitlines()[1:3] == [
        "# no link given, assumed: 10GbE, 1.25 GB/s, latency 50 us",
        "# no link given, assumed: PCIe 3, 7.88 GB/s, latency 20 us",
    ]


def test_operators_without_a_rule_print_by_target_and_line():
    replicated = (
        Replicated("split", "aten.split.Tensor", "model.py:3: x.split(2)"),
        Replicated("a", "my.op.default", ""),
        Replicated("split_1", "aten.split.Tensor", "model.py:3: x.split(2)"),
    )
    plan = msgspec.structs.replace(make(), replicated=replicated)
    assert str(plan).splitlines()[7:9] == [
        "# no rule, whole on every device: aten.split.Tensor (split, split_1) at model.py:3: x.split(2)",
        "# no rule, whole on every device: my.op (a)",
    ]
    assert Plan.from_json(plan.to_json()).replicated == replicated
    # Files from before the field was there say nothing of it.
    assert "replicated" not in json.loads(make().to_json())


def test_a_plan_survives_its_file(tmp_path):
    plan = make()
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert plan.synthesis_time == 0.05
    assert loaded.synthesis_time is None
    assert loaded == msgspec.structs.replace(plan, synthesis_time=None)
    assert loaded.to_json() == plan.to_json() == (tmp_path / "plan.json").read_text()
    assert loaded.program == PROGRAM
    assert loaded.splits == {"batch": [4, 4, 0], "hidden": [1, 1, 1]}
    assert loaded.cluster.devices[0] == Device("V100")
    assert json.loads(plan.to_json())["format"] == "hap-plan-1"


def stage(content):
    return content["replicas"][0]["stages"][0]


def instruction(content, number):
    return stage(content)["program"]["instructions"][number]


def reduced(content, bucket):
    return {**instruction(content, 7), "bucket": bucket}


BROKEN = [
    (lambda c: c.update(format="hap-plan-9"), r'format: expected "hap-plan-1", got .hap-plan-9.'),
    (lambda c: c.pop("format"), r"format: expected"),
    (lambda c: c.pop("axes"), r"missing required field `axes`"),
    (lambda c: c.update(surprise=1), r"unknown field `surprise`"),
    (lambda c: c.update(predicted_time="fast"), r"Expected `float`, got `str` - at `\$.predicted_time`"),
    (lambda c: c.update(predicted_time=-1.0), r"predicted_time: expected a number of at least 0"),
    (lambda c: c["baselines"].update(ddp_even=-1.0), r"baselines.ddp_even: expected a number of at least 0"),
    (lambda c: c["obstacles"].pop("tensor_even"), r"obstacles: .*\(zero3_even, tensor_even\), got zero3_even"),
    (lambda c: c["obstacles"].update(ddp_even="memory"), r"obstacles: expected one for each baseline without a time"),
    (lambda c: c["obstacles"].update(zero3_even="slow"), r"Invalid enum value 'slow'"),
    (lambda c: c.update(replicated=["split"]), r"Expected `object`, got `str` - at `\$.replicated"),
    (
        lambda c: c.update(replicated=[{"operator": "split", "target": "aten.split.Tensor"}]),
        r"missing required field `source` - at `\$.replicated",
    ),
    (
        lambda c: c.update(replicated=[{"operator": "mm", "target": "aten.mm.default", "source": ""}]),
        r"replicated\[0\]: expected aten.mm.default whole .* as mm, but .* aten.mm.default along batch",
    ),
    (
        lambda c: c.update(replicated=[{"operator": "split", "target": "aten.mm.default", "source": ""}]),
        r"replicated\[0\]: expected aten.mm.default whole .* as split, but .* aten.split.Tensor whole",
    ),
    (lambda c: c.update(predicted_memory=[1, 2]), r"predicted_memory: expected one entry per device \(3\), got 2"),
    (lambda c: c["axes"].update(batch=0), r"axes.batch: expected a size of at least 1"),
    (lambda c: c.update(replicas=[]), r"replicas: expected at least one"),
    (lambda c: c["replicas"][0].update(micro_batches=0), r"replicas\[0\].micro_batches: expected at least 1"),
    (lambda c: c["replicas"][0].update(stages=[]), r"replicas\[0\].stages: expected at least one"),
    (lambda c: stage(c).update(part="half"), r"Invalid enum value 'half'"),
    (lambda c: stage(c).update(devices=[0, 1, 1]), r"devices: expected different ranks below 3"),
    (lambda c: stage(c).update(devices=[0, 1, 7]), r"devices: expected different ranks below 3"),
    (lambda c: stage(c)["splits"].pop("batch"), r"splits: expected the axes and classes of the plan; batch"),
    (
        lambda c: stage(c)["splits"].update(batch=[4, 4, 1]),
        r"splits.batch: expected 3 numbers .* sum to 8, got \[4, 4, 1\]",
    ),
    (lambda c: stage(c)["splits"].update(batch=[9, -1, 0]), r"splits.batch: expected 3 numbers"),
    (lambda c: stage(c)["splits"].update(batch=[8]), r"splits.batch: expected 3 numbers"),
    (lambda c: stage(c)["program"]["instructions"][0].update(kind="send"), r"Invalid value 'send'"),
    (
        lambda c: stage(c)["program"]["instructions"][0].update(placement=["X"]),
        r'instructions\[0\]: "X" is not a placement',
    ),
    (
        lambda c: stage(c)["program"]["instructions"][0].update(placement=[]),
        r"instructions\[0\]: expected a placement for each",
    ),
    (lambda c: stage(c)["program"]["instructions"][2].update(axis="depth"), r'instructions\[2\]: axis "depth" is not'),
    (lambda c: instruction(c, 7).update(bucket=-1), r"instructions\[7\].bucket: expected a number from 0 .*, got -1"),
    (lambda c: instruction(c, 7).update(bucket=2**32), r"instructions\[7\].bucket: expected a number from 0"),
    (lambda c: instruction(c, 7).update(bucket="a"), r"Expected `int \| null`, got `str` - at `.*bucket`"),
    (lambda c: instruction(c, 3).update(bucket=1), r"instructions\[3\].bucket: all_gather cannot be part of one"),
    (
        lambda c: stage(c)["program"]["instructions"].extend([reduced(c, 1), reduced(c, 2), reduced(c, 1)]),
        r"instructions\[18\].bucket: bucket 1 has ended before",
    ),
    (
        lambda c: c["cluster"]["root"]["members"][0]["device"].update(memory=-1),
        r"cluster: root.members\[0\].device.memory",
    ),
]


@pytest.mark.parametrize(("damage", "message"), BROKEN)
def test_a_broken_file_is_an_error_that_names_file_and_field(damage, message, tmp_path):
    content = json.loads(make().to_json())
    damage(content)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    with pytest.raises(PlanError, match=message) as caught:
        Plan.load(path)
    assert str(caught.value).startswith(f"plan file {path}: ")
    assert isinstance(caught.value, HapError)


def test_a_file_that_is_no_json_or_not_there_is_an_error(tmp_path):
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(PlanError, match=r"plan\.json: .*truncated"):
        Plan.load(tmp_path / "plan.json")
    with pytest.raises(PlanError, match=r"other\.json: No such file"):
        Plan.load(tmp_path / "other.json")
    (tmp_path / "plan.json").write_text("[]")
    with pytest.raises(PlanError, match=r"format: expected"):
        Plan.load(tmp_path / "plan.json")


def test_a_plan_of_several_stages_has_no_one_program():
    plan = make()
    several = msgspec.structs.replace(plan, replicas=plan.replicas * 2)
    assert Plan.from_json(several.to_json()) == msgspec.structs.replace(several, synthesis_time=None)
    with pytest.raises(PlanError, match="several replicas"):
        _ = several.program


DETAILS = Details(
    places=(Place("model.py:3: x @ w", "", "forward"), Place("", "head", "backward")),
    operators={"mm": 0, "norm": 1},
    line_of=(0, 0, 1),
    lines=(
        Line((Busy(4, 0.0, 0.004), Busy(6, 0.005, 0.012)), ((0.0, 100), (0.005, 200))),
        Line((), ((0.0, 10),)),
    ),
    communication=(Busy(3, 0.0, 0.002),),
    strategies={"ddp_even": Strategy(0.02, (0.01, 0.01, 0.02), 0.003, (100, 100, 90))},
)


def test_details_are_stored_and_checked():
    plan = msgspec.structs.replace(make(), details=DETAILS)
    assert Plan.from_json(plan.to_json()).details == DETAILS
    # A plan without them is written as it was before there were any.
    assert "details" not in json.loads(make().to_json())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operators": {"mm": 2}}, "details.operators.mm: expected an index of places"),
        ({"line_of": (0, 0)}, "details.line_of: expected 3 indices of lines"),
        ({"line_of": (0, 0, 2)}, "details.line_of: expected 3 indices of lines"),
        ({"communication": (Busy(99, 0.0, 1.0),)}, r"details.communication\[0\]: expected an instruction"),
        ({"communication": (Busy(3, 1.0, 2.0), Busy(3, 0.5, 2.0))}, r"details.communication\[1\]: .* times that rise"),
        ({"lines": (Line((), ((0.0, -1),)),) * 2}, r"details.lines\[0\].memory\[0\]: expected numbers of at least 0"),
        ({"strategies": {"zero": Strategy(1.0, (1.0,), 0.0, (1,))}}, "details.strategies.zero: expected one entry per"),
    ],
)
def test_wrong_details_are_named(change, message):
    wrong = msgspec.structs.replace(make(), details=msgspec.structs.replace(DETAILS, **change))
    with pytest.raises(PlanError, match=message):
        Plan.from_json(wrong.to_json())

"""The commands: what they print, as text and by their JSON schemas, what they write, and how they end."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest
import torch
from typer.testing import CliRunner

import hap
from hap.cli import app, make, results
from hap.cluster import CollectiveCost
from tests.cli import model

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "docs" / "schemas"
MODEL = f"{Path(__file__).parent / 'model.py'}"
SMALL, TINY = f"{MODEL}:small", f"{MODEL}:tiny"
DEVICES = ["--devices", "V100, P100:2", "--link", "10GbE"]


def run(*arguments, code=0):
    """Output and messages of a command in this process."""
    found = CliRunner().invoke(app, [str(each) for each in arguments])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == code, found.output
    return found.stdout, found.stderr


def run_json(command, *arguments, code=0, schema=None):
    """What a command prints with ``--json``, which keeps to its schema."""
    found = json.loads(run(command, *arguments, "--json", code=code)[0])
    jsonschema.validate(found, json.loads((SCHEMAS / f"{schema or command}.json").read_text()))
    return found


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    found = run_json(
        "plan",
        SMALL,
        *DEVICES,
        "-o",
        folder / "plan.json",
        "--forbid-axis",
        "layers.0.weight.0",
        "--require-axis",
        "batch",
    )
    return found, folder / "plan.json"


@pytest.mark.parametrize("command", [*results.RESULTS, "cluster", "compare", "explain"])
def test_schemas_are_those_of_the_documentation(command):
    assert run("schema", command)[0] == (SCHEMAS / f"{command}.json").read_text(), (
        f"fields may be added, by: hap schema {command} > docs/schemas/{command}.json; else raise the format's number"
    )
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({}, json.loads((SCHEMAS / f"{command}.json").read_text()) | {"required": ["format"]})


def test_a_page_is_written(planned, tmp_path):
    _, path = planned
    found = run_json("report", path, "-o", tmp_path / "plan.html")
    assert found["output"] == str(tmp_path / "plan.html")
    assert (tmp_path / "plan.html").read_text().startswith("<!doctype html>")
    assert run("report", path)[0].startswith("wrote ")
    assert path.with_suffix(".html").read_text() == (tmp_path / "plan.html").read_text()
    assert "no_such.json" in run("report", tmp_path / "no_such.json", code=1)[1]


def test_a_plan_is_told_and_written(planned):
    found, path = planned
    plan = hap.Plan.load(path)
    assert found["output"] == str(path)
    assert found["devices"] == ["V100", "P100", "P100"]
    assert found["predicted_time"] == plan.predicted_time
    assert plan.units("batch") == [4096, 0, 0]
    assert (found["left_out"], found["splits"]) == ([1, 2], {}), "one device shares nothing with others"
    assert (found["active"], found["with_all"]) == (None, plan.with_all)
    assert found["with_all"] > found["predicted_time"]
    assert plan.forbidden_axes == ("layers.0.weight.0",)


def test_a_plan_in_words_is_the_header_of_the_plan(tmp_path):
    options = ("--pin", "layers.0.weight=Replicate()|Shard(1)", "--forbid", "*.bias=Shard(0)", "--optimiser", "SGD")
    text, _ = run("plan", SMALL, *DEVICES, *options, "--active", "0,1", "--program", "-o", tmp_path / "plan.json")
    plan = hap.Plan.load(tmp_path / "plan.json")
    assert text.startswith(f"{plan}\nwrote {tmp_path / 'plan.json'}: ")
    assert plan.pin == {"layers.0.weight": ("Replicate()", "Shard(1)")}
    assert plan.forbid == {"*.bias": ("Shard(0)",)}
    assert plan.optimiser_tensors == 0
    assert plan.left_out == (2,)
    assert plan.active == (0, 1)


def test_a_step_is_simulated_on_these_devices_and_on_others(planned, tmp_path):
    plan = hap.Plan.load(planned[1])
    found = run_json("simulate", planned[1], "--model", SMALL, "--trace", tmp_path / "step.json")
    assert found["seconds"] == pytest.approx(plan.predicted_time)
    assert tuple(found["memory"]) == pytest.approx(plan.predicted_memory, abs=1)
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    faster = run_json("simulate", planned[1], "--model", SMALL, "--devices", "H100:3", "--link", "10GbE")
    assert faster["compute"][0] < found["compute"][0]
    assert (faster["trace"], faster["linear_program"]) == (None, None)
    text, _ = run("simulate", planned[1], "--model", SMALL)
    assert text.startswith("step ")


def test_the_linear_program_of_a_plan_is_written(planned, tmp_path):
    written = tmp_path / "shares.lp"
    found = run_json("simulate", planned[1], "--model", SMALL, "--linear-program", written)
    assert found["linear_program"] == str(written)
    own = written.read_text()
    module, inputs = model.small()
    hap.write_linear_program(hap.Plan.load(planned[1]), module, written, example_inputs=inputs)
    assert written.read_text() == own
    others = ("--devices", "P100:3", "--link", "25GbE")
    text, _ = run("simulate", planned[1], "--model", SMALL, *others, "--linear-program", written)
    assert text.splitlines()[-1].startswith(f"wrote {written}: ")
    assert written.read_text() != own


def test_a_plan_is_explained_with_what_else_there_is(planned):
    found = run_json("explain", planned[1], "--op", "addmm", "--model", SMALL, "--what-if")
    (operator,) = found["operators"]
    chosen = next(each for each in found["alternatives"] if each["chosen"])
    assert chosen["axis"] == operator["axis"] == "batch"
    assert chosen["step"] == pytest.approx(found["step"])
    assert found["what_if"][0]["obstacle"] or found["what_if"][0]["after"] >= found["step"]
    text, _ = run("explain", planned[1], "--axis", "batch", "--model", SMALL, "--what-if")
    assert "what if nothing is split along batch" in text
    assert "…" not in text, "tables are as wide as they have to be, also where there is no terminal"
    text, _ = run("explain", planned[1], "--op", "addmm", "--model", SMALL)
    assert "* batch" in text
    text, _ = run("explain", planned[1], "--pin", "args.0=Replicate()", "--model", SMALL, "--what-if")
    assert 'what if bound by pin={"args.0": Replicate()}: ' in text
    pins = ("--pin", "nothing=Shard(0)", "--model", SMALL, "--what-if")
    assert '"nothing"' in run("explain", planned[1], *pins, code=1)[1]
    found = run_json("explain", planned[1], planned[1], schema="compare")
    assert found["operators"] == []
    assert run("explain", planned[1], planned[1])[0].startswith("step ")


def test_check_tells_equal_from_different():
    found = run_json("check", f"{MODEL}:by_keyword", *DEVICES, "--count", 2)
    assert found["equal"]
    assert found["programs"] == 2
    assert run_json("check", f"{MODEL}:bare", *DEVICES)["equal"]
    assert (found["precision"], found["tolerance"]) == ("float64", 1e-8)
    text, _ = run("check", TINY, *DEVICES, "--programs", "optimal", "--tolerance", "-1", code=3)
    assert "NOT equal" in text
    # Equal as far as the model's own float32 goes, and told so.
    text, _ = run("check", f"{MODEL}:casting", *DEVICES, "--require-axis", "batch")
    assert "equal to one device within 1.19e-05, as the model itself computes in float32: 1 program, " in text
    found = run_json("check", f"{MODEL}:casting", *DEVICES, "--require-axis", "batch")
    assert 1e-9 < found["error"] < found["tolerance"]


@pytest.mark.parametrize("precision", ["float64", "float32", "float16", "bfloat16"])
def test_no_precision_hides_the_loss_of_a_devices_summand(precision):
    rounding = torch.finfo(getattr(torch, precision)).eps
    for error, equal in ((rounding, True), (0.1, False)):
        found = hap.CheckResult(error, {"loss": error}, 1.0, (), 1, precision)
        assert make.checked(found, None).equal is equal


def test_devices_that_are_known_and_a_clusters(tmp_path):
    found = run_json("devices")
    assert {"V100", "H100"} <= {each["name"] for each in found["accelerators"]}
    assert found["here"]
    assert "10GbE" in run("devices")[0]
    path = tmp_path / "cluster.json"
    found = run_json("devices", *DEVICES, "-o", path)
    assert [each["name"] for each in found["cluster"]] == ["V100", "P100", "P100"]
    assert hap.Cluster.load(path).link == hap.Link("10GbE")
    assert run_json("devices", "--cluster", path)["cluster"] == found["cluster"]
    assert found["collectives"] == []


@pytest.mark.parametrize(
    ("devices", "members"),
    [
        ("V100:2 / P100:4,T4", (["V100"] * 2, ["P100"] * 4 + ["T4"])),
        ("V100/RTX 3090 : 2", (["V100"], ["RTX 3090"] * 2)),
        (" T4 ,T4 / T4:1 /T4", (["T4"] * 2, ["T4"], ["T4"])),
    ],
)
@pytest.mark.parametrize("link", [None, "25GbE"])
def test_hosts_are_those_of_nested_clusters(devices, members, link, tmp_path):
    path = tmp_path / "cluster.json"
    run("devices", "--devices", devices, *(() if link is None else ("--link", link)), "-o", path)
    assert hap.Cluster.load(path) == hap.Cluster([hap.Cluster(host) for host in members], link=link)


def test_a_plan_for_hosts_tells_what_links_were_assumed():
    lines = run("plan", SMALL, "--devices", "V100:2 / P100:4")[0].splitlines()
    assert lines[0] == "6 devices: 2 x V100, 4 x P100"
    assert [line.partition(",")[0] for line in lines[1:3]] == ["no link given", "no link given"]
    assert ("10GbE" in lines[1], "PCIe 3" in lines[2]) == (True, True)
    lines = run("plan", SMALL, "--devices", "V100:2 / P100:4", "--link", "100GbE")[0].splitlines()
    assert lines[1].startswith("link: 100GbE")
    assert lines[2].startswith("no link given, assumed: PCIe 3")


def test_measured_collectives_are_shown_with_the_error_of_their_line(tmp_path):
    path = tmp_path / "cluster.json"
    costs = {
        "all_gather/padded": CollectiveCost(latency=2e-5, bandwidth=3e9, error=0.125),
        "all_reduce/builtin": CollectiveCost(latency=1e-5, bandwidth=2e9),
    }
    mark = "0123456789abcdef" * 4
    hap.Cluster(["V100", "V100"], link="10GbE", collectives=costs, fingerprint=mark).save(path)
    found = run_json("devices", "--cluster", path)
    assert found["fingerprint"] == mark
    assert found["collectives"][0] == {"name": "all_gather/padded", "latency": 2e-5, "bandwidth": 3e9, "error": 0.125}
    assert found["collectives"][1]["error"] is None
    lines = run("devices", "--cluster", path)[0].splitlines()
    assert [line.split() for line in lines if line.startswith("all_")] == [
        ["all_gather/padded", "20", "us", "3", "12%"],
        ["all_reduce/builtin", "10", "us", "2"],
    ]
    assert lines[-1] == f"measured on hardware with the fingerprint {mark}"


def test_profile_measures_this_device(tmp_path, monkeypatch):
    monkeypatch.setattr("hap.profiling.run.QUICK_OPERATORS", 0.02)
    found = run_json("profile", tmp_path / "cluster.json", "--quick", "--device", "cpu")
    written = json.loads((tmp_path / "cluster.json").read_text())
    jsonschema.validate(written, json.loads((SCHEMAS / "cluster.json").read_text()))
    cluster = hap.Cluster.load(found["output"])
    (device,) = cluster.devices
    assert device.measured
    assert found["fingerprint"] == cluster.fingerprint is not None
    assert found["cluster"][0]["measured"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", SMALL), "expected --cluster FILE or --devices"),
        (("plan", SMALL, "--cluster", "x.json", "--link", "10GbE"), "--link goes with --devices"),
        (("plan", SMALL, "--devices", "V100:0"), "expected NAME or NAME:COUNT"),
        (("plan", SMALL, "--devices", "V1000"), "did you mean V100"),
        (("plan", SMALL, "--devices", "V100 / V1000:2"), '"V1000" is not a known accelerator: did you mean V100'),
        (("plan", SMALL, "--devices", "V100 / P100:x"), '--devices: "P100:x": expected NAME or NAME:COUNT'),
        (("plan", SMALL, "--devices", "V100 / :2"), '--devices: ":2": expected NAME or NAME:COUNT'),
        (("plan", SMALL, "--devices", "V100 /"), '--devices: "V100 /": a name is missing beside a /'),
        (("plan", SMALL, "--devices", "V100 / / T4"), '--devices: "V100 / / T4": a name is missing beside a /'),
        (("plan", SMALL, "--devices", "T4 / V100,,T4"), '--devices: "T4 / V100,,T4": a name is missing beside a comma'),
        (("plan", SMALL, "--devices", ""), '--devices: "": a name is missing there'),
        (("plan", SMALL, "--cluster", "none.json"), "No such file"),
        (("plan", SMALL, *DEVICES, "--pin", "x"), "expected NAME=PLACEMENT"),
        (("plan", SMALL, *DEVICES, "--pin", "x=Shard"), "is not a placement"),
        (("plan", SMALL, *DEVICES, "--active", "a"), "expected ranks"),
        (("plan", "model", *DEVICES), "expected file.py:function"),
        (("plan", "none.py:f", *DEVICES), "there is no file none.py"),
        (("plan", "no.such.module:f", *DEVICES), "No module named"),
        (("plan", f"{MODEL}:none", *DEVICES), 'has no function "none"'),
        (("plan", f"{MODEL}:wrong", *DEVICES), "expected the function to return"),
        (("plan", f"{MODEL}:alone", *DEVICES), "got Linear"),
        (("plan", f"{MODEL}:raising", *DEVICES), "ZeroDivisionError"),
        (("plan", f"{MODEL}:exiting", *DEVICES), "SystemExit"),
        (("plan", SMALL, *DEVICES, "-o", "none/plan.json"), "there is no folder none"),
        (("plan", SMALL, *DEVICES, "-o", "/"), "this is a folder"),
        (("explain", "none.json", "--pin", "x=Shard(0)"), "are for --what-if"),
        (("explain", "none.json", "--what-if", "--op", "x", "--axis", "y", "--model", SMALL), "and one of --axis"),
        (("devices", "--link", "10GbE"), "need --devices"),
        (("devices", *DEVICES, "-o", "none/cluster.json"), "there is no folder none"),
        (("profile", "x.json", "--device", "none"), '--device "none"'),
        (("explain", "none.json"), "No such file"),
        (("report", "none.json", "-o", "none/plan.html"), "there is no folder none"),
        (("plan", SMALL, "--devices", "zzz"), "hap devices lists the known ones"),
        (("simulate", "none.json", "--model", SMALL), "No such file"),
        (("simulate", "none.json", "--model", SMALL, "--linear-program", "x.txt"), "a name that ends in .lp"),
        (("simulate", "none.json", "--model", SMALL, "--linear-program", "none/x.lp"), "there is no folder none"),
    ],
)
def test_errors_take_a_line_or_two(arguments, message):
    text, errors = run(*arguments, code=1)
    assert text == ""
    assert errors.startswith("hap: ")
    assert message in errors
    assert len(errors.splitlines()) <= 2
    with pytest.raises((hap.errors.HapError, OSError)):
        run("--debug", *arguments)


def test_other_ends(monkeypatch):
    assert run("plan", code=2)[0] == ""
    monkeypatch.setattr("hap.cli.make.known", lambda: 1 / 0)
    assert "an error inside of hap" in run("devices", code=70)[1]

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("hap.cli.make.known", interrupt)
    assert run("devices", code=130)[1] == "hap: interrupted\n"

    def unread():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("hap.cli.make.known", unread)
    assert run("devices", code=1)[1] == ""


def test_in_a_process_of_its_own():
    """As its own process; and help comes without torch."""
    command = [sys.executable, "-m", "hap.cli", "plan", TINY, *DEVICES, "--json"]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    result = msgspec.json.decode(found.stdout, type=results.Planned)
    assert 0.0 < result.predicted_time <= min(filter(None, result.baselines.values()))
    code = (
        "import sys\nfrom hap.cli import app\napp(['--help'], standalone_mode=False)\nassert 'torch' not in sys.modules"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "simulate" in shown
    assert "130" in shown

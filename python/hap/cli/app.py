"""The commands. Each imports what it needs when it runs, so that help and completion answer at once."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from enum import Enum
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from hap.cli.ends import DIFFERENT, print_result, reporting, settings
from hap.errors import HapError

app = typer.Typer(
    name="hap",
    help="Trains PyTorch modules on unequal devices: plans, explains and checks distributed programs, without devices.",
    epilog="Exit codes: 0 done; 1 it cannot be done; 2 wrong command line; 3 hap check found a difference; "
    "70 an error inside of hap; 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="file.py:function or package.module:function; returns (module, inputs)")
]
ModelOption = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="the model that the plan was made for, as for hap plan")
]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="a plan file, of hap plan")]
ClusterFile = Annotated[Path | None, typer.Option("--cluster", metavar="FILE", help="a cluster file")]
DeviceNames = Annotated[
    str | None,
    typer.Option("--devices", metavar="NAMES", help='names in rank order, V100:2,P100:6; by host "V100:2,T4 / P100:4"'),
]
LinkName = Annotated[
    str | None, typer.Option("--link", metavar="NAME", help="what joins them, or the hosts if several, such as 10GbE")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON, of the schema that hap schema shows")]
Axes = Annotated[list[str], typer.Option("--forbid-axis", metavar="AXIS", help="an axis that must not be split")]
Axis = Annotated[str | None, typer.Option("--require-axis", metavar="AXIS", help="the axis to share all work along")]
Pinned = Annotated[list[str], typer.Option("--pin", metavar="NAME=PLACEMENT", help='"layers.0.weight=Shard(0)"')]
Forbidden = Annotated[list[str], typer.Option("--forbid", metavar="NAME=PLACEMENT", help='"*.bias=Shard(0)"')]
OptimiserName = Annotated[str, typer.Option("--optimiser", help="of torch.optim, or its tensors per parameter")]


class Programs(str, Enum):
    """What ``hap check`` runs."""

    random = "random"
    optimal = "optimal"


class Described(str, Enum):
    """What has a schema: what commands print, and cluster files."""

    check = "check"
    cluster = "cluster"
    compare = "compare"
    devices = "devices"
    explain = "explain"
    plan = "plan"
    profile = "profile"
    report = "report"
    simulate = "simulate"


def _version(asked: bool) -> None:
    if asked:
        import importlib.metadata

        typer.echo(f"hap {importlib.metadata.version('hap-spmd')}")
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks, and what is done meanwhile")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="show the version and end")
    ] = False,
) -> None:
    """Options of all commands."""
    settings.debug, settings.output = debug, sys.stdout
    if isinstance(sys.stdout, TextIOWrapper):
        # A line of a model's source may have what the terminal cannot show.
        sys.stdout.reconfigure(errors="backslashreplace")
    logger = logging.getLogger("hap")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("hap: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if debug else logging.WARNING)


@app.command()
@reporting
def devices(
    cluster: ClusterFile = None,
    devices: DeviceNames = None,
    link: LinkName = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write the cluster to this file")] = None,
    as_json: Json = False,
) -> None:
    """Known accelerators and links, and this machine's devices; or what a cluster consists of."""
    from hap.cli import make, results, show
    from hap.cli.arguments import check_output, read_cluster

    check_output(output)
    if cluster is None and devices is None:
        if output is not None or link is not None:
            raise HapError("hap devices: --link and --output need --devices, or --output --cluster")
        found = make.known()
    else:
        described = read_cluster(cluster, devices, link)
        if output is not None:
            described.save(output)
        found = results.Devices(
            cluster=make.members(described),
            collectives=make.collectives(described),
            fingerprint=described.fingerprint,
            output=None if output is None else str(output),
        )
    print_result(found, as_json, show.devices)


@app.command()
@reporting
def profile(
    output: Annotated[Path, typer.Argument(help="the cluster file to write")],
    quick: Annotated[bool, typer.Option("--quick", help="some seconds instead of up to two minutes")] = False,
    device: Annotated[str | None, typer.Option(help="what to compute on; by default an accelerator if any")] = None,
    as_json: Json = False,
) -> None:
    """Measures the devices of a job and writes a cluster file.

    Alone it measures this device; for several, start one for each: torchrun --nproc-per-node 2 -m hap.cli profile FILE.
    """
    import time

    import torch.distributed as dist

    import hap
    from hap.cli import make, results, show
    from hap.cli.arguments import check_device, check_output

    check_output(output)
    check_device(device)
    started = time.perf_counter()
    cluster = hap.profile(device=device, quick=quick)
    if not dist.is_initialized() or dist.get_rank() == 0:
        cluster.save(output)
        found = results.Profile(
            cluster=make.members(cluster),
            collectives=make.collectives(cluster),
            fingerprint=cluster.fingerprint,
            seconds=time.perf_counter() - started,
            output=str(output),
        )
        print_result(found, as_json, show.devices)
    if dist.is_initialized():
        dist.destroy_process_group()


@app.command()
@reporting
def plan(
    model: ModelName,
    cluster: ClusterFile = None,
    devices: DeviceNames = None,
    link: LinkName = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write the plan to this file")] = None,
    forbid_axis: Axes = [],  # noqa: B006  typer copies it
    require_axis: Axis = None,
    pin: Pinned = [],  # noqa: B006
    forbid: Forbidden = [],  # noqa: B006
    optimiser: OptimiserName = "Adam",
    accumulation: Annotated[bool, typer.Option("--accumulation", help="gradients will be accumulated")] = False,
    active: Annotated[str | None, typer.Option(metavar="RANKS", help="the devices that must work, as 0,2,3")] = None,
    program: Annotated[bool, typer.Option("--program", help="show the program, too")] = False,
    as_json: Json = False,
) -> None:
    """Finds the fastest way to train a model on a cluster."""
    import hap
    from hap.cli import make, show
    from hap.cli.arguments import check_output, read_cluster, read_model, read_optimiser, read_pins, read_ranks

    check_output(output)
    described = read_cluster(cluster, devices, link)
    pinned, forbidden = read_pins("pin", pin), read_pins("forbid", forbid)
    ranks = read_ranks(active)
    module, args, kwargs = read_model(model)
    made = hap.plan(
        module,
        devices=described,
        example_inputs=args,
        example_kwargs=kwargs,
        forbidden_axes=forbid_axis,
        required_axis=require_axis,
        optimiser=read_optimiser(optimiser),
        accumulation=accumulation,
        active=ranks,
        pin=pinned,
        forbid=forbidden,
    )
    if output is not None:
        made.save(output)
    result = make.planned(made, None if output is None else str(output))
    lines = str(made).splitlines()
    shown = lines if program else [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    print_result(result, as_json, lambda console, found: show.planned(console, found, shown))


@app.command()
@reporting
def explain(
    plan: PlanFile,
    other: Annotated[Path | None, typer.Argument(metavar="[OTHER]", help="a plan to compare it with")] = None,
    module: Annotated[str | None, typer.Option("--module", metavar="NAME", help="operators of this module")] = None,
    op: Annotated[str | None, typer.Option("--op", metavar="NAME", help="an operator, or a pattern of names")] = None,
    axis: Annotated[str | None, typer.Option("--axis", metavar="NAME", help="this axis and what runs along it")] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="for the alternatives of an operator, and --what-if")
    ] = None,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="plan again without the axis, without it for the operator, or so pinned")
    ] = False,
    pin: Pinned = [],  # noqa: B006
    forbid: Forbidden = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Why a plan is as it is, or what differs between two.

    The plan file is enough for most. What the search weighed for an operator (--op) and what a plan without it would
    take (--what-if with --axis, --op, or --pin and --forbid) need the model, too, since the file does not hold it.
    """
    import hap
    from hap import explain as of
    from hap.cli import show
    from hap.cli.anew import with_model
    from hap.cli.arguments import read_pins

    if other is not None:
        if module or op or axis or model or what_if or pin or forbid:
            raise HapError("hap explain: two plans are compared as a whole: leave out the options")
        print_result(of.compare(hap.Plan.load(plan), hap.Plan.load(other)), as_json, show.difference)
        return
    bound = bool(pin or forbid)
    if what_if and (model is None or [op is not None, axis is not None, bound].count(True) != 1):
        raise HapError("hap explain: --what-if needs --model and one of --axis, --op, and --pin or --forbid")
    if bound and not what_if:
        raise HapError("hap explain: --pin and --forbid are for --what-if; hap plan binds a plan by them")
    pins = (read_pins("pin", pin), read_pins("forbid", forbid)) if bound else None
    planned = hap.Plan.load(plan)
    found = of.explain(planned, module=module, op=op, axis=axis)
    if model is not None:
        found = with_model(planned, found, model, op, axis, what_if, pins)
    print_result(found, as_json, show.explanation)


@app.command()
@reporting
def report(
    plan: PlanFile,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="by default PLAN.html")] = None,
    as_json: Json = False,
) -> None:
    """A plan as a page: shares, the step by the clock, memory, the program and baselines, in one file."""
    import hap
    from hap import report as of
    from hap.cli.arguments import check_output
    from hap.cli.results import Reported

    written = plan.with_suffix(".html") if output is None else output
    check_output(written)
    of.write(hap.Plan.load(plan), written)
    print_result(
        Reported(output=str(written)), as_json, lambda console, _: console.print(f"wrote {written}", markup=False)
    )


@app.command()
@reporting
def simulate(
    plan: PlanFile,
    model: ModelOption,
    cluster: ClusterFile = None,
    devices: DeviceNames = None,
    link: LinkName = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="write the timeline here, for Perfetto")] = None,
    linear_program: Annotated[
        Path | None,
        typer.Option("--linear-program", metavar="FILE", help="write what balances the shares here, FILE.lp"),
    ] = None,
    as_json: Json = False,
) -> None:
    """A step of a plan by the clock, on its devices or on as many others."""
    import hap
    from hap.cli import make, show
    from hap.cli.arguments import check_output, read_cluster, read_model
    from hap.planning.made_for import cluster_of, graph_of
    from hap.planning.progress import Progress
    from hap.planning.shares import write_shares
    from hap.planning.simulated import simulated

    check_output(trace)
    check_output(linear_program, ".lp")
    planned = hap.Plan.load(plan)
    others = None if cluster is None and devices is None else read_cluster(cluster, devices, link)
    module, args, kwargs = read_model(model)
    with Progress() as shown:
        shown.update("simulating")
        on = cluster_of(planned, others, "simulate")
        axes = graph_of(planned, module, args, kwargs)
        step = simulated(planned, axes, on)
        if trace is not None:
            step.save_trace(trace)
        if linear_program is not None:
            write_shares(planned, axes, on, linear_program)
    result = make.simulated(step, on, trace, linear_program)
    print_result(result, as_json, show.simulated)


@app.command()
@reporting
def check(
    model: ModelName,
    cluster: ClusterFile = None,
    devices: DeviceNames = None,
    link: LinkName = None,
    programs: Annotated[Programs, typer.Option(help="random ones, or the best plan's")] = Programs.random,
    count: Annotated[int, typer.Option(help="number of random programs")] = 1,
    seed: Annotated[int, typer.Option(help="of random programs")] = 0,
    tolerance: Annotated[
        float | None, typer.Option(help="largest relative error that is equal; by default 1e-8, where all is float64")
    ] = None,
    forbid_axis: Axes = [],  # noqa: B006
    require_axis: Axis = None,
    pin: Pinned = [],  # noqa: B006
    forbid: Forbidden = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Runs distributed programs of a model in this process, in float64, and compares them with one device."""
    import hap
    from hap.cli import make, show
    from hap.cli.arguments import read_cluster, read_model, read_pins
    from hap.planning.progress import Progress

    described = read_cluster(cluster, devices, link)
    pinned, forbidden = read_pins("pin", pin), read_pins("forbid", forbid)
    module, args, kwargs = read_model(model)
    # Planning shows its own progress.
    with Progress() if programs is Programs.random else nullcontext() as shown:
        if shown is not None:
            shown.update("checking")
        found = hap.check(
            module,
            devices=described,
            example_inputs=args,
            example_kwargs=kwargs,
            programs=programs.value,
            count=count,
            seed=seed,
            forbidden_axes=forbid_axis,
            required_axis=require_axis,
            pin=pinned,
            forbid=forbidden,
        )
    result = make.checked(found, tolerance)
    print_result(result, as_json, show.checked)
    if not result.equal:
        raise typer.Exit(DIFFERENT)


@app.command()
@reporting
def schema(
    name: Annotated[Described, typer.Argument(metavar="NAME", help="a command that has --json, or cluster")],
) -> None:
    """The JSON schema of what a command prints with --json, or of cluster files."""
    from hap.cli import results

    typer.echo(results.schema(name.value), file=settings.output, nl=False)

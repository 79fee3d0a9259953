"""``hap.check``: do the distributed programs of a module compute what the module computes?"""

from __future__ import annotations

import copy
import dataclasses
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec
import torch
from torch import nn

from hap.cluster import Cluster
from hap.errors import CheckError, HapError
from hap.graph import Graph
from hap.planning.optimisers import Optimiser, optimiser_memory
from hap.planning.pins import Pins, read_pins
from hap.program import Classes, Compute, Program, Replicated, Splits
from hap.runtime.difference import difference, finite, is_rounded, norm
from hap.runtime.emulate import Emulated, emulate
from hap.runtime.reference import Outputs, eager
from hap.runtime.twin import detached
from hap.trace.inputs import check_examples, flatten_inputs, map_inputs

if TYPE_CHECKING:
    from hap.cluster import Device
    from hap.rules import AxisGraph

logger = logging.getLogger("hap")

# Bytes; more than any device has, and few enough for the linear program's arithmetic.
AMPLE_MEMORY = 1e15
GRADIENTS = ("gradient", "input_gradient")


class Asked(TypedDict):
    """What the user asks of the programs, as :func:`hap.plan` takes it."""

    forbidden_axes: Sequence[str]
    required_axis: str | None
    pin: Pins | None
    forbid: Pins | None
    optimiser: Optimiser


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What :func:`check` found.

    Attributes:
        error: the largest of :attr:`errors`.
        errors: by name of the loss, output, buffer, or of the parameter or input that a gradient belongs to, over all
            programs: the norm of the difference over the tensor's own norm; of gradients and losses over a thousandth
            of the norm of all gradients where that is larger (some are zero in exact arithmetic). NaN and infinities
            count as no difference where one device has the same in the same places, and as infinite elsewhere; so do
            other shapes and element types. Integers and truth values that differ count as 1 at least.
        sharded_flops: share of the FLOPs in instructions that the devices share, on average over the programs.
        replicated: operators that every device computes whole, because no rule covers them.
        programs: number of programs that were run.
        precision: the coarsest element type that the module computes in when its parameters and inputs are in float64,
            such as ``float32`` where it casts to that on its own. Errors are some roundings of it. Masks made of truth
            values and constants do not count.
    """

    error: float
    errors: dict[str, float]
    sharded_flops: float
    replicated: tuple[Replicated, ...]
    programs: int
    precision: str = "float64"


def check(
    module: nn.Module,
    *,
    devices: Cluster | Sequence[Device | str],
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    programs: Literal["random", "optimal"] = "random",
    seed: int = 0,
    count: int = 1,
    splits: Literal["random"] | Splits | None = None,
    forbidden_axes: Sequence[str] = (),
    required_axis: str | None = None,
    pin: Pins | None = None,
    forbid: Pins | None = None,
    optimiser: Optimiser = "Adam",
    sharded_outputs: bool = False,
) -> CheckResult:
    """Run distributed programs of a module in this process and compare them with the module on one device.

    All devices run in lock-step in this process, on copies of the module and the inputs in float64 (complex numbers in
    complex128); the module itself is left as it is. What it casts on its own (many models of Hugging Face normalise in
    float32) stays so coarse: see :attr:`CheckResult.precision`. The reference is the module run eagerly. With dropout
    on it is the traced graph run on one device instead (:mod:`hap.interpret`), because eager PyTorch draws other random
    numbers; the module run eagerly then tells only which gradients and new buffers there are.

    Args:
        module: the module, with its parameters in memory.
        devices: the cluster; only the number and speed of its devices and its links matter here, not memory.
        example_inputs: positional arguments of a call of the module.
        example_kwargs: keyword arguments likewise.
        programs: ``random``: synthesis under random costs, which visits parts of the space that no optimum does;
            ``optimal``: the plan that :func:`hap.plan` makes.
        seed: seed of random programs, splits and output gradients.
        count: number of random programs.
        splits: units of each axis by device; ``"random"`` for new ones for each program, with shares of zero; ``None``
            for shares in proportion to speed (random programs) or the plan's.
        forbidden_axes: names of axes that nothing may be sharded along.
        required_axis: the axis that every operator shares its work along, if it can at all.
        pin: placements that named tensors must have, as for :func:`hap.plan`.
        forbid: placements that they must not have, likewise.
        optimiser: what will train the parameters, as for :func:`hap.plan`. It must be one that a plan can be made for,
            but changes no program here, where memory does not matter.
        sharded_outputs: whether outputs need not be whole, as for :func:`hap.parallelize`.

    Raises:
        HapError: an argument does not fit; an axis does not exist or is split into other than its size.
        TraceError: the module cannot be captured.
        PlanError: a constraint names what is not there, or constraints conflict.
        CheckError: the module does not run in float64; it has a gradient or changes a buffer that its graph does not;
            all of its gradients are NaN or infinite, so that there is nothing to compare.
    """
    from hap import interpret
    from hap.rules import annotate, divided
    from hap.trace import trace
    from hap.trace.refusals import check_module

    if not isinstance(module, nn.Module):
        raise HapError(f"expected a torch.nn.Module, got {type(module).__name__}")
    # The programs run on float64 copies in this process's memory: what the devices hold must not rule any out.
    cluster = _with_ample_memory(Cluster.of(devices))
    _check_arguments(programs, count, splits, forbidden_axes, len(cluster.devices))
    check_examples(example_inputs, example_kwargs)
    read_pins(pin, forbid)
    optimiser_memory(optimiser, together=False)
    # Copies have no tensor hooks, and may not be made of what is refused.
    check_module(module)
    precise, args, kwargs = _double(module, tuple(example_inputs), dict(example_kwargs or {}))
    graph = trace(precise, args, kwargs, sharded_outputs=sharded_outputs)
    axes = annotate(graph)
    _check_axes(axes, forbidden_axes, splits)
    asked: Asked = {
        "forbidden_axes": forbidden_axes,
        "required_axis": required_axis,
        "pin": pin,
        "forbid": forbid,
        "optimiser": optimiser,
    }
    tangents = _tangents(graph, seed)
    values = {
        tensor: value.clone()
        for tensor, value in interpret.bind(graph, precise, args, kwargs, tangents=tangents).items()
    }
    try:
        reference = eager(graph, precise, args, kwargs, values)
        if any(entry.kind == "rng" for entry in graph.inputs):
            # What has no gradient has none whatever the random numbers.
            absent = {key: None for key, value in reference.items() if value is None}
            reference = {**interpret.run(graph, values), **absent}
    except CheckError:
        raise
    except Exception as error:
        raise CheckError(
            f"the module does not run in float64: {type(error).__name__}: {error}; hap.check computes in float64, to "
            "tell errors from rounding: for the check, choose an implementation that takes any element type (Hugging "
            'Face\'s mixtures of experts: config._experts_implementation = "eager")'
        ) from error

    _check_finite(reference)
    ranks = len(cluster.devices)
    floor = 1e-3 * norm([value for (kind, _), value in reference.items() if kind == "gradient"])
    errors: dict[str, float] = {}
    shares = []
    for program, units, classes in _programs(axes, cluster, programs, seed, count, splits, asked):
        # A plan may be for some of the devices.
        ranks = len(next(iter(units.values()), range(ranks)))
        for output in emulate(divided(axes, classes), program, units, ranks, values):
            name = _label(output, graph)
            expected = reference[output.kind, output.name]
            # A loss scales as its gradients do; other outputs and buffers need not.
            least = floor if output.kind in ("loss", *GRADIENTS) else 0.0
            found = [difference(copied, expected, least) for copied in output.copies]
            errors[name] = max(errors.get(name, 0.0), *found)
        shares.append(sharded_flops(divided(axes, classes), program))
    return CheckResult(
        max(errors.values(), default=0.0),
        errors,
        sum(shares) / len(shares),
        axes.without_rule,
        len(shares),
        _precision(graph),
    )


def _precision(graph: Graph) -> str:
    """The coarsest floating-point element type that a graph's operators round to.

    A mask of truth values and constants is exact in any type, and so does not count.
    """
    exact = {number for number, each in enumerate(graph.tensors) if each.dtype == torch.bool}
    types = set()
    for operator in graph.operators:
        results = {result for result in operator.results if result is not None}
        if operator.target is torch.ops.aten.full.default or (
            operator.operands and exact.issuperset(operator.operands)
        ):
            exact |= results
        else:
            made = {graph.tensors[result].dtype for result in results}
            types |= {each for each in made if each.is_floating_point or each.is_complex}
    coarsest = max((each.to_real() for each in types), key=lambda real: torch.finfo(real).eps, default=torch.float64)
    return str(coarsest).removeprefix("torch.")


def sharded_flops(axes: AxisGraph, program: Program) -> float:
    """Share of a program's FLOPs in instructions that the devices share; 1.0 where there are none at all."""
    flops = {operator.name: count for operator, count in zip(axes.graph.operators, axes.flops, strict=True)}
    computes = [instruction for instruction in program.instructions if isinstance(instruction, Compute)]
    total = sum(flops[one.operator] for one in computes)
    return sum(flops[one.operator] for one in computes if one.axis is not None) / total if total else 1.0


def _double(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Copies in float64 and complex128."""
    from hap.trace.fakes import check_plain

    # Before anything is copied, which says less clearly what is wrong.
    flat, names, _ = flatten_inputs(args, kwargs)
    for name, value in zip(names, flat, strict=True):
        if isinstance(value, torch.Tensor):
            check_plain(value, name)

    def precise(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return _precise(value.detach().clone()).requires_grad_(value.requires_grad)

    # Not `.double()`, which leaves complex numbers alone.
    copied = copy.deepcopy(module, detached(module))._apply(_precise)  # type: ignore[no-untyped-call]
    copied.zero_grad()
    return copied, *map_inputs(precise, args, kwargs)


def _precise(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float64 or complex128; integers and truth values as they are."""
    if not is_rounded(tensor):
        return tensor
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _with_ample_memory(cluster: Cluster) -> Cluster:
    """The cluster with devices whose memory holds everything."""
    return cluster.with_devices(dataclasses.replace(device, memory=AMPLE_MEMORY) for device in cluster.devices)


def _check_arguments(programs: Any, count: Any, splits: Any, forbidden: Any, ranks: int) -> None:
    """What can be said of the arguments before the module is traced."""
    if programs not in ("random", "optimal"):
        raise HapError(f'programs: expected "random" or "optimal", got {programs!r}')
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise HapError(f"count: expected a number of programs of at least 1, got {count!r}")
    if isinstance(forbidden, str):
        raise HapError(f'forbidden_axes: expected a list of names, got the string "{forbidden}"')
    if splits is None or splits == "random":
        return
    if not isinstance(splits, Mapping):
        raise HapError(f'splits: expected "random", None, or units by device for names of axes, got {splits!r}')
    for name, units in splits.items():
        whole = isinstance(units, (list, tuple)) and all(type(unit) is int and unit >= 0 for unit in units)
        if not whole or len(units) != ranks:
            raise HapError(f"splits.{name}: expected {ranks} whole numbers of at least 0, got {units!r}")


def _check_axes(axes: AxisGraph, forbidden: Sequence[str], splits: Any) -> None:
    """That the arguments' axes are the module's, and split into as many units as they have."""
    sizes = {axis.name: axis.size for axis in axes.axes}
    given = splits if isinstance(splits, Mapping) else {}
    for name in (*forbidden, *given):
        if name not in sizes:
            raise HapError(f'the module has no axis "{name}"; it has: {", ".join(sizes)}')
    for name, units in given.items():
        if sum(units) != sizes[name]:
            raise HapError(f"splits.{name}: expected units that sum to {sizes[name]}, got {units}")


def _tangents(graph: Graph, seed: int) -> dict[str, torch.Tensor]:
    """Gradients of the differentiable outputs: 1 for scalars, random numbers for the others."""
    generator = torch.Generator().manual_seed(seed)
    tangents = {}
    for entry in graph.inputs:
        if entry.kind == "tangent":
            tensor = graph.tensors[entry.tensor]
            dtype = torch.complex128 if tensor.dtype.is_complex else torch.float64
            value = torch.randn(tensor.shape, generator=generator, dtype=dtype)
            tangents[entry.name] = (torch.ones_like(value) if not tensor.shape else value).to(tensor.dtype)
    return tangents


def _check_finite(reference: Outputs) -> None:
    """Refuses a step whose gradients have no numbers to compare; a warning where some tensors have none."""
    blank, gradients, compared = [], 0, 0
    for (kind, name), value in reference.items():
        if value is None or not is_rounded(value) or value.numel() == 0:
            continue
        count = finite(value)
        if count == 0:
            blank.append(f'{kind} "{name}"' if name else kind)
        if kind in GRADIENTS:
            gradients += value.numel()
            compared += count
    if gradients and not compared:
        raise CheckError(
            f"all {gradients} numbers in the module's gradients are NaN or infinite on one device, so there is nothing "
            "to compare with: pass example inputs for which the loss and its gradients are finite"
        )
    if blank:
        logger.warning("nothing to compare: on one device all numbers are NaN or infinite of %s", ", ".join(blank))


def _programs(
    axes: AxisGraph,
    cluster: Cluster,
    kind: str,
    seed: int,
    count: int,
    splits: Literal["random"] | Splits | None,
    asked: Asked,
) -> list[tuple[Program, Splits, Classes]]:
    """The programs to run, with their splits and the further split classes that they need."""
    from hap._core import Graph as CoreGraph
    from hap.balance import largest_remainder
    from hap.planning import plan_axes
    from hap.planning.setup import make_constraints

    ranks = len(cluster.devices)
    sizes = {axis.name: axis.size for axis in axes.axes}
    speeds = [device.speed for device in cluster.devices]
    shares = [speed / sum(speeds) for speed in speeds]
    pins = read_pins(asked["pin"], asked["forbid"])
    constraints = make_constraints(axes, asked["forbidden_axes"], asked["required_axis"], pins)
    core = CoreGraph(axes.to_json()) if kind == "random" else None
    found: list[tuple[Program, Splits, Classes]] = []
    for number in range(count if kind == "random" or splits == "random" else 1):
        generator = random.Random(f"{seed}.{number}")
        if splits == "random":
            units = {name: random_units(size, ranks, generator) for name, size in sizes.items()}
        else:
            units = {name: largest_remainder(shares, size) for name, size in sizes.items()}
            units |= {name: list(given) for name, given in (splits or {}).items()}
        if core is not None:
            request = {"splits": units, "constraints": constraints, "random": generator.getrandbits(32)}
            reply = core.synthesise(cluster.to_json(), msgspec.json.encode(request).decode())
            found.append((msgspec.json.decode(reply, type=_Reply).program, units, {}))
        else:
            fixed = units if splits is not None else {}
            plan = plan_axes(axes, cluster, splits=fixed, **asked)
            found.append((plan.program, plan.splits, plan.classes))
    return found


class _Reply(msgspec.Struct):
    program: Program


def random_units(total: int, ranks: int, generator: random.Random) -> list[int]:
    """Units of each rank, summing to ``total``: often zero or one for some."""
    units = [0] * ranks
    allowed = [rank for rank in range(ranks) if generator.random() < 0.7] or [generator.randrange(ranks)]
    for _ in range(total):
        units[generator.choice(allowed)] += 1
    return units


def _label(output: Emulated, graph: Graph) -> str:
    """The output's name; with its kind where another output bears the same."""
    same = sum(entry.name == output.name for entry in graph.outputs)
    name = output.name or output.kind
    return name if same == 1 else f"{name} ({output.kind})"

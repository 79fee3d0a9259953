"""``hap.parallelize``: a module in, the same module out, trained by all devices together."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import nn

from hap import _core
from hap.cluster import Cluster
from hap.errors import HapError, PlanError
from hap.planning.optimisers import Optimiser, OptimiserMemory, optimiser_memory, steps_together
from hap.planning.pins import Pins, as_given, read_pins
from hap.planning.plan import Plan
from hap.profiling.cache import profiled
from hap.profiling.fingerprint import warn_of_other_hardware
from hap.program import Placements, Splits
from hap.rules import divided
from hap.runtime.agree import Control, process_group
from hap.runtime.compiled import compiler
from hap.runtime.devices import device_of
from hap.runtime.drift import check_interval, computes_alike
from hap.runtime.failure import watch
from hap.runtime.group import Group
from hap.runtime.hardware import check_hardware
from hap.runtime.module import ParallelModule, signed
from hap.runtime.padding import Padding, check_padding, padded
from hap.runtime.session import Session
from hap.runtime.versions import versions
from hap.runtime.weights import Weights
from hap.trace.inputs import check_examples
from hap.units import seconds_text

if TYPE_CHECKING:
    from hap.cluster import Device
    from hap.rules import AxisGraph

_log = logging.getLogger("hap")

MEASURED_MEMORY = (
    "Without devices=, the memory of each device is what hap.parallelize found free of it. Where other processes hold "
    "some, end them first, or say how much the job may use by devices=."
)
"""Added to errors of plans that do not fit such devices."""


def parallelize(
    module: nn.Module,
    devices: Cluster | Sequence[str | Device | Cluster] | None = None,
    example_inputs: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    plan: Plan | None = None,
    forbidden_axes: Sequence[str] = (),
    required_axis: str | None = None,
    pin: Pins | None = None,
    forbid: Pins | None = None,
    optimiser: Optimiser = "Adam",
    weights: str | os.PathLike[str] | None = None,
    accumulation: bool = False,
    sharded_outputs: bool = False,
    active: Sequence[int] | None = None,
    pad_to_multiple: Padding | None = None,
    drift_interval: int | None = 100,
    compile: bool | str | Mapping[str, Any] = False,
) -> Any:
    """Train a module on several devices, each its share, with the same loss and gradients as on one.

    Started by ``torchrun`` with one process per device; uses the process group that exists, else makes one from the
    environment; without either the job is this process alone. Rank 0 plans, all ranks run. Parameters start as those
    of rank 0.

    The module comes back with a class of its own that derives from its old one; names, hierarchy and state stay, and
    parameters become this rank's shards in place, so that optimisers made earlier stay valid. Use any optimiser of
    ``torch.optim`` that works element by element (SGD, Adam, AdamW, RMSprop, ...).

    Inputs are global batches, the same on every rank, unless they come through ``model.local_inputs`` or
    :class:`hap.DistributedSampler`. A call with new shapes is planned again with the parameters where they are; so is
    one with new values that the forward inspects in Python (``if mask.all():``); plans for the last 64 of these are
    kept. A scalar loss is the global one on
    every rank; other outputs beside it stay where they are, as :class:`hap.ShardedTensor`. Without a scalar loss
    outputs come back whole. Random numbers (dropout) are functions of a seed, the number of the call, and their place
    in the whole tensor, so that they are the same on any devices, under any plan. The seed is ``torch.initial_seed()``
    of rank 0 now, so ``torch.manual_seed`` before this call determines the run. ``model.rng_state`` is seed and step,
    to be saved and set again.

    The loss is the output called ``loss``, else the scalars. Outputs beside it are for metrics and carry no gradient:
    a loss computed from them outside raises at its ``backward``. Compute all of the loss inside the module, or return
    outputs alone, without a scalar beside them, or say ``sharded_outputs``. ``full_tensor()`` is the whole output;
    ``detach()`` it for metrics.

    Under ``torch.autograd.detect_anomaly()``, on all ranks, every instruction's result is checked for NaN, slowly; all
    ranks then raise an error that names the first one, its operator and source line.

    The module is traced as it is now. Afterwards ``train()``, ``eval()`` and ``requires_grad_()`` are followed. Other
    changes raise at the next call: numbers and texts in attributes of modules, submodules, hooks (but for forward hooks
    that the module itself gets later, which run around the call; pre-hooks only where it had none now), plain tensors
    that the forward reads. Not noticed are other values in lists, dicts, globals and the user's own objects, and writes
    through ``.data`` or NumPy: to change these, parallelize again.

    Args:
        module: the module, with its parameters in memory, or on the meta device: then each rank makes its shards only,
            from ``weights``, or by the submodules' ``reset_parameters``, innermost first (Hugging Face's
            ``_init_weights``).
        devices: a cluster, or its devices in rank order; the log warns of a cluster that was measured on other
            hardware. By default those of ``plan``, or else what there is: measured in some seconds, and remembered
            (:mod:`hap.profiling.cache`).
        example_inputs: positional arguments of one global batch: plans now; without them the first call plans.
        example_kwargs: keyword arguments likewise.
        plan: a plan made before by :func:`hap.plan` for these inputs and devices; the first call uses it. Its
            constraints hold for further kinds of calls too.
        forbidden_axes: names of axes that must not be split.
        required_axis: the axis that every operator shares its work along, if it can at all.
        pin: placements that named tensors must have, as for :func:`hap.plan`. They hold for every kind of call; the
            first one must have all that they name.
        forbid: placements that they must not have, likewise.
        optimiser: what will train the parameters, for the prediction of memory, as for :func:`hap.plan`.
        weights: safetensors that hold the parameters, a file or a folder (with Hugging Face's index where there are
            several), in place of the module's. Each rank reads its slices. Buffers may be missing.
        accumulation: whether to count the buffers of ``model.no_sync()`` in that prediction, one tensor of its piece
            for each parameter. They are then kept to that: gradients that are scattered are so for each microbatch.
            Without it, buffers hold what is there before the scatter, whole tensors, and are not counted. With
            ``plan=``, give it to :func:`hap.plan` too.
        sharded_outputs: whether a loss is computed outside of the module from each rank's piece of its outputs, which
            then are not gathered: all come as :class:`hap.ShardedTensor`, which tells how, and gradients go back
            through all that one device would record some of. Scalars stay whole, as losses are. An output is split
            along the samples, as far as it is at all, unless it is pinned.
        active: as for :func:`hap.plan`. The first plan decides which ranks stay idle in all that follow.
        pad_to_multiple: inputs whose lengths vary, so that few need a plan: ``{"kwargs.labels": (1, 64, -100)}`` pads
            dimension 1 of that input to a multiple of 64 by labels that are ignored; ``args.0`` is the first positional
            one. Padding must not change the loss; outputs are as long as the padded inputs.
        drift_interval: what is whole on every rank, and that each computes for itself, differs in its last digits, and
            drifts apart. After so many steps of an optimiser from ``torch.optim``, rank 0's values of such parameters
            and buffers, and what the optimiser keeps for them, are broadcast; ``model.drift`` is how far they were
            apart. On like devices these are parameters whose gradient is not the result of a collective, and buffers;
            on unlike ones all that are whole. All ranks must step their optimisers alike. ``None`` for never.
        compile: whether to run the operators between collectives through ``torch.compile``: ``True``, the name of a
            backend, or a dict of its arguments. The first call of each kind compiles, which takes its time; plans know
            nothing of it, and what a backward was given is freed at the end of a stretch only.

    Raises:
        RuntimeMismatchError: the number of processes is not that of the devices, an accelerator is another one than
            planned for or has less memory free, or the ranks differ.
        TraceError: the module cannot be captured.
        PlanError: no plan fits, or constraints conflict.
        HapError: the module cannot be taken.
    """

    def held(*, together: bool) -> OptimiserMemory:
        """What the optimiser holds, where nothing is planned yet; ``together`` as of :func:`optimiser_memory`."""
        return optimiser_memory(optimiser, together=together, accumulation=accumulation)

    def described() -> tuple[Cluster | None, dict[str, str]]:
        """The devices, where they are known, and all arguments in words."""
        _check_module(module)
        if plan is not None and not isinstance(plan, Plan):
            raise HapError(f"plan: expected a hap.Plan, got {plan!r}; hap.Plan.load reads one from a file")
        check_padding(pad_to_multiple or {})
        check_examples(() if example_inputs is None else example_inputs, example_kwargs)
        asked: dict[str, object] = {"forbidden_axes": forbidden_axes, "required_axis": required_axis}
        asked |= {"pin": pin, "forbid": forbid, "optimiser": optimiser != "Adam", "sharded_outputs": sharded_outputs}
        for argument, given in asked.items():
            if plan is not None and given:
                raise HapError(f"{argument}= has no effect on a plan made before: give it to hap.plan")
        check_interval(drift_interval)
        devices_given = plan.cluster if devices is None and plan is not None else devices
        known = None if devices_given is None else Cluster.of(devices_given)
        return (
            known,
            {
                "plan=": "none"
                if plan is None
                else f"a plan with the hash {hashlib.sha256(plan.to_json().encode()).hexdigest()[:16]}",
                "whether example inputs are given": str(example_inputs is not None or example_kwargs is not None),
                "forbidden_axes=": str(sorted(forbidden_axes)),
                "required_axis=": str(required_axis),
                "pin= or forbid=": ", ".join(map(str, read_pins(pin, forbid))),
                # What was given: how it steps where nothing is said depends on a rank's device.
                "optimiser= or accumulation=": f"{held(together=False)}, accumulation={accumulation}",
                "sharded_outputs=": str(sharded_outputs),
                "drift_interval=": str(drift_interval),
                "whether weights= are given": str(weights is not None),
                "active=": str(active),
                "pad_to_multiple=": str(pad_to_multiple),
                # Backends may be functions, which have no text that is the same everywhere.
                "compile=": f"arguments {sorted(compile)}" if isinstance(compile, Mapping) else str(compile),
                "devices=": "none" if known is None else known.to_json(),
            },
        )

    ranks = process_group(None)
    control, group = Control(ranks), Group(ranks)
    known, same = control.together(described, "checking the arguments of hap.parallelize")
    if plan is not None:
        sharded_outputs = plan.sharded_outputs
        forbidden_axes, required_axis = plan.forbidden_axes, plan.required_axis
        pin, forbid = as_given(plan.pin), as_given(plan.forbid)
    watch(control)
    control.same(versions() | same, "hap.parallelize")
    process_group(None if known is None else len(known.devices))
    cluster = profiled(control, device_of(module)) if known is None else known
    together = device_of(module).type == "cuda" or steps_together(cluster)
    kept = held(together=together) if plan is None else plan.optimiser

    def make_plan(axes: AxisGraph, placements: dict[str, Placements], fixed: Splits) -> str:
        from hap.planning import plan_axes
        from hap.planning.memory import ScarceMemoryError
        from hap.planning.text import left_out_text

        if plan is not None and session.latest is None:
            _check_plan(plan, axes, cluster)
            return plan.to_json()
        try:
            made = plan_axes(
                axes,
                cluster,
                forbidden_axes=forbidden_axes,
                required_axis=required_axis,
                pin=pin,
                forbid=forbid,
                strict=session.latest is None,
                optimiser=kept,
                placements=placements,
                splits=fixed,
                active=session.active.devices if session.placed else active,
            )
        except ScarceMemoryError as error:
            if known is not None:
                raise
            raise ScarceMemoryError(f"{error}\n{MEASURED_MEMORY}") from error
        if made.left_out and made.active is None:
            _log.warning(
                "a step takes %s without %s: these ranks stay idle; active= says which have to work",
                seconds_text(made.predicted_time), left_out_text(made),
            )  # fmt: skip
        return made.to_json()

    alike = computes_alike(control, device_of(module))
    seed = control.settle(lambda: signed(torch.initial_seed()), "agreeing on a seed")

    def taken() -> Session:
        read = None if weights is None else Weights(weights)
        return Session(
            module,
            cluster,
            control,
            group,
            make_plan,
            seed,
            read,
            drift_interval=drift_interval,
            alike=alike,
            within=accumulation,
            sharded_outputs=sharded_outputs,
            make=compiler(compile, device_of(module)),
        )

    session = control.together(taken, "taking the module")
    session.padding = pad_to_multiple or {}
    check_hardware(control, cluster, session.device)
    if known is not None:
        warn_of_other_hardware(control, cluster, session.device)
    module._hap_session = session  # type: ignore[assignment]
    kind = type(module)
    module.__class__ = type(f"Parallel{kind.__name__}", (ParallelModule, kind), {"__module__": kind.__module__})
    if example_inputs is not None or example_kwargs is not None:
        try:
            with torch.enable_grad():
                call = padded(session.padding, control, tuple(example_inputs or ()), dict(example_kwargs or {}))
                session.prepare(*call)
        except Exception:
            if session.failure is None:
                # Nothing has been placed yet: the user gets the module back as it was.
                module.__class__ = kind
                del module._hap_session
            raise
    return module


def _check_module(module: object) -> None:
    if not isinstance(module, nn.Module):
        raise HapError(f"expected a torch.nn.Module, got {type(module).__name__}")
    if isinstance(module, ParallelModule):
        module._hap_session.check_whole()
        raise HapError("the module is parallel already: call hap.parallelize once")


def _check_plan(plan: Plan, axes: AxisGraph, cluster: Cluster) -> None:
    plan.check_graph(axes.fingerprint)
    if _decisive(plan.cluster) != _decisive(cluster):
        raise PlanError("the plan was made for other devices: pass devices=plan.cluster, or plan again")
    try:
        _core.Graph(divided(axes, plan.classes).to_json()).validate(msgspec.json.encode(plan.program).decode())
    except ValueError as error:
        raise PlanError(f"the plan does not hold: {error}") from error


def _decisive(cluster: Cluster) -> str:
    """All of a cluster that plans depend on."""
    costs = {name: replace(cost, error=None) for name, cost in cluster.collectives.items()}
    return replace(cluster, collectives=costs, fingerprint=None).to_json()

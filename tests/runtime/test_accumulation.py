"""Backwards in two parts: sums over microbatches, then the collectives that they leave for the end."""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import Replicate, Shard

import hap
from hap import interpret
from hap.errors import HapError
from hap.runtime import lockstep
from hap.runtime.accumulate import Parts, in_parts
from hap.runtime.code import Code
from hap.runtime.collectives import moves
from hap.runtime.lower import lower
from hap.runtime.placing import layout
from hap.runtime.schedule import Property
from hap.runtime.step import Step
from tests import models
from tests.runtime.jobs import cluster
from tests.runtime.programs import random_program, random_splits
from tests.runtime.test_lockstep import FEW, tolerance, traced


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["mlp", "gpt2_dropout"])
@FEW
@given(seed=st.integers(0, 2**32))
def test_two_microbatches_under_random_programs(name: str, seed: int) -> None:
    axes, first = traced(name).axes, traced(name).values
    graph, generator = axes.graph, random.Random(seed)
    ranks, within = generator.randint(1, 4), generator.random() < 0.5
    splits, program = random_splits(axes, ranks, generator), random_program(axes, generator)

    def changed(kind: str, value: torch.Tensor) -> torch.Tensor:
        if kind == "tangent":
            return -0.5 * value
        return 0.7 * value if kind == "input" and value.is_floating_point() else value

    second = {entry.tensor: changed(entry.kind, first[entry.tensor]) for entry in graph.inputs}
    lowered = [lower(axes, program, splits, rank, ranks=ranks) for rank in range(ranks)]
    here = [lockstep.Here(rank, ranks) for rank in range(ranks)]
    cpu = torch.device("cpu")
    parts = [
        in_parts(axes, program, splits, Step(graph, local, group, frozenset(), cpu), within=within)  # type: ignore[arg-type]
        for local, group in zip(lowered, here, strict=True)
    ]

    def pieces(given: Any, values: Any, rank: int) -> list[torch.Tensor]:
        return [placed(one.gains).share(values[one.gains.tensor], rank) for one in given]

    def placed(prop: Property) -> Any:
        return layout(axes, splits, prop.tensor, prop.placements, ranks)

    sums: list[list[torch.Tensor]] = [[] for _ in range(ranks)]
    with torch.no_grad():
        for values in (first, second):
            saved = lockstep.run([
                lockstep.interpret(local.forward_graph, [*pieces(local.inputs, values, rank), here[rank]], rank)
                for rank, local in enumerate(lowered)
            ])  # fmt: skip
            results = lockstep.run([
                lockstep.interpret(
                    parts[rank].summing.graph,
                    [*saved[rank][len(local.outputs) :], *pieces(local.tangents, values, rank), here[rank]],
                    rank,
                )
                for rank, local in enumerate(lowered)
            ])  # fmt: skip
            for rank, result in enumerate(results):
                added = [value.to(dtype) for value, dtype in zip(result, parts[rank].types, strict=False)]
                sums[rank] = [a + b for a, b in zip(sums[rank] or [torch.zeros(())] * len(added), added, strict=True)]
        reduced = lockstep.run([
            lockstep.interpret(parts[rank].reducing.graph, [*sums[rank], here[rank]], rank) for rank in range(ranks)
        ])  # fmt: skip
    expected = [interpret.run(graph, values) for values in (first, second)]
    where = {graph.outputs[one.output].name: one.needs for one in lowered[0].gradients}
    for position, parameter in enumerate(parts[0].parameters):
        whole = sum(outputs["gradient", parameter] for outputs in expected)  # type: ignore[misc]
        lying = placed(where[parameter])
        copies = [result[position] for result in reduced]
        for copied in copies if lying.along is None else [lying.assemble(copies)]:
            error = float((copied - whole).norm()) / max(float(whole.norm()), 1e-3)
            assert error <= tolerance(axes), parameter
    if within:
        assert all(
            total.numel() <= math.prod(placed(where[name]).shapes[rank])
            for rank in range(ranks)
            for total, names in zip(sums[rank], parts[rank].parents, strict=True)
            for name in sorted(names)
        )


def collectives(code: Code | None) -> int:
    """Tensors that collectives convert, several of them together or not."""
    assert code is not None
    found = [node.args for node in code.graph.nodes if moves(node.target)]
    return sum(len(args[1]) if args[0] == "all_reduce_together" else 1 for args in found)


def written(code: Code | None) -> int:
    """Operators that write to memory that is there."""
    assert code is not None
    return sum("out" in node.kwargs for node in code.graph.nodes)


def test_reductions_wait_for_the_end() -> None:
    """Where the batch is shared and parameters are whole, a microbatch moves nothing for its gradients."""
    module, args, _ = models.mlp(torch.float32, dropout=0.0)

    def parts(weight: Any, *, within: bool) -> tuple[Parts, Any]:
        pin = {name: Replicate() for name, _ in module.named_parameters()} | {"layers.0.weight": weight}
        plan = hap.plan(module, devices=cluster(2), example_inputs=args, pin=pin, required_axis="batch")
        axes = hap.rules.annotate(hap.trace(module, args))
        local = lower(axes, plan.program, plan.splits, 0, ranks=2)
        step = Step(axes.graph, local, lockstep.Here(0, 2), frozenset(), torch.device("cpu"))  # type: ignore[arg-type]
        return in_parts(axes, plan.program, plan.splits, step, within=within), local

    count = len(list(module.parameters()))
    made, local = parts(Replicate(), within=True)
    assert collectives(made.reducing) == count
    assert collectives(made.summing) == collectives(local.backward) - count
    assert written(made.summing) == written(local.backward) > 0
    made, local = parts(Shard(0), within=False)
    assert collectives(made.reducing) == count
    made, local = parts(Shard(0), within=True)
    assert collectives(made.reducing) == count - 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh()).square().mean()


def pair(dtype: torch.dtype = torch.float64) -> tuple[Any, nn.Module, torch.Tensor]:
    module, alone = Net().to(dtype), Net().to(dtype)
    alone.load_state_dict(module.state_dict())
    x = torch.randn(12, 6, dtype=dtype, generator=torch.Generator().manual_seed(1))
    return hap.parallelize(module, cluster(1)), alone, x


def equal(model: Any, alone: nn.Module) -> None:
    for mine, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_what_counts_is_where_the_forward_runs() -> None:
    model, alone, x = pair()
    with model.no_sync():
        inside = model(x[:5])
    inside.backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    outside = model(x[5:])
    with model.no_sync():
        outside.backward()
    (alone(x[:5]) + 0.0).backward()
    alone(x[5:]).backward()
    equal(model, alone)
    # One backward through calls of both kinds; what is inside comes last.
    with model.no_sync():
        inside = model(x[:5])
    (inside + model(x[5:])).backward()
    (alone(x[:5]) + alone(x[5:])).backward()
    equal(model, alone)


def test_contexts_within_contexts_and_errors_in_them() -> None:
    model, alone, x = pair()
    with model.no_sync():
        with model.no_sync():
            model(x[:3]).backward()
        with contextlib.suppress(ZeroDivisionError), model.no_sync():
            raise ZeroDivisionError
        model(x[3:6]).backward()
    assert model.first.weight.grad is None
    model(x[6:]).backward()
    for part in (x[:3], x[3:6], x[6:]):
        alone(part).backward()
    equal(model, alone)


def test_a_parameter_that_the_last_microbatch_does_not_train() -> None:
    model, alone, x = pair()
    with model.no_sync():
        model(x[:6]).backward()
    alone(x[:6]).backward()
    for one in (model, alone):
        one.second.requires_grad_(False)
        one(x[6:]).backward()
    equal(model, alone)


def test_gradients_of_inputs_do_not_wait() -> None:
    model, alone, x = pair()
    mine, other = (x.clone().requires_grad_() for _ in range(2))
    with model.no_sync():
        model(mine).backward()
    alone(other).backward()
    torch.testing.assert_close(mine.grad, other.grad)


@pytest.mark.parametrize("drop", ["model", "optimiser", "both optimisers"])
def test_gradients_that_wait(drop: str) -> None:
    model, alone, x = pair()
    halves = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.first, model.second)]
    with model.no_sync():
        model(x).backward()
    for optimiser in halves:
        with pytest.raises(HapError, match=r"SGD's step: the gradient of .* outside of no_sync\(\)"):
            optimiser.step()
    with pytest.raises(HapError, match=r"clip_grad_norm_: the gradient of .* not reduced yet"):
        hap.clip_grad_norm_(model, 1.0)
    torch.optim.SGD(alone.parameters(), lr=0.1).step()
    if drop == "model":
        model.zero_grad()
    else:
        for optimiser in halves[: 1 if drop == "optimiser" else 2]:
            optimiser.zero_grad()
    if drop != "both optimisers" and drop != "model":
        alone.second(alone.first(x).detach().tanh()).square().mean().backward()
    model(x[:5]).backward()
    alone(x[:5]).backward()
    equal(model, alone)


def test_sums_are_as_wide_as_the_gradient() -> None:
    """Under autocast summands are in 16 bits, gradients are not."""
    model, alone, x = pair(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        with model.no_sync():
            model(x[:6]).backward()
        loss = model(x[6:])
    loss.backward()
    assert set(model._hap_session.latest.parts.types) == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        losses = alone(x[:6]), alone(x[6:])
    for loss in losses:
        loss.backward()
    for mine, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert float((mine.grad - other.grad).norm()) < 0.02 * float(other.grad.norm())


def test_memory_is_counted_where_asked_for() -> None:
    module, args, _ = models.mlp(torch.float32)
    plans = [hap.plan(module, devices=cluster(1), example_inputs=args, accumulation=asked) for asked in (False, True)]
    parameters = sum(parameter.numel() * 4 for parameter in module.parameters())
    assert plans[1].predicted_memory[0] - plans[0].predicted_memory[0] == parameters
    model = hap.parallelize(module, cluster(1), args, accumulation=True)
    assert model.plan.predicted_memory == plans[1].predicted_memory

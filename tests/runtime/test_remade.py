"""Values that are freed and made again: the same numbers, and nothing that was freed is saved for the backward."""

from __future__ import annotations

import functools
import os
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hap._core import Graph as CoreGraph
from hap.errors import LoweringError
from hap.program import Compute, Free, InputInstruction, Instruction, OutputInstruction, Program
from hap.rules import AxisGraph
from hap.runtime import schedule
from hap.runtime.emulate import emulate
from hap.runtime.lower import lower
from hap.runtime.schedule import Property, arrange, gains_of
from tests import models
from tests.runtime.one_device import Step, step
from tests.runtime.programs import random_program, random_splits
from tests.runtime.remade import boundary, makes, reads, remade_anywhere, remade_in_backward

FEW = settings(max_examples=int(os.environ.get("HAP_TEST_EXAMPLES", "6")))
EVERY_KIND = ("mlp", "noisy", "block", "normalised")


class Block(nn.Module):
    """A transformer's block with every dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.first, self.second, self.drop = nn.LayerNorm(8), nn.LayerNorm(8), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=True)
        x = x + self.drop(self.out(attended.transpose(1, 2).flatten(2)))
        x = x + self.drop(self.down(F.gelu(self.up(self.second(x)))))
        return F.mse_loss(x, y)


class Normalised(nn.Module):
    """Two outputs of one operator, and a buffer that changes between forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        large, place = self.norm(self.inner(x)).relu().topk(8, 1)
        return F.cross_entropy(self.outer(large + 0.1 * place), y)


def built(name: str) -> models.Built:
    if name in ("mlp", "noisy"):
        return models.mlp(dropout=0.4) if name == "mlp" else models.noisy()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        if name == "block":
            x = torch.randn(3, 4, 8, dtype=torch.float64)
            return Block().double(), (x, torch.randn_like(x)), {}
        x = torch.randn(6, 6, dtype=torch.float64)
        return Normalised().double(), (x, torch.randint(0, 4, (6,))), {}


@functools.cache
def traced(name: str) -> Step:
    return step(*built(name))


@functools.cache
def core(name: str) -> CoreGraph:
    return CoreGraph(traced(name).axes.to_json())


def freed_before_the_backward(axes: AxisGraph, program: Program) -> set[Property]:
    """What is freed before anything reads a tangent, but for what an output is read from."""
    index = {tensor.name: number for number, tensor in enumerate(axes.graph.tensors)}
    generations: Counter[Any] = Counter()
    freed, kept = set(), set()
    for instruction in program.instructions[: boundary(axes, program)]:
        if isinstance(instruction, (Free, OutputInstruction)):
            ((tensor, placement),) = reads(instruction)
            (freed if isinstance(instruction, Free) else kept).add(
                Property(index[tensor], placement, generations[tensor, placement])
            )
            generations[tensor, placement] += isinstance(instruction, Free)
    return freed - kept


def check(name: str, program: Program, generator: random.Random) -> int:
    """Valid, equal to one device, and what was freed is not saved; how many values were freed before the backward."""
    whole, ranks = traced(name), generator.randint(1, 4)
    splits = random_splits(whole.axes, ranks, generator)
    core(name).validate(text(program))
    freed = freed_before_the_backward(whole.axes, program)
    for rank in range(ranks):
        assert freed.isdisjoint(lower(whole.axes, program, splits, rank, ranks=ranks).saved)
    whole.check(program, splits, ranks, 1e-10)
    return len(freed)


def text(program: Program) -> str:
    return msgspec.json.encode(program).decode()


@pytest.mark.parametrize("name", EVERY_KIND)
@FEW
@given(seed=st.integers(0, 2**32))
def test_any_value_freed_at_any_time_and_made_again(name: str, seed: int) -> None:
    generator = random.Random(seed)
    program = random_program(traced(name).axes, generator)
    check(name, remade_anywhere(program, generator, generator.choice([0.1, 0.3])), generator)


@pytest.mark.parametrize("name", EVERY_KIND)
@FEW
@given(seed=st.integers(0, 2**32))
def test_the_forward_made_again_in_the_backward(name: str, seed: int) -> None:
    generator = random.Random(seed)
    axes = traced(name).axes
    program, freed = remade_in_backward(axes, random_program(axes, generator), generator, generator.choice([0.3, 1.0]))
    assert check(name, program, generator) == len(freed) > 0
    made, index = arrange(axes, program), {tensor.name: n for n, tensor in enumerate(axes.graph.tensors)}
    again = {(index[tensor], placements) for tensor, placements in freed}
    # In no generation: what the backward needs of it is made there.
    assert again.isdisjoint(prop[:2] for prop in made.saved)
    assert not any(prop.generation for step in made.forward for prop in gains_of(step))


def plain_mlp() -> tuple[AxisGraph, Program]:
    """All of it whole on every device."""
    axes = traced("mlp").axes
    tensors, instructions = axes.graph.tensors, list[Instruction]()
    for entry in axes.graph.inputs:
        instructions.append(InputInstruction(tensors[entry.tensor].name, ("R",)))
    for operator in axes.graph.operators:
        placed = [
            [(tensors[t].name, ("R",)) for t in some if t is not None] for some in (operator.operands, operator.results)
        ]
        instructions.append(Compute(operator.name, str(operator.target), tuple(placed[0]), tuple(placed[1]), None))
    for output in axes.graph.outputs:
        if output.tensor is not None:
            instructions.append(OutputInstruction(output.name, tensors[output.tensor].name, ("R",)))
    return axes, Program(tuple(instructions))


def dropped_twice() -> tuple[AxisGraph, Program]:
    """All that the forward makes is freed, dropout's results among it, and made again for the backward."""
    axes, program = plain_mlp()
    return axes, remade_in_backward(axes, program, random.Random(0), 1.0)[0]


class Drawn(TorchDispatchMode):
    """What dropout was applied to, and what it made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.hap.dropout.default:
            # Clones: the memory may be written to where nothing needs it any more.
            self.calls.append((args[0].clone(), result.clone()))
        return result


def test_dropout_is_drawn_again_with_the_same_mask() -> None:
    axes, program = dropped_twice()
    splits = {axis.name: [axis.size] for axis in axes.axes}
    with Drawn() as drawn:
        emulate(axes, program, splits, 1, traced("mlp").values)
    # Of two layers, in the forward; in the backward both anew, and of the gradients.
    assert len(drawn.calls) == 6
    for x, dropped in drawn.calls[:2]:
        again = [result for operand, result in drawn.calls[2:] if torch.equal(operand, x)]
        assert [torch.equal(result, dropped) for result in again] == [True]
        assert not torch.equal(dropped != 0, x != 0)


def test_where_all_is_made_again_only_inputs_are_saved_and_evaluation_makes_nothing_twice() -> None:
    axes, program = dropped_twice()
    local = lower(axes, program, {axis.name: [axis.size] for axis in axes.axes}, 0, ranks=1)
    assert {prop.tensor for prop in local.saved} <= {entry.tensor for entry in axes.graph.inputs}
    inputs = [traced("mlp").values[given.gains.tensor] for given in local.inputs]
    with Drawn() as drawn:
        (loss,) = local.inference([*inputs, None])
    assert len(drawn.calls) == 2
    assert torch.allclose(loss, traced("mlp").outputs["loss", ""])


@pytest.mark.parametrize("name", ["mlp", "block"])
def test_a_lowering_that_ignores_frees_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(5)
    program, _ = remade_in_backward(traced(name).axes, random_program(traced(name).axes, generator), generator, 0.5)
    monkeypatch.setattr(schedule._There, "free", schedule._There.need)
    with pytest.raises(AssertionError, match="isdisjoint"):
        check(name, program, generator)


def test_what_only_the_backward_needs_is_made_before_its_operand_is_freed() -> None:
    """A reader of what is freed runs in the forward, though no output of the forward needs it."""
    axes, program = plain_mlp()
    index = {tensor.name: number for number, tensor in enumerate(axes.graph.tensors)}
    # The loss's backward: twice the difference, times the tangent.
    at, difference = next(
        (n, one) for n, one in enumerate(program.instructions) if makes(one)[:1] == [("sub_1", ("R",))]
    )
    assert at < boundary(axes, program)
    operand = reads(difference)[0]
    assert not any(operand in reads(one) for one in program.instructions[at + 1 :])
    read, made = Property(index[operand[0]], operand[1]), Property(index["sub_1"], ("R",))
    saved = arrange(axes, program).saved
    assert read in saved
    assert made not in saved
    freeing = Program((*program.instructions[: at + 1], Free(*operand), *program.instructions[at + 1 :]))
    saved = arrange(axes, freeing).saved
    assert read not in saved
    assert made in saved
    # What is freed behind the boundary crosses as ever.
    assert arrange(axes, Program((*program.instructions, Free(*operand)))) == arrange(axes, program)
    check("mlp", freeing, random.Random(1))


def test_errors() -> None:
    axes, program = dropped_twice()
    position = next(n for n, one in enumerate(program.instructions) if isinstance(one, Free))
    freed = program.instructions[position]
    again = (*program.instructions[: position + 1], freed, *program.instructions[position + 1 :])
    with pytest.raises(LoweringError, match=rf'instruction {position + 1} .* needs "{freed.tensor}" .* freed before'):
        arrange(axes, Program(again))

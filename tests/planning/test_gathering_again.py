"""Fully sharded data parallelism (ZeRO-3) as a program made by hand: validated, priced, and equal to one device.

The search gathers a parameter once a step. A linear layer's forward reads its weight through a view, its backward as it
is, so a program can gather the view and the weight apart; the weight's memory is free in between.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from hap.planning.baselines import shards
from hap.planning.engine import Constraints, Prices, parse_program
from hap.planning.setup import make_problem
from hap.program import Compute, Convert, Instruction, Program
from tests.planning import strategies
from tests.planning.strategies import cluster


def gathered_again(program: Program) -> Program:
    """A gathered matrix and the transpose through which it is read are gathered apart, each right before its use."""
    gathers: dict[str, Convert] = {}
    written: list[Instruction] = []
    for instruction in program.instructions:
        if isinstance(instruction, Convert) and instruction.conversion == "all_gather":
            gathers[instruction.tensor] = instruction
            continue
        if isinstance(instruction, Compute):
            for tensor, _ in instruction.inputs:
                if tensor not in gathers:
                    continue
                if instruction.target != "aten.permute.default":
                    written.append(gathers.pop(tensor))
                    continue
                gather, ((view, _),) = gathers[tensor], instruction.outputs
                turned = ({"S0": "S1", "S1": "S0"}[gather.source[0]],)
                written.append(
                    msgspec.structs.replace(
                        instruction,
                        inputs=((tensor, gather.source),),
                        outputs=((view, turned),),
                        axis=gather.axis,
                    )
                )
                instruction = msgspec.structs.replace(gather, tensor=view, source=turned)
        written.append(instruction)
    return Program(tuple(written))


def test_weights_gathered_again_in_the_backward() -> None:
    whole, machines = strategies.deep(), cluster(4)
    problem = make_problem(whole.axes, machines)
    engine, splits = problem.engine, problem.even
    constraints = Constraints(placements=dict.fromkeys(problem.parameters, shards(2)), require_axis="batch")
    kept = engine.synthesise(splits, Prices((0.25,) * 4), constraints)
    again = gathered_again(parse_program(kept.program))
    collectives = (i.conversion for i in again.instructions if isinstance(i, Convert) and i.implementation)
    # The first layer's weight has no part in the backward; the all-reduce is the loss's.
    assert Counter(collectives) == {"all_gather": 6 + 5, "reduce_scatter": 6, "all_reduce": 1}
    before = engine.simulate(kept.program, splits)
    after = engine.simulate(msgspec.json.encode(again).decode(), splits)
    # At the end of the forward, five of the six weights need not be there. The peak is then in the backward, with
    # one of them.
    weight = 32 * 32 * 8
    assert max(after.memory) == max(before.memory) - 4 * weight
    assert after.seconds > before.seconds
    whole.check(again, splits, 4, 1e-10)

"""Scarce memory: what is gathered a second time and what is computed a second time comes out of the search."""

from __future__ import annotations

import re

import pytest

from hap.cluster import Cluster
from hap.errors import PlanError
from hap.planning import Plan, plan_axes
from hap.program import Compute
from tests.planning import strategies
from tests.planning.optima import shown
from tests.planning.strategies import cluster
from tests.runtime.one_device import Step

LAYERS = {f"layers.{index}.weight.0": "shard" for index in range(6)}


def scarce(whole: Step, fraction: float, flops: float = 1e10, whole_parameters: tuple[str, ...] = ()) -> Plan:
    """The plan where devices have this fraction of the memory that a plan takes without a limit, checked."""
    placements = dict.fromkeys(whole_parameters, ("R",))

    def planned(machines: Cluster) -> Plan:
        return plan_axes(whole.axes, machines, placements=placements)

    roomy = planned(cluster(4, flops=flops))
    limit = fraction * max(roomy.predicted_memory)
    plan = planned(cluster(4, flops=flops, memory=limit))
    assert max(plan.predicted_memory) <= limit
    assert plan.predicted_time >= roomy.predicted_time * (1 - 1e-9)
    assert roomy.lower_bound * (1 - 1e-9) <= plan.lower_bound <= plan.predicted_time * (1 + 1e-9)
    whole.check(plan.program, plan.splits, 4, 1e-10)
    return plan


def again(plan: Plan) -> list[str]:
    """What runs twice, by PyTorch's name."""
    seen: set[object] = set()
    found = []
    for instruction in plan.program.instructions:
        if isinstance(instruction, Compute):
            key = (instruction.operator, instruction.outputs)
            if key in seen:
                found.append(instruction.target.split(".")[1])
            seen.add(key)
    return found


def test_parameters_gathered_in_the_forward_and_in_the_backward() -> None:
    """ZeRO-3: weights are larger than activations, and computation is slow, so nothing is computed twice."""
    plan = scarce(strategies.narrow(), 0.4, flops=2e9)
    expected = """
    stored layers.0.weight[shard]
    stored layers.1.weight[shard]
    stored layers.2.weight[shard]
    stored layers.3.weight[shard]
    stored layers.4.weight[shard]
    stored layers.5.weight[shard]
    layers.0.weight = all_gather(layers.0.weight[shard])
    mm[batch] = mm(args.0[batch], layers.0.weight)
    layers.1.weight = all_gather(layers.1.weight[shard])
    mm_1[batch] = mm(relu[batch], layers.1.weight)
    layers.2.weight = all_gather(layers.2.weight[shard])
    mm_2[batch] = mm(relu_1[batch], layers.2.weight)
    layers.3.weight = all_gather(layers.3.weight[shard])
    mm_3[batch] = mm(relu_2[batch], layers.3.weight)
    layers.4.weight = all_gather(layers.4.weight[shard])
    mm_4[batch] = mm(relu_3[batch], layers.4.weight)
    layers.5.weight = all_gather(layers.5.weight[shard])
    mm_5[batch] = mm(relu_4[batch], layers.5.weight)
    sum[partial] = sum(pow[batch])
    sum = all_reduce(sum[partial])
    backward
    mm_6[partial] = mm(threshold_backward[batch], relu_4[batch])
    mm_6[shard] = reduce_scatter(mm_6[partial])
    mm_7[batch] = mm(threshold_backward[batch], layers.5.weight)
    mm_8[partial] = mm(threshold_backward_1[batch], relu_3[batch])
    mm_8[shard] = reduce_scatter(mm_8[partial])
    layers.4.weight = all_gather(layers.4.weight[shard])
    mm_9[batch] = mm(threshold_backward_1[batch], layers.4.weight)
    mm_10[partial] = mm(threshold_backward_2[batch], relu_2[batch])
    mm_10[shard] = reduce_scatter(mm_10[partial])
    layers.3.weight = all_gather(layers.3.weight[shard])
    mm_11[batch] = mm(threshold_backward_2[batch], layers.3.weight)
    mm_12[partial] = mm(threshold_backward_3[batch], relu_1[batch])
    mm_12[shard] = reduce_scatter(mm_12[partial])
    layers.2.weight = all_gather(layers.2.weight[shard])
    mm_13[batch] = mm(threshold_backward_3[batch], layers.2.weight)
    mm_14[partial] = mm(threshold_backward_4[batch], relu[batch])
    mm_14[shard] = reduce_scatter(mm_14[partial])
    layers.1.weight = all_gather(layers.1.weight[shard])
    mm_15[batch] = mm(threshold_backward_4[batch], layers.1.weight)
    mm_16[partial] = mm(threshold_backward_5[batch], args.0[batch])
    mm_16[shard] = reduce_scatter(mm_16[partial])
    gradient of layers.0.weight: mm_16[shard]
    gradient of layers.1.weight: mm_14[shard]
    gradient of layers.2.weight: mm_12[shard]
    gradient of layers.3.weight: mm_10[shard]
    gradient of layers.4.weight: mm_8[shard]
    gradient of layers.5.weight: mm_6[shard]
    """
    forward, backward = shown(strategies.narrow(), plan, expected, LAYERS)
    assert forward == {"all_gather": 6, "all_reduce": 1}
    # The first layer's weight has no part in the backward, and the last one's is kept for it.
    assert backward == {"all_gather": 4, "reduce_scatter": 6}
    assert again(plan) == []
    assert plan.predicted_time < 1.03 * plan.lower_bound


def test_a_cheap_operator_runs_again() -> None:
    """The result of a GELU is made again from that of the matrix product before it, which is kept."""
    weights = tuple(f"{index}.{name}.weight" for index in range(2) for name in ("up", "down"))
    plan = scarce(strategies.feedforward(), 0.9, whole_parameters=weights)
    expected = """
    stored 0.up.weight
    stored 0.down.weight
    stored 1.up.weight
    stored 1.down.weight
    mm[batch] = mm(args.0[batch], 0.up.weight)
    mm_1[batch] = mm(gelu[batch], 0.down.weight)
    mm_2[batch] = mm(mm_1[batch], 1.up.weight)
    mm_3[batch] = mm(gelu_1[batch], 1.down.weight)
    mm_3 = all_gather(mm_3[batch])
    backward
    mm_4[partial] = mm(tangent[batch], gelu_1[batch])
    mm_5[batch] = mm(tangent[batch], 1.down.weight)
    mm_6[partial] = mm(gelu_backward[batch], mm_1[batch])
    mm_7[batch] = mm(gelu_backward[batch], 1.up.weight)
    gelu[batch] = gelu(mm[batch]) again
    mm_8[partial] = mm(mm_7[batch], gelu[batch])
    mm_9[batch] = mm(mm_7[batch], 0.down.weight)
    mm_10[partial] = mm(gelu_backward_1[batch], args.0[batch])
    mm_4 = all_reduce(mm_4[partial])
    mm_6 = all_reduce(mm_6[partial])
    mm_8 = all_reduce(mm_8[partial])
    mm_10 = all_reduce(mm_10[partial])
    gradient of 0.up.weight: mm_10
    gradient of 0.down.weight: mm_8
    gradient of 1.up.weight: mm_6
    gradient of 1.down.weight: mm_4
    """
    shown(strategies.feedforward(), plan, expected)
    assert again(plan) == ["gelu"]
    assert plan.predicted_time < 1.01 * plan.lower_bound


def test_whole_stretches_run_again_at_harder_limits() -> None:
    """With less memory, matrix products run again, too."""
    products = []
    for fraction in (0.6, 0.4):
        plan = scarce(strategies.deep(), fraction)
        products.append(again(plan).count("mm"))
    assert products == [0, 3]


def test_where_nothing_fits_the_largest_holders_are_named() -> None:
    whole = strategies.deep()
    with pytest.raises(PlanError) as caught:
        plan_axes(whole.axes, cluster(4, memory=1e5))
    first, *holders = str(caught.value).splitlines()
    assert re.match(r"no plan fits memory: .* on device \d \(device\), .* more than its 97.66 KiB; it holds", first)
    assert len(holders) == 10
    sizes = [float(re.match(r"  ([\d.]+) KiB \w+ ", line)[1]) for line in holders]
    assert sizes == sorted(sizes, reverse=True)
    text = "\n".join(holders)
    assert re.search(r"KiB activation \w+ \[S0\], strategies.py:\d+: x = layer\(x\).relu\(\)", text)
    assert re.search(r'KiB optimiser layers.\d.weight \[S\d\], "layers.\d.weight"', text)

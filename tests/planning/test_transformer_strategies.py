"""The known ways to split a transformer come out of the search, each where it is the fastest."""

from __future__ import annotations

import pytest

from hap.planning import plan_axes
from tests.planning import strategies
from tests.planning.optima import optimum, shown, stored, without
from tests.planning.strategies import cluster

FLOAT32 = 1e-5
TRANSFORMER = {"attention.qkv.weight.0.1": "heads", "mlp.up.weight.0": "features", "args.0.1": "sequence"}

MEGATRON = """
stored shift
stored attention.qkv.weight[heads]
stored attention.out.weight[heads]
stored mlp.up.weight[features]
stored mlp.down.weight[features]
layer_norm = layer_norm(add)
mm[heads] = mm(layer_norm, attention.qkv.weight[heads])
split[heads] = split(mm[heads])
sdpa[heads] = sdpa(split[heads])
mm_1[partial] = mm(sdpa[heads], attention.out.weight[heads])
mm_1 = all_reduce(mm_1[partial])
layer_norm_1 = layer_norm(add_1)
mm_2[features] = mm(layer_norm_1, mlp.up.weight[features])
mm_3[partial] = mm(gelu[features], mlp.down.weight[features])
mm_3 = all_reduce(mm_3[partial])
sum = sum(pow)
backward
mm_4[features] = mm(mul_1, gelu[features])
mm_5[features] = mm(mul_1, mlp.down.weight[features])
mm_6[features] = mm(gelu_backward[features], layer_norm_1)
mm_7[partial] = mm(gelu_backward[features], mlp.up.weight[features])
mm_7 = all_reduce(mm_7[partial])
layer_norm_backward = layer_norm_backward(mm_7, add_1, layer_norm_1)
mm_8[heads] = mm(add_3, sdpa[heads])
mm_9[heads] = mm(add_3, attention.out.weight[heads])
sdpa_backward[heads] = sdpa_backward(mm_9[heads], split[heads], sdpa[heads])
cat[heads] = cat(sdpa_backward[heads])
mm_10[heads] = mm(cat[heads], layer_norm)
mm_11[partial] = mm(cat[heads], attention.qkv.weight[heads])
layer_norm_backward_1[partial] = layer_norm_backward(mm_11[partial], add, layer_norm)
sum_1[partial] = sum(add_4[partial])
sum_1 = all_reduce(sum_1[partial])
gradient of shift: sum_1
gradient of attention.qkv.weight: mm_10[heads]
gradient of attention.out.weight: mm_8[heads]
gradient of mlp.up.weight: mm_6[features]
gradient of mlp.down.weight: mm_4[features]
"""


def test_megatron() -> None:
    """Weights larger than activations, and a fast all-reduce: one in the forward, one in the backward of each block.

    Weights are split by columns, then by rows.
    """
    whole, machines = strategies.transformer(), cluster(4, all_reduce=4.0)
    plan = optimum(whole, machines, FLOAT32)
    forward, backward = shown(whole, plan, MEGATRON, TRANSFORMER)
    # The last one in the backward is that of the shift, behind which all is linear.
    assert (forward, backward) == ({"all_reduce": 2}, {"all_reduce": 2})
    assert stored(plan, "mlp.up.weight", "mlp.down.weight") == ["S0", "S1"]
    assert stored(plan, "attention.qkv.weight", "attention.out.weight") == ["S1", "S1"]
    without(whole, machines, plan, ["attention.qkv.weight.0.1", "mlp.up.weight.0"])


def test_megatron_on_unequal_devices() -> None:
    """The same program; the device that is twice as fast as the others has twice as many heads and features."""
    whole, machines = strategies.transformer(), cluster(3, speeds=(2.0, 1.0, 1.0), all_reduce=4.0)
    plan = optimum(whole, machines, FLOAT32)
    shown(whole, plan, MEGATRON, TRANSFORMER)
    assert plan.splits["attention.qkv.weight.0.1"] == [2, 1, 1]
    assert plan.splits["mlp.up.weight.0"] == pytest.approx([64, 32, 32], abs=2)
    other = plan_axes(whole.axes, machines, splits={"attention.qkv.weight.0.1": [1, 2, 1]})
    assert other.predicted_time > 1.001 * plan.predicted_time


def test_sequence_parallelism() -> None:
    """The same where an all-reduce is no faster than its halves: between the blocks, the sequence is split."""
    whole, machines = strategies.transformer(), cluster(4, all_reduce=0.8)
    plan = optimum(whole, machines, FLOAT32)
    expected = """
    stored shift
    stored attention.qkv.weight[heads]
    stored attention.out.weight[heads]
    stored mlp.up.weight[features]
    stored mlp.down.weight[features]
    layer_norm = layer_norm(add)
    mm[heads] = mm(layer_norm, attention.qkv.weight[heads])
    split[heads] = split(mm[heads])
    sdpa[heads] = sdpa(split[heads])
    mm_1[partial] = mm(sdpa[heads], attention.out.weight[heads])
    mm_1[sequence] = reduce_scatter(mm_1[partial])
    layer_norm_1[sequence] = layer_norm(add_1[sequence])
    layer_norm_1.0 = all_gather(layer_norm_1.0[sequence])
    mm_2[features] = mm(layer_norm_1, mlp.up.weight[features])
    mm_3[partial] = mm(gelu[features], mlp.down.weight[features])
    mm_3[sequence] = reduce_scatter(mm_3[partial])
    sum[partial] = sum(pow[sequence])
    sum = all_reduce(sum[partial])
    backward
    mul_1 = all_gather(mul_1[sequence])
    mm_4[features] = mm(mul_1, gelu[features])
    mm_5[features] = mm(mul_1, mlp.down.weight[features])
    mm_6[features] = mm(gelu_backward[features], layer_norm_1)
    mm_7[partial] = mm(gelu_backward[features], mlp.up.weight[features])
    mm_7[sequence] = reduce_scatter(mm_7[partial])
    layer_norm_backward[sequence] = layer_norm_backward(mm_7[sequence], add_1[sequence], layer_norm_1[sequence])
    add_3 = all_gather(add_3[sequence])
    mm_8[heads] = mm(add_3, sdpa[heads])
    mm_9[heads] = mm(add_3, attention.out.weight[heads])
    sdpa_backward[heads] = sdpa_backward(mm_9[heads], split[heads], sdpa[heads])
    cat[heads] = cat(sdpa_backward[heads])
    mm_10[heads] = mm(cat[heads], layer_norm)
    mm_11[partial] = mm(cat[heads], attention.qkv.weight[heads])
    layer_norm_backward_1[partial] = layer_norm_backward(mm_11[partial], add, layer_norm)
    sum_1[partial] = sum(add_4[partial])
    sum_1 = all_reduce(sum_1[partial])
    gradient of shift: sum_1
    gradient of attention.qkv.weight: mm_10[heads]
    gradient of attention.out.weight: mm_8[heads]
    gradient of mlp.up.weight: mm_6[features]
    gradient of mlp.down.weight: mm_4[features]
    """
    forward, backward = shown(whole, plan, expected, TRANSFORMER)
    # Only the loss and the shift's gradient are all-reduced.
    assert forward == {"reduce_scatter": 2, "all_gather": 1, "all_reduce": 1}
    assert backward == {"all_gather": 2, "reduce_scatter": 1, "all_reduce": 1}
    assert stored(plan, "mlp.up.weight", "mlp.down.weight") == ["S0", "S1"]
    without(whole, machines, plan, ["args.0.1", "attention.qkv.weight.0.1", "mlp.up.weight.0"])


def test_sequences_exchanged_for_heads() -> None:
    """Activations larger than weights: the sequence is split all along, and in the attention the heads (Ulysses)."""
    whole, machines = strategies.long_transformer(), cluster(4)
    plan = optimum(whole, machines, FLOAT32)
    expected = """
    stored shift
    stored mlp.up.weight
    stored mlp.down.weight
    stored attention.qkv.weight
    stored attention.out.weight
    layer_norm[sequence] = layer_norm(add[sequence])
    mm[sequence] = mm(layer_norm[sequence], mlp.up.weight)
    mm_1[sequence] = mm(gelu[sequence], mlp.down.weight)
    layer_norm_1[sequence] = layer_norm(add_1[sequence])
    mm_2[sequence] = mm(layer_norm_1[sequence], attention.qkv.weight)
    mm_2[heads] = all_to_all(mm_2[sequence])
    split[heads] = split(mm_2[heads])
    sdpa[heads] = sdpa(split[heads])
    sdpa.0[sequence] = all_to_all(sdpa.0[heads])
    mm_3[sequence] = mm(sdpa[sequence], attention.out.weight)
    sum[partial] = sum(pow[sequence])
    sum = all_reduce(sum[partial])
    backward
    mm_4[partial] = mm(mul_1[sequence], sdpa[sequence])
    mm_5[sequence] = mm(mul_1[sequence], attention.out.weight)
    mm_5[heads] = all_to_all(mm_5[sequence])
    sdpa_backward[heads] = sdpa_backward(mm_5[heads], split[heads], sdpa[heads])
    cat[heads] = cat(sdpa_backward[heads])
    cat[sequence] = all_to_all(cat[heads])
    mm_6[partial] = mm(cat[sequence], layer_norm_1[sequence])
    mm_7[sequence] = mm(cat[sequence], attention.qkv.weight)
    layer_norm_backward[sequence] = layer_norm_backward(mm_7[sequence], add_1[sequence], layer_norm_1[sequence])
    mm_8[partial] = mm(add_3[sequence], gelu[sequence])
    mm_9[sequence] = mm(add_3[sequence], mlp.down.weight)
    mm_10[partial] = mm(gelu_backward[sequence], layer_norm[sequence])
    mm_11[sequence] = mm(gelu_backward[sequence], mlp.up.weight)
    layer_norm_backward_1[sequence] = layer_norm_backward(mm_11[sequence], add[sequence], layer_norm[sequence])
    sum_1[partial] = sum(add_4[sequence])
    mm_4 = all_reduce(mm_4[partial])
    mm_6 = all_reduce(mm_6[partial])
    mm_8 = all_reduce(mm_8[partial])
    mm_10 = all_reduce(mm_10[partial])
    sum_1 = all_reduce(sum_1[partial])
    gradient of shift: sum_1
    gradient of mlp.up.weight: mm_10
    gradient of mlp.down.weight: mm_8
    gradient of attention.qkv.weight: mm_6
    gradient of attention.out.weight: mm_4
    """
    names = {"attention.qkv.weight.0.1": "heads", "args.0.1": "sequence"}
    forward, backward = shown(whole, plan, expected, names)
    assert (forward["all_to_all"], backward["all_to_all"]) == (2, 2)
    assert not forward["all_gather"] + backward["all_gather"]
    without(whole, machines, plan, names)


def test_keys_and_values_gathered() -> None:
    """The same with more devices than heads: each device has its own queries, and all keys and values."""
    whole, machines = strategies.long_transformer(), cluster(8)
    plan = optimum(whole, machines, FLOAT32)
    expected = """
    stored shift
    stored mlp.up.weight
    stored mlp.down.weight
    stored attention.qkv.weight
    stored attention.out.weight
    layer_norm[sequence] = layer_norm(add[sequence])
    mm[sequence] = mm(layer_norm[sequence], mlp.up.weight)
    mm_1[sequence] = mm(gelu[sequence], mlp.down.weight)
    layer_norm_1[sequence] = layer_norm(add_1[sequence])
    mm_2[sequence] = mm(layer_norm_1[sequence], attention.qkv.weight)
    split[sequence] = split(mm_2[sequence])
    split.1 = all_gather(split.1[sequence])
    split.2 = all_gather(split.2[sequence])
    sdpa[sequence] = sdpa(split[sequence|whole])
    mm_3[sequence] = mm(sdpa[sequence], attention.out.weight)
    sum[partial] = sum(pow[sequence])
    sum = all_reduce(sum[partial])
    backward
    mm_4[partial] = mm(mul_1[sequence], sdpa[sequence])
    mm_5[sequence] = mm(mul_1[sequence], attention.out.weight)
    sdpa_backward[sequence|partial] = sdpa_backward(mm_5[sequence], split[sequence|whole], sdpa[sequence])
    sdpa_backward.2[sequence] = reduce_scatter(sdpa_backward.2[partial])
    sdpa_backward.1[sequence] = reduce_scatter(sdpa_backward.1[partial])
    cat[sequence] = cat(sdpa_backward[sequence])
    mm_6[partial] = mm(cat[sequence], layer_norm_1[sequence])
    mm_7[sequence] = mm(cat[sequence], attention.qkv.weight)
    layer_norm_backward[sequence] = layer_norm_backward(mm_7[sequence], add_1[sequence], layer_norm_1[sequence])
    mm_8[partial] = mm(add_3[sequence], gelu[sequence])
    mm_9[sequence] = mm(add_3[sequence], mlp.down.weight)
    mm_10[partial] = mm(gelu_backward[sequence], layer_norm[sequence])
    mm_11[sequence] = mm(gelu_backward[sequence], mlp.up.weight)
    layer_norm_backward_1[sequence] = layer_norm_backward(mm_11[sequence], add[sequence], layer_norm[sequence])
    sum_1[partial] = sum(add_4[sequence])
    mm_4 = all_reduce(mm_4[partial])
    mm_6 = all_reduce(mm_6[partial])
    mm_8 = all_reduce(mm_8[partial])
    mm_10 = all_reduce(mm_10[partial])
    sum_1 = all_reduce(sum_1[partial])
    gradient of shift: sum_1
    gradient of mlp.up.weight: mm_10
    gradient of mlp.down.weight: mm_8
    gradient of attention.qkv.weight: mm_6
    gradient of attention.out.weight: mm_4
    """
    forward, backward = shown(whole, plan, expected, {"args.0.1": "sequence"})
    assert forward == {"all_gather": 2, "all_reduce": 1}
    # Every weight is whole, and its gradient all-reduced.
    assert backward == {"reduce_scatter": 2, "all_reduce": 5}
    without(whole, machines, plan, ["args.0.1"])

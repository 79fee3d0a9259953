"""Known ways to train come out of the search, each where it is the fastest: nobody names any of them to it."""

from __future__ import annotations

import itertools

import pytest

from hap.cluster import Cluster
from hap.errors import PlanError
from hap.planning import Plan, plan_axes
from hap.planning.baselines import shards
from hap.planning.setup import make_problem
from hap.program import Splits
from tests.planning import strategies
from tests.planning.optima import optimum, restricted, shown, stored, without
from tests.planning.strategies import cluster

LAYERS = {"up.weight.0": "wide", "down.weight.0": "narrow", "out.weight.0": "classes"}


def test_data_parallelism() -> None:
    """Many samples on small layers: gradients are all-reduced, and nothing else moves."""
    whole, machines = strategies.chain(), cluster(4)
    plan = plan_axes(whole.axes, machines)
    assert plan.search_gap == 0.0
    assert plan.optimality_gap == pytest.approx(0.0, abs=1e-9)
    expected = """
    stored up.weight
    stored down.weight
    stored out.weight
    mm[batch] = mm(args.0[batch], up.weight)
    mm_1[batch] = mm(relu[batch], down.weight)
    mm_2[batch] = mm(relu_1[batch], out.weight)
    sum[partial] = sum(pow[batch])
    sum = all_reduce(sum[partial])
    backward
    mm_3[partial] = mm(mul_1[batch], relu_1[batch])
    mm_4[batch] = mm(mul_1[batch], out.weight)
    mm_5[partial] = mm(threshold_backward[batch], relu[batch])
    mm_6[batch] = mm(threshold_backward[batch], down.weight)
    mm_7[partial] = mm(threshold_backward_1[batch], args.0[batch])
    mm_3 = all_reduce(mm_3[partial])
    mm_5 = all_reduce(mm_5[partial])
    mm_7 = all_reduce(mm_7[partial])
    gradient of up.weight: mm_7
    gradient of down.weight: mm_5
    gradient of out.weight: mm_3
    """
    forward, backward = shown(whole, plan, expected)
    assert (forward, backward) == ({"all_reduce": 1}, {"all_reduce": 3})
    whole.check(plan.program, plan.splits, 4, 1e-10)
    assert plan.predicted_time == pytest.approx(plan.baselines["ddp_even"])
    without(whole, machines, plan, ["batch"])


def scarce(fraction: float) -> tuple[Plan, Cluster]:
    """The plan where devices have this fraction of the memory that data parallelism takes."""
    whole = strategies.chain()
    need = max(plan_axes(whole.axes, cluster(4)).predicted_memory)
    machines = cluster(4, memory=fraction * need)
    plan = plan_axes(whole.axes, machines)
    assert plan.search_gap == 0.0
    assert max(plan.predicted_memory) <= fraction * need
    # Whole parameters do not fit, split along the batch or not.
    assert plan.obstacles["ddp_even"] == "memory"
    with pytest.raises(PlanError, match="no plan fits memory"):
        plan_axes(whole.axes, machines, placements=dict.fromkeys(("up.weight", "down.weight", "out.weight"), ("R",)))
    whole.check(plan.program, plan.splits, 4, 1e-10)
    return plan, machines


def fastest_that_fits(machines: Cluster, splits: Splits) -> float:
    """By trying which parameters to store in shards; the input is stored as it is read."""
    names, limit = ("up.weight", "down.weight", "out.weight"), machines.devices[0].memory
    kinds = itertools.product([("R",), shards(2)], repeat=len(names))
    tried = [
        restricted(strategies.chain(), machines, splits, {"args.0": ("S0",), **dict(zip(names, kind, strict=True))})
        for kind in kinds
    ]
    return min(seconds for seconds, memory in tried if memory <= limit)


def test_optimiser_states_in_shards() -> None:
    """ZeRO-1 (ZeRO-2, as gradients are scattered): parameters are gathered once a step and kept for the backward."""
    plan, machines = scarce(0.59)
    expected = """
    stored up.weight[wide]
    stored down.weight[narrow]
    stored out.weight[classes]
    up.weight = all_gather(up.weight[wide])
    mm[batch] = mm(args.0[batch], up.weight)
    down.weight = all_gather(down.weight[narrow])
    mm_1[batch] = mm(relu[batch], down.weight)
    out.weight = all_gather(out.weight[classes])
    mm_2[batch] = mm(relu_1[batch], out.weight)
    sum[partial] = sum(pow[batch])
    sum = all_reduce(sum[partial])
    backward
    mm_3[partial] = mm(mul_1[batch], relu_1[batch])
    mm_3[classes] = reduce_scatter(mm_3[partial])
    mm_4[batch] = mm(mul_1[batch], out.weight)
    mm_5[partial] = mm(threshold_backward[batch], relu[batch])
    mm_5[narrow] = reduce_scatter(mm_5[partial])
    mm_6[batch] = mm(threshold_backward[batch], down.weight)
    mm_7[partial] = mm(threshold_backward_1[batch], args.0[batch])
    mm_7[wide] = reduce_scatter(mm_7[partial])
    gradient of up.weight: mm_7[wide]
    gradient of down.weight: mm_5[narrow]
    gradient of out.weight: mm_3[classes]
    """
    forward, backward = shown(strategies.chain(), plan, expected, LAYERS)
    assert forward == {"all_gather": 3, "all_reduce": 1}
    assert backward == {"reduce_scatter": 3}
    assert plan.predicted_time == pytest.approx(fastest_that_fits(machines, plan.splits))


def test_a_parameter_gathered_at_its_use() -> None:
    """Memory is nearly enough: the largest parameter is stored in shards, and gathered for the one product it is in."""
    plan, machines = scarce(0.67)
    expected = """
    stored up.weight[wide]
    stored down.weight
    stored out.weight
    up.weight = all_gather(up.weight[wide])
    mm[batch] = mm(args.0[batch], up.weight)
    mm_1[batch] = mm(relu[batch], down.weight)
    mm_2[batch] = mm(relu_1[batch], out.weight)
    sum[partial] = sum(pow[batch])
    sum = all_reduce(sum[partial])
    backward
    mm_3[partial] = mm(mul_1[batch], relu_1[batch])
    mm_4[batch] = mm(mul_1[batch], out.weight)
    mm_5[partial] = mm(threshold_backward[batch], relu[batch])
    mm_6[batch] = mm(threshold_backward[batch], down.weight)
    mm_7[partial] = mm(threshold_backward_1[batch], args.0[batch])
    mm_7[wide] = reduce_scatter(mm_7[partial])
    gradient of up.weight: mm_7[wide]
    mm_3 = all_reduce(mm_3[partial])
    mm_5 = all_reduce(mm_5[partial])
    gradient of down.weight: mm_5
    gradient of out.weight: mm_3
    """
    shown(strategies.chain(), plan, expected, LAYERS)
    assert stored(plan, "up.weight", "down.weight", "out.weight") == ["S0", "R", "R"]
    assert plan.predicted_time == pytest.approx(fastest_that_fits(machines, plan.splits))


def test_sufficient_factor_broadcasting() -> None:
    """A large linear layer between convolutions, for few samples: the factors of its gradient are smaller than itself.

    Inputs and output gradients are gathered, and each device computes the whole gradient; it is never reduced.
    """
    whole, machines = strategies.autoencoder(), cluster(2, flops=1e11)
    plan = optimum(whole, machines)
    expected = """
    stored conv1.weight
    stored conv2.weight
    stored code.weight
    stored conv3.weight
    stored conv4.weight
    convolution[batch] = convolution(args.0[batch], conv1.weight)
    convolution_1[batch] = convolution(relu[batch], conv2.weight)
    avg_pool2d[batch] = avg_pool2d(relu_1[batch])
    avg_pool2d = all_gather(avg_pool2d[batch])
    mm[batch] = mm(avg_pool2d[batch], code.weight)
    convolution_2[batch] = convolution(relu_2[batch], conv3.weight)
    convolution_3[batch] = convolution(relu_3[batch], conv4.weight)
    sum[partial] = sum(pow[batch])
    sum = all_reduce(sum[partial])
    backward
    convolution_backward[batch|partial] = convolution_backward(mul_1[batch], relu_3[batch], conv4.weight)
    convolution_backward_1[batch|partial] = convolution_backward(threshold_backward[batch], relu_2[batch], conv3.weight)
    threshold_backward_1 = all_gather(threshold_backward_1[batch])
    mm_1 = mm(threshold_backward_1, avg_pool2d)
    mm_2[batch] = mm(threshold_backward_1[batch], code.weight)
    avg_pool2d_backward[batch] = avg_pool2d_backward(mm_2[batch], relu_1[batch])
    convolution_backward_2[batch|partial] = convolution_backward(threshold_backward_2[batch], relu[batch], conv2.weight)
    convolution_backward_3[partial] = convolution_backward(threshold_backward_3[batch], args.0[batch], conv1.weight)
    convolution_backward.1 = all_reduce(convolution_backward.1[partial])
    convolution_backward_1.1 = all_reduce(convolution_backward_1.1[partial])
    convolution_backward_2.1 = all_reduce(convolution_backward_2.1[partial])
    convolution_backward_3.1 = all_reduce(convolution_backward_3.1[partial])
    gradient of conv1.weight: convolution_backward_3.1
    gradient of conv2.weight: convolution_backward_2.1
    gradient of code.weight: mm_1
    gradient of conv3.weight: convolution_backward_1.1
    gradient of conv4.weight: convolution_backward.1
    """
    forward, backward = shown(whole, plan, expected)
    assert (forward["all_gather"], backward["all_gather"]) == (1, 1)
    # The convolutions' gradients are.
    assert backward["all_reduce"] == 4
    assert stored(plan, "code.weight") == ["R"]
    gradients = shards(len(make_problem(whole.axes, machines).parameters["code.weight"]))
    seconds, _ = restricted(whole, machines, plan.splits, {"mm_1": ("P", *gradients)})
    assert seconds > 1.001 * plan.predicted_time


def test_vocabulary_parallelism() -> None:
    """Of an embedding that makes the logits, too, each device has some words, and logits, and losses of labels."""
    whole, machines = strategies.language_model(), cluster(4)
    plan = optimum(whole, machines)
    expected = """
    stored words.weight[words]
    embedding[partial] = embedding(words.weight[words], args.0)
    embedding = all_reduce(embedding[partial])
    mm[words] = mm(tanh, words.weight[words])
    log_softmax[words] = log_softmax(mm[words]) by log_softmax
    gather[partial] = gather(log_softmax[words], where)
    sum = sum(ne)
    sum_1[partial] = sum(where_1[partial])
    sum_1 = all_reduce(sum_1[partial])
    backward
    scatter[words] = scatter(full[words], where_2)
    log_softmax_backward_data[words] = log_softmax_backward_data(mul[words], log_softmax[words]) by log_softmax_backward
    mm_1[words] = mm(log_softmax_backward_data[words], tanh)
    mm_2[partial] = mm(log_softmax_backward_data[words], words.weight[words])
    mm_2 = all_reduce(mm_2[partial])
    embedding_dense_backward[words] = embedding_dense_backward(tanh_backward, args.0)
    gradient of words.weight: add[words]
    """
    forward, backward = shown(whole, plan, expected, {"words.weight.0": "words"})
    assert (forward, backward) == ({"all_reduce": 2}, {"all_reduce": 1})
    without(whole, machines, plan, ["words.weight.0"])


def test_expert_parallelism() -> None:
    """Tokens travel to the experts and back, in the forward and in the backward; the rest goes with the batch."""
    whole, machines = strategies.mixture(), cluster(4)
    plan = optimum(whole, machines)
    expected = """
    stored fc.weight
    stored experts.up[experts]
    stored experts.down[experts]
    mm[batch] = mm(args.0[batch], fc.weight)
    layer_norm[batch] = layer_norm(mm[batch])
    bmm[batch] = bmm(args.1[batch], layer_norm[batch])
    bmm[experts] = all_to_all(bmm[batch])
    bmm_1[experts] = bmm(bmm[experts], experts.up[experts])
    bmm_2[experts] = bmm(relu[experts], experts.down[experts])
    bmm_2[batch] = all_to_all(bmm_2[experts])
    bmm_3[batch] = bmm(args.1[batch], bmm_2[batch])
    sum[partial] = sum(pow[batch])
    sum = all_reduce(sum[partial])
    backward
    bmm_4[batch] = bmm(args.1[batch], mul_1[batch])
    bmm_4[experts] = all_to_all(bmm_4[batch])
    bmm_5[experts] = bmm(relu[experts], bmm_4[experts])
    bmm_6[experts] = bmm(bmm_4[experts], experts.down[experts])
    bmm_7[experts] = bmm(bmm[experts], threshold_backward[experts])
    bmm_8[experts] = bmm(threshold_backward[experts], experts.up[experts])
    bmm_8[batch] = all_to_all(bmm_8[experts])
    bmm_9[batch] = bmm(args.1[batch], bmm_8[batch])
    layer_norm_backward[batch] = layer_norm_backward(add_1[batch], mm[batch], layer_norm[batch])
    mm_1[partial] = mm(layer_norm_backward[batch], args.0[batch])
    mm_1 = all_reduce(mm_1[partial])
    gradient of fc.weight: mm_1
    gradient of experts.up: bmm_7[experts]
    gradient of experts.down: bmm_5[experts]
    """
    forward, backward = shown(whole, plan, expected, {"experts.up.0": "experts"})
    assert forward == {"all_to_all": 2, "all_reduce": 1}
    assert backward == {"all_to_all": 2, "all_reduce": 1}
    assert stored(plan, "experts.up", "experts.down", "fc.weight") == ["S0", "S0", "R"]
    without(whole, machines, plan, ["experts.up.0", "batch"])

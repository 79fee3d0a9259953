"""What operators that multiply take for arithmetic and beside it, told apart."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hap.profiling import operands, operators
from hap.profiling.operands import SHAPES, at
from hap.rules import costs


def arithmetic(flops):
    return 1e-6 + flops / 1e11


def beside(size, rate):
    return 2e-7 + size / rate


def seconds_of(shape, rate, itemsize):
    return arithmetic(shape.flops) + beside(itemsize * shape.elements, rate)


def measured(rate, family="matmul", dtype="float32", itemsize=4):
    """What the shapes of a family take where their operands are read at a rate."""
    many, few = SHAPES[family]
    return {
        f"{family}/{dtype}": tuple((it.flops, seconds_of(it, rate, itemsize)) for it in many),
        f"{family}_operands/{dtype}": tuple((itemsize * it.elements, seconds_of(it, rate, itemsize)) for it in few),
    }


@pytest.mark.parametrize("family", SHAPES)
def test_counts_are_those_of_the_cost_model(family):
    for shape in itertools.chain(*SHAPES[family]):
        work = operators._multiplying(shape, lambda *sizes: torch.empty(sizes, device="meta"))
        tensors = [value for value in work.args if isinstance(value, torch.Tensor)]
        made = work()
        results = [value for value in (made if isinstance(made, tuple) else (made,)) if value is not None]
        assert shape.elements == sum(value.numel() for value in [*tensors, *results])
        shapes = [value.shape if isinstance(value, torch.Tensor) else value for value in work.args]
        target = work.func if isinstance(work.func, torch._ops.OpOverloadPacket) else torch.ops.aten.mm
        out = [None if value is None else value.shape for value in made] if isinstance(made, tuple) else made.shape
        assert shape.flops == costs.formula(target.default)(*shapes, out_val=out)


@pytest.mark.parametrize("rate", [2e9, 1e10, 1e12])
@pytest.mark.parametrize("family", SHAPES)
def test_arithmetic_and_operands_are_told_apart(family, rate):
    points = measured(rate, family)
    found = operands.told_apart(points | {"memory": ((1.0, 1.0), (2.0, 2.0))})
    assert found["memory"] == ((1.0, 1.0), (2.0, 2.0))
    work, more = found[f"{family}/float32"], found[f"{family}_operands/float32"]
    # Points are few, so that the parts are not exactly those that were put together; their sum is.
    for shape in SHAPES[family][0][2:]:
        assert at(work, shape.flops) == pytest.approx(arithmetic(shape.flops), rel=0.25)
    many, few = SHAPES[family]
    for shape in (*many, *few[1:]):
        whole = at(work, shape.flops) + at(more, 4 * shape.elements)
        assert whole == pytest.approx(seconds_of(shape, rate, 4), rel=1e-2)
    # What it takes to start counts as arithmetic.
    assert more[0][1] < 0.01 * work[0][1]
    if rate < 1e11:
        assert more[-1][1] == pytest.approx(beside(more[-1][0], rate), rel=0.25)


@given(data=st.data(), family=st.sampled_from(sorted(SHAPES)), rate=st.sampled_from([2e9, 1e10, 1e12]))
def test_noise_does_not_make_the_parts_say_something_else(data, family, rate):
    """Alternately, each part less the other, all could end as operands, and small shapes as free."""
    noise = st.floats(0.95, 1.05)
    noisy = {
        name: tuple((amount, seconds * data.draw(noise)) for amount, seconds in line)
        for name, line in measured(rate, family).items()
    }
    found = operands.told_apart(noisy)
    work, more = found[f"{family}/float32"], found[f"{family}_operands/float32"]
    many, few = SHAPES[family]
    shapes = [*zip(many, noisy[f"{family}/float32"], strict=True)]
    shapes += [*zip(few, noisy[f"{family}_operands/float32"], strict=True)][1:]
    errors = [(at(work, it.flops) + at(more, 4 * it.elements)) / seconds - 1.0 for it, (_, seconds) in shapes]
    assert sum(map(abs, errors)) / len(errors) < 0.04


def test_parts_explain_what_was_measured_where_no_parts_do_so_exactly():
    """More channels were faster than few; each part less the other, in turns, left the smallest a third of its time."""
    many, few = (shapes[:count] for shapes, count in zip(SHAPES["convolution_backward"], (6, 5), strict=True))
    times = (265e-6, 232e-6, 785e-6, 1897e-6, 8698e-6, 50999e-6), (23e-6, 248e-6, 535e-6, 1577e-6, 4355e-6)
    points = {
        "convolution_backward/float32": tuple(zip((it.flops for it in many), times[0], strict=True)),
        "convolution_backward_operands/float32": tuple(zip((4 * it.elements for it in few), times[1], strict=True)),
    }
    found = operands.told_apart(points)
    work, more = found.values()
    wholes = [at(work, it.flops) + at(more, 4 * it.elements) for it in (*many, *few[1:])]
    assert wholes == pytest.approx([*times[0], *times[1][1:]], rel=0.25)


def test_element_types_are_told_apart_by_themselves():
    found = operands.told_apart(measured(1e10) | measured(5e9, dtype="bfloat16", itemsize=2))
    assert found["matmul_operands/float32"] == operands.told_apart(measured(1e10))["matmul_operands/float32"]
    assert found["matmul_operands/bfloat16"] != found["matmul_operands/float32"]


def test_times_rise_where_nothing_remains():
    """Where thin products are as fast as their arithmetic, or faster."""
    points = measured(1e15)
    points["matmul_operands/float32"] = tuple(
        (size, seconds / 3) for size, seconds in points["matmul_operands/float32"]
    )
    for line in operands.told_apart(points).values():
        assert all(0.0 < one[0] < two[0] and 0.0 < one[1] < two[1] for one, two in itertools.pairwise(line))


def test_points_are_read_as_the_cost_model_does():
    points = ((1.0, 1.0), (2.0, 3.0), (4.0, 4.0))
    assert [at(points, amount) for amount in (0.5, 1.0, 1.5, 3.0, 6.0)] == [1.0, 1.0, 2.0, 3.5, 5.0]

"""Products of matrices: what they take for arithmetic and beside it, told apart."""

import itertools

import pytest

from hap.profiling import products
from hap.profiling.products import at

SQUARES, THINS = (16, 64, 128, 256, 512, 1024, 2048), (64, 256, 1024, 2048)


def arithmetic(flops):
    return 1e-6 + flops / 1e11


def beside(size, rate):
    return 2e-7 + size / rate


def measured(rate, dtype="float32", itemsize=4):
    """What square and thin products take where their operands are read at a rate."""
    squares, thins = [], []
    for size in SQUARES:
        flops = products.square(size)
        operands = itemsize * products.square_elements(flops)
        squares.append((flops, arithmetic(flops) + beside(operands, rate)))
    for size in THINS:
        operands = itemsize * products.thin(size)
        thins.append((operands, arithmetic(products.thin_flops(operands / itemsize)) + beside(operands, rate)))
    return {f"matmul/{dtype}": tuple(squares), f"matmul_operands/{dtype}": tuple(thins)}


def test_shapes_and_counts_agree():
    for size in (16, 2048):
        assert products.square_elements(products.square(size)) == pytest.approx(3 * size**2)
        assert products.thin_flops(products.thin(size)) == pytest.approx(2 * products.ROWS * size**2)


@pytest.mark.parametrize("rate", [2e9, 1e10, 1e12])
def test_arithmetic_and_operands_are_told_apart(rate):
    found = products.told_apart(measured(rate) | {"memory": ((1.0, 1.0), (2.0, 2.0))})
    work, more = found["matmul/float32"], found["matmul_operands/float32"]
    assert found["memory"] == ((1.0, 1.0), (2.0, 2.0))
    # Points are few, so that the parts are not exactly those that were put together; their sum is.
    for flops, seconds in work[2:]:
        assert seconds == pytest.approx(arithmetic(flops), rel=0.2)
    for flops, seconds in measured(rate)["matmul/float32"][1:]:
        assert at(work, flops) + at(more, 4 * products.square_elements(flops)) == pytest.approx(seconds, rel=1e-3)
    for operands, seconds in measured(rate)["matmul_operands/float32"]:
        assert at(work, products.thin_flops(operands / 4)) + at(more, operands) == pytest.approx(seconds, rel=1e-2)
    if rate < 1e11:
        assert more[-1][1] == pytest.approx(beside(more[-1][0], rate), rel=0.2)


def test_element_types_are_told_apart_by_themselves():
    found = products.told_apart(measured(1e10) | measured(5e9, "bfloat16", 2))
    assert found["matmul_operands/float32"] == products.told_apart(measured(1e10))["matmul_operands/float32"]
    assert found["matmul_operands/bfloat16"] != found["matmul_operands/float32"]


def test_times_rise_where_nothing_remains():
    """Where thin products are as fast as their arithmetic, or faster."""
    points = measured(1e15)
    points["matmul_operands/float32"] = tuple(
        (size, seconds / 3) for size, seconds in points["matmul_operands/float32"]
    )
    for line in products.told_apart(points).values():
        assert all(0.0 < one[0] < two[0] and 0.0 < one[1] < two[1] for one, two in itertools.pairwise(line))


def test_points_are_read_as_the_cost_model_does():
    points = ((1.0, 1.0), (2.0, 3.0), (4.0, 4.0))
    assert [at(points, amount) for amount in (0.5, 1.0, 1.5, 3.0, 6.0)] == [1.0, 1.0, 2.0, 3.5, 5.0]

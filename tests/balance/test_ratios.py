"""Successive programs, rounding and both together."""

import importlib
import itertools
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hap.balance import (
    balance,
    fractions,
    largest_remainder,
    least_maximum,
    round_shares,
    rounded,
    successive,
    without_small_shares,
)
from tests.balance.toy_program import Toy, machine
from tests.balance.written import Affine, Stage

positive = st.floats(0.1, 10.0)
# The package has a function of this name.
successive_module = importlib.import_module("hap.balance.successive")


def even(axes, devices):
    return {axis: [1.0 / devices] * devices for axis in axes}


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=6).filter(lambda s: sum(s) > 0.1), st.integers(2, 300))
def test_roundings_sum_to_the_units(weights, units):
    shares = [weight / sum(weights) for weight in weights]
    for found in (largest_remainder(shares, units), least_maximum(shares, units)):
        assert sum(found) == units
        assert min(found) >= 0
        assert all(count == 0 for count, share in zip(found, shares, strict=True) if share == 0.0)
    assert all(
        abs(count - share * units) < 1 for count, share in zip(largest_remainder(shares, units), shares, strict=True)
    )


@given(st.lists(positive, min_size=2, max_size=3), st.integers(2, 8))
def test_least_maximum_is_the_least(speeds, units):
    shares = [speed / sum(speeds) for speed in speeds]
    splits = [s for s in itertools.product(range(units + 1), repeat=len(speeds)) if sum(s) == units]
    best = min(max(count / share for count, share in zip(s, shares, strict=True)) for s in splits)
    found = least_maximum(shares, units)
    assert max(count / share for count, share in zip(found, shares, strict=True)) == pytest.approx(best)


def test_ties_go_to_the_first_devices():
    assert largest_remainder([0.25] * 4, 6) == [2, 2, 1, 1]
    assert least_maximum([0.25] * 4, 6) == [2, 2, 1, 1]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_balance_is_never_worse_than_its_start_nor_than_proportional_rounding(data):
    devices = data.draw(st.integers(1, 4))
    axes = ["a", "b"]
    speeds = data.draw(st.lists(positive, min_size=devices, max_size=devices))
    work = data.draw(st.lists(st.tuples(st.sampled_from(axes), positive), min_size=1, max_size=4))
    collectives = data.draw(
        st.lists(
            st.one_of(
                st.tuples(st.sampled_from(["padded", "grouped"]), st.sampled_from(axes), positive),
                st.tuples(st.just("product"), st.just(("a", "b")), positive),
            ),
            max_size=3,
        )
    )
    sizes = {axis: data.draw(st.integers(1, 24)) for axis in axes}
    toy = Toy(speeds, work, collectives, launch=data.draw(st.floats(0, 1)), message=data.draw(st.floats(0, 0.3)))
    devices_ = machine(speeds)
    start = round_shares(even(axes, devices), sizes)
    proportional = {axis: largest_remainder([s / sum(speeds) for s in speeds], sizes[axis]) for axis in axes}
    found = balance(toy, sizes, devices_, start, {})
    assert {axis: sum(units) for axis, units in found.splits.items()} == sizes
    assert found.simulation.seconds == pytest.approx(toy.simulate(found.splits).seconds)
    assert found.simulation.seconds <= toy.simulate(start).seconds * (1 + 1e-9)
    assert found.simulation.seconds <= toy.simulate(proportional).seconds * (1 + 1e-9)
    assert sum(found.weights) == pytest.approx(1.0)
    assert balance(toy, sizes, devices_, start, {}) == found


@settings(max_examples=15, deadline=None)
@given(st.lists(positive, min_size=2, max_size=3), st.floats(0, 0.5), st.floats(0, 2), st.integers(2, 9))
def test_one_axis_is_split_as_well_as_by_trying_all_splits(speeds, launch, communication, units):
    toy = Toy(speeds, [("a", 5.0)], [("padded", "a", communication)], launch=launch)
    found = balance(toy, {"a": units}, machine(speeds), round_shares(even(["a"], len(speeds)), {"a": units}), {})
    splits = [list(s) for s in itertools.product(range(units + 1), repeat=len(speeds)) if sum(s) == units]
    assert found.simulation.seconds == pytest.approx(min(toy.simulate({"a": s}).seconds for s in splits))


def test_a_product_of_shares_is_relinearised_until_it_stops_improving():
    toy = Toy([1.0, 1.0, 4.0], [("a", 1.0), ("b", 1.0)], [("product", ("a", "b"), 6.0)])
    start = even(["a", "b"], 3)
    first = toy.stages(start).seconds(start)
    found = successive(toy, start, machine(toy.speeds))
    assert found.seconds == pytest.approx(toy.stages(found.shares).seconds(found.shares))
    assert found.seconds < first
    grid = [[i / 10, j / 10, 1 - (i + j) / 10] for i in range(11) for j in range(11 - i)]
    best = min(
        toy.stages(shares).seconds(shares) for shares in ({"a": a, "b": b} for a, b in itertools.product(grid, grid))
    )
    assert found.seconds <= best * 1.25, "the problem is not convex, but the local optimum should not be far off"


def test_where_a_first_share_is_dear_zeros_stay_zero():
    toy = Toy([1.0, 1.0, 1.0], [("a", 1.0)], [("grouped", "a", 0.0)], message=10.0)
    found = successive(toy, {"a": [0.7, 0.3, 0.0]}, machine(toy.speeds))
    assert found.shares["a"] == pytest.approx([0.5, 0.5, 0.0])


def test_leaving_out_devices_that_cannot_win_costs_one_evaluation():
    speeds = [1.0, 1.0, 1.0, 4.0]
    toy = Toy(speeds, [("a", 1.0), ("b", 1.0)])
    real = successive(toy, even(["a", "b"], 4), machine(speeds))
    calls = []
    counted = toy.stages
    toy.stages = lambda shares: calls.append(shares) or counted(shares)
    assert without_small_shares(toy, real, machine(speeds)) == real
    # The slow kind whole, two of it, one of it.
    assert len(calls) == 3


def test_roundings_are_combined_axis_by_axis():
    class Picky(Toy):
        def simulate(self, splits):
            found = super().simulate(splits)
            wrong = (splits["a"] != [6000, 3000, 0]) + (splits["b"] != [3000, 3000, 3000])
            return msgspec.structs.replace(found, seconds=found.seconds + wrong)

    # So many units that none is worth moving.
    toy, sizes = Picky([1.0, 1.0, 1.0], []), {"a": 9000, "b": 9000}
    start = {"a": [6000, 3000, 0], "b": [0, 0, 9000]}
    toy.work = [("a", 1e-3), ("b", 1e-3)]
    found = rounded(toy, even(["a", "b"], 3), sizes, machine(toy.speeds), [start])
    assert found.splits == {"a": [6000, 3000, 0], "b": [3000, 3000, 3000]}


def test_a_device_fifty_times_slower_is_left_out_where_overhead_rules():
    toy = Toy([1.0, 1.0, 0.02], [("a", 0.02)], [("grouped", "a", 0.0)], launch=0.001, message=0.01)
    real = successive(toy, even(["a"], 3), machine(toy.speeds))
    better = without_small_shares(toy, real, machine(toy.speeds))
    assert better.shares["a"] == pytest.approx([0.5, 0.5, 0.0])
    assert better.seconds < real.seconds - 0.009


def test_a_slow_kind_is_left_out_as_a_whole():
    # One slow device less changes nothing while the others of its kind still pay their overhead.
    speeds = [50.0, 50.0, 0.5, 0.5, 0.5]
    toy = Toy(speeds, [("a", 1.0)])
    written = toy.written

    def slow_launch(shares):
        program = written(shares)
        terms = tuple(
            Affine(0.05 if d > 1 and shares["a"][d] > 0 else 0.0, term.slopes)
            for d, term in enumerate(program.stages[0].terms)
        )
        return replace(program, stages=(Stage("compute", terms),))

    toy.written = slow_launch
    found = balance(toy, {"a": 1000}, machine(speeds), {"a": [200] * 5}, {})
    assert found.splits == {"a": [500, 500, 0, 0, 0]}


def test_memory_comes_before_time():
    speeds = [1.0, 9.0]
    toy = Toy(speeds, [("a", 1.0)], memory=10.0, activations=(("a", 100.0),))
    found = balance(toy, {"a": 10}, machine(speeds, [1e9, 65.0]), {"a": [1, 9]}, {})
    assert found.splits == {"a": [5, 5]}
    over = balance(toy, {"a": 10}, machine(speeds, [50.0, 65.0]), {"a": [1, 9]}, {})
    assert over.simulation.excess([50.0, 65.0]) == pytest.approx(
        min(toy.simulate({"a": [k, 10 - k]}).excess([50.0, 65.0]) for k in range(11))
    )


@pytest.mark.parametrize(
    ("speeds", "instants", "capacity", "sizes"),
    [
        ([3.0, 1.0], [(100.0, 0.0, 20.0), (50.0, 0.0, 50.0), (20.0, 50.0, 20.0)], [65.0, 66.0], (64, 256, 8)),
        ([1.0, 1.0, 8.0], [(0, 20, 100), (100, 50, 20), (0, 100, 50)], [48.0, 48.0, 88.0], (64, 8, 8)),
    ],
)
def test_descents_on_memory_get_past_its_kinks(speeds, instants, capacity, sizes):
    # The peak moves from one instant to another on the way, and the first descent stalls there.
    toy = Toy(
        speeds, [("a", 1.0), ("b", 0.1)], instants=[dict(zip("abc", instant, strict=True)) for instant in instants]
    )
    sizes = dict(zip("abc", sizes, strict=True))
    start = {axis: [size] + [0] * (len(speeds) - 1) for axis, size in sizes.items()}
    found = balance(toy, sizes, machine(speeds, capacity), start, {})
    assert found.simulation.excess(capacity) == 0.0


def test_real_shares_at_the_limit_of_memory_are_rounded_to_units_that_fit():
    speeds, capacity = [1.0, 1.0, 5.0], [108.0, 108.0, 84.0]
    instants = [{"a": 20.0, "b": 50.0, "c": 100.0}, {"b": 50.0, "c": 50.0}, {"a": 100.0, "c": 100.0}]
    toy = Toy(speeds, [("a", 1.0), ("b", 0.1)], instants=instants)
    start = {"a": [22, 21, 21], "b": [22, 21, 21], "c": [4, 2, 2]}
    found = balance(toy, {"a": 64, "b": 64, "c": 8}, machine(speeds, capacity), start, {})
    assert found.simulation.excess(capacity) == 0.0
    # 5/7 of axes a and b, the fast device's part by speed, fit where it has little of c.
    assert found.simulation.seconds < 1.02 * (1.0 + 0.1) / 7


def test_equal_devices_get_equal_units_up_to_rounding():
    speeds = [2.0, 1.0, 2.0, 1.0, 1.0]
    toy = Toy(speeds, [("a", 1.0), ("b", 1.0)], [("padded", "b", 0.2)])
    found = balance(toy, {"a": 32, "b": 12}, machine(speeds), {"a": [32, 0, 0, 0, 0], "b": [12, 0, 0, 0, 0]}, {})
    for units in found.splits.values():
        assert abs(units[0] - units[2]) <= 1
        assert max(units[1], units[3], units[4]) - min(units[1], units[3], units[4]) <= 1


def test_fixed_axes_stay_and_the_others_adapt():
    speeds = [1.0, 1.0]
    toy = Toy(speeds, [("a", 1.0), ("b", 1.0)])
    found = balance(toy, {"a": 8, "b": 8}, machine(speeds), {"a": [6, 2], "b": [8, 0]}, {"a": [6, 2]})
    assert found.splits == {"a": [6, 2], "b": [4, 4]}


def test_where_nothing_is_left_to_choose_the_fixed_splits_stay():
    toy = Toy([2.0, 1.0], [("a", 1.0)], memory=10.0)
    for capacity in (20.0, 5.0):
        found = balance(toy, {"a": 8}, machine([2.0, 1.0], [capacity] * 2), {"a": [6, 2]}, {"a": [6, 2]})
        assert found.splits == {"a": [6, 2]}
        assert found.simulation.memory == (10.0, 10.0)


def test_steps_are_never_too_short_for_the_solver(monkeypatch):
    """Memory that no shares change is overrun whatever is tried."""
    radii, solved = [], successive_module.solve

    def solve(stages, shares, capacity, radius, *arguments):
        radii.append(radius)
        return solved(stages, shares, capacity, radius, *arguments)

    monkeypatch.setattr(successive_module, "solve", solve)
    toy = Toy([2.0, 1.0], [("a", 1.0)], memory=10.0)
    successive(toy, {"a": [2 / 3, 1 / 3]}, machine([2.0, 1.0], [5.0, 5.0]))
    assert len(radii) > 5
    assert min(radii) >= 1e-6


def test_the_rounding_loss_is_reported():
    toy = Toy([1.0, 1.0], [("a", 1.0)])
    found = balance(toy, {"a": 3}, machine([1.0, 1.0]), {"a": [3, 0]}, {})
    assert found.splits == {"a": [2, 1]}
    assert found.rounding_loss == pytest.approx((2 / 3) / 0.5 - 1.0)


def test_rounding_is_bounded_work():
    speeds = [1.0 + 0.1 * d for d in range(8)]
    toy = Toy(speeds, [(axis, 1.0) for axis in "abcdefgh"], launch=0.01)
    shares = even("abcdefgh", 8)
    found = rounded(toy, shares, dict.fromkeys("abcdefgh", 11), machine(speeds))
    assert toy.simulations <= 5 + 2 * 48
    assert found.simulation.seconds <= toy.simulate(round_shares(shares, dict.fromkeys("abcdefgh", 11))).seconds


def test_fractions_are_shares():
    assert fractions({"a": [1, 3]}) == {"a": [0.25, 0.75]}

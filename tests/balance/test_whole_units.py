"""Whole units of axes that have few, against trying them all."""

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hap import balance as package
from hap.balance import DoesNotFitError, balance, fractions, round_shares, rounded, successive
from hap.balance.linear_program import solve
from hap.balance.whole_units import in_whole_units, whole_units
from tests.balance.toy_program import Toy, machine
from tests.balance.written import Affine, Stage, Written

seconds = st.floats(0.1, 10.0)


def even(axes, devices):
    return {axis: [1.0 / devices] * devices for axis in axes}


def all_splits(units, devices):
    return [list(s) for s in itertools.product(range(units + 1), repeat=devices) if sum(s) == units]


@st.composite
def programs(draw, devices, axes):
    """Linear stages; some of the devices are equal."""
    kinds = draw(st.lists(st.integers(0, 1), min_size=devices, max_size=devices))
    kinds = [sorted({*kinds}).index(kind) for kind in kinds]

    def terms():
        return tuple(Affine(draw(seconds), {axis: draw(seconds) for axis in axes}) for _ in {*kinds})

    stages = tuple(Stage("compute", terms()) for _ in range(draw(st.integers(1, 4))))
    return Written(tuple(kinds), stages, terms()).arrays()


@pytest.mark.parametrize(("devices", "most"), [(2, 8), (3, 5), (4, 3)])
def test_no_whole_split_of_linear_stages_is_faster(devices, most):
    @settings(max_examples=15, deadline=None)
    @given(programs(devices, ("a", "b")), st.integers(2, most), st.integers(2, most), st.floats(2.0, 20.0))
    def check(stages, first, second, capacity):
        sizes, limits = {"a": first, "b": second}, [capacity] * devices
        splits = itertools.product(all_splits(first, devices), all_splits(second, devices))
        points = [fractions(dict(zip(sizes, split, strict=True))) for split in splits]
        fitting = [point for point in points if stages.excess(point, limits) <= 1e-9]
        found = whole_units(stages, even("ab", devices), sizes, limits)
        assert (found is None) == (not fitting)
        if found is None:
            return
        for axis, size in sizes.items():
            units = [share * size for share in found[axis]]
            assert units == pytest.approx([round(count) for count in units], abs=1e-9)
        assert stages.excess(found, limits) <= 1e-5
        # The search ends at a gap of 1e-4.
        assert stages.seconds(found) <= min(map(stages.seconds, fitting)) * (1 + 1e-3)
        # Equal devices are in order of their units of the first axis.
        for kind in {*stages.kinds.tolist()}:
            of_kind = [share for share, other in zip(found["a"], stages.kinds, strict=True) if other == kind]
            assert of_kind == sorted(of_kind, reverse=True)

    check()


@settings(max_examples=15, deadline=None)
@given(programs(2, ("a", "b")), st.integers(2, 8), st.floats(4.0, 20.0))
def test_other_axes_have_the_real_shares_that_are_best_with_the_units(stages, size, capacity):
    limits, best = [capacity] * 2, []
    for units in all_splits(size, 2):
        try:
            best.append(solve(stages.fixing(fractions({"a": units})), even("b", 2), limits).seconds)
        except DoesNotFitError:
            continue
    found = whole_units(stages, even("ab", 2), {"a": size}, limits)
    assert (found is None) == (not best)
    if found is not None:
        assert stages.seconds(found) == pytest.approx(min(best), rel=1e-3)


@given(programs(3, ("a", "b", "c")), st.lists(st.integers(0, 4), min_size=9, max_size=9))
def test_fixed_axes_are_part_of_the_constants(stages, units):
    shares = {axis: [(1 + count) / 8 for count in units[3 * n : 3 * n + 3]] for n, axis in enumerate("abc")}
    fixed = stages.fixing({axis: shares[axis] for axis in "ac"})
    assert fixed.axes == ("b",)
    assert fixed.seconds({"b": shares["b"]}) == pytest.approx(stages.seconds(shares))
    assert fixed.excess({"b": shares["b"]}, [0.1] * 3) == pytest.approx(stages.excess(shares, [0.1] * 3))
    assert stages.fixing({"d": [1.0, 0.0, 0.0]}) is stages


# A head more takes memory that only the batch can give: no one axis alone can be moved.
TRADE = Toy([4.0, 1.0], [("heads", 3.0), ("batch", 1.0)], activations=(("heads", 40.0), ("batch", 40.0)))
TRADE_SIZES, TRADE_MACHINE = {"heads": 6, "batch": 64}, machine([4.0, 1.0], [50.0, 40.0])


def test_units_beat_neighbours_where_two_axes_share_memory(monkeypatch):
    start = round_shares(even(TRADE_SIZES, 2), TRADE_SIZES)
    found = balance(TRADE, TRADE_SIZES, TRADE_MACHINE, start, {})
    assert found == balance(TRADE, TRADE_SIZES, TRADE_MACHINE, start, {})
    monkeypatch.setattr(package, "in_whole_units", lambda *arguments: arguments[-1])
    without = balance(TRADE, TRADE_SIZES, TRADE_MACHINE, start, {})
    assert without.splits["heads"] == [4, 2]
    assert found.splits["heads"] == [5, 1]
    assert found.simulation.excess(TRADE_MACHINE.capacity) == 0.0
    assert found.simulation.seconds < 0.87 * without.simulation.seconds
    assert found.rounding_loss < 0.3 * without.rounding_loss


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_units_never_make_a_program_slower_nor_larger(data):
    devices = data.draw(st.integers(2, 4))
    speeds = data.draw(st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=devices, max_size=devices))
    capacity = data.draw(st.lists(st.floats(15.0, 60.0), min_size=devices, max_size=devices))
    axes = st.sampled_from(["a", "b"])
    toy = Toy(
        speeds,
        data.draw(st.lists(st.tuples(axes, seconds), min_size=1, max_size=4)),
        data.draw(st.lists(st.tuples(st.just("product"), st.just(("a", "b")), seconds), max_size=1)),
        launch=data.draw(st.floats(0.0, 0.5)),
        activations=(("a", 40.0), ("b", 30.0)),
    )
    sizes = {"a": data.draw(st.integers(2, 8)), "b": 64}
    real = successive(toy, even("ab", devices), machine(speeds, capacity))
    assume(real.excess == 0.0)
    known = rounded(toy, real.shares, sizes, machine(speeds, capacity))
    found = in_whole_units(toy, real.stages, real.shares, sizes, machine(speeds, capacity), known)
    assert {axis: sum(units) for axis, units in found.splits.items()} == sizes
    excess, before = found.simulation.excess(capacity), known.simulation.excess(capacity)
    assert excess <= before + 1e-9
    if excess > before - 1e-9:
        assert found.simulation.seconds <= known.simulation.seconds


@pytest.mark.parametrize(("devices", "size"), [(9, 18), (2, 9)])
def test_axes_of_many_units_or_on_many_devices_are_left_to_rounding(devices, size):
    toy, sizes = Toy([1.0] * devices, [("a", 1.0)]), {"a": size}
    shares, devices_ = even("a", devices), machine(toy.speeds)
    known = rounded(toy, shares, sizes, devices_)
    before = toy.simulations
    assert in_whole_units(toy, toy.stages(shares), shares, sizes, devices_, known) is known
    assert toy.simulations == before

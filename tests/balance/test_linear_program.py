import itertools
import re

import highspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hap.balance import DoesNotFitError, write_linear_program
from hap.balance.highs import INFINITY, LinearProgram, Solver
from hap.balance.linear_program import solve
from hap.balance.merged import merged
from hap.errors import PlanError
from tests.balance.toy_program import Toy
from tests.balance.written import Affine, Stage, Written

seconds = st.floats(0.01, 10.0)


def even(axes, devices):
    return {axis: [1.0 / devices] * devices for axis in axes}


def grid(devices, steps):
    """All shares of one axis in multiples of 1 / steps."""
    for units in itertools.product(range(steps + 1), repeat=devices - 1):
        if sum(units) <= steps:
            yield [u / steps for u in units] + [1.0 - sum(units) / steps]


@st.composite
def stages(draw, devices, axes):
    def term():
        return Affine(draw(seconds), {axis: draw(seconds) for axis in axes if draw(st.booleans())})

    kinds = st.sampled_from(["compute", "collective"])
    count = draw(st.integers(1, 4))
    program = Written(
        tuple(range(devices)),
        tuple(Stage(draw(kinds), tuple(term() for _ in range(devices))) for _ in range(count)),
        tuple(Affine(draw(seconds), {axes[0]: draw(seconds)}) for _ in range(devices)),
    )
    return program.arrays()


@pytest.mark.parametrize(("devices", "axes", "steps"), [(2, ("a",), 400), (2, ("a", "b"), 30), (3, ("a",), 40)])
def test_no_point_of_a_grid_beats_the_linear_program(devices, axes, steps):
    @settings(max_examples=25, deadline=None)
    @given(stages(devices, axes), st.floats(2.0, 12.0))
    def check(program, capacity):
        limits = [capacity] * devices
        points = [
            dict(zip(axes, values, strict=True))
            for values in itertools.product(*[list(grid(devices, steps))] * len(axes))
        ]
        fitting = [point for point in points if program.excess(point, limits) <= 1e-12]
        try:
            solution = solve(program, even(axes, devices), limits)
        except DoesNotFitError as error:
            excess = error.excess / capacity
        else:
            excess = 0.0
        assert excess <= min(program.excess(point, limits) for point in points) + 1e-6
        if excess > 0.0:
            assert not fitting
            return
        assert program.excess(solution.shares, limits) <= 1e-6
        assert solution.seconds == pytest.approx(program.seconds(solution.shares), rel=1e-9)
        if fitting:
            best = min(program.seconds(point) for point in fitting)
            assert solution.seconds <= best * (1 + 1e-7)
            # The grid's best is near: slopes are at most 10 seconds, four stages.
            assert solution.seconds >= best - 4 * len(axes) * 10.0 * 2 / steps

    check()


def test_pure_computation_is_shared_in_proportion_to_speed():
    toy = Toy([1.0, 2.0, 5.0], [("batch", 8.0)])
    solution = solve(toy.stages(even(["batch"], 3)), even(["batch"], 3), [1e9] * 3)
    assert solution.shares["batch"] == pytest.approx([0.125, 0.25, 0.625])
    assert solution.seconds == pytest.approx(1.0)
    assert solution.weights == pytest.approx([0.125, 0.25, 0.625])


def test_pure_padded_communication_is_shared_evenly():
    start = {"hidden": [0.7, 0.2, 0.1]}
    toy = Toy([1.0, 2.0, 5.0], [], [("padded", "hidden", 3.0)])
    solution = solve(toy.stages(start), start, [1e9] * 3)
    assert solution.shares["hidden"] == pytest.approx([1 / 3] * 3)


def test_the_weights_give_a_lower_bound_that_is_reached():
    toy = Toy([1.0, 3.0], [("batch", 4.0), ("batch", 2.0)])
    solution = solve(toy.stages(even(["batch"], 2)), even(["batch"], 2), [1e9] * 2)
    for shares in ([0.25, 0.75], [0.9, 0.1], [0.0, 1.0]):
        priced = sum(w * 6.0 * s / v for w, s, v in zip(solution.weights, shares, toy.speeds, strict=True))
        assert priced == pytest.approx(solution.seconds)


def test_memory_limits_a_fast_device():
    toy = Toy([1.0, 9.0], [("batch", 1.0)], memory=10.0, activations=(("batch", 100.0),))
    solution = solve(toy.stages(even(["batch"], 2)), even(["batch"], 2), [1e9, 70.0])
    assert solution.shares["batch"] == pytest.approx([0.4, 0.6])
    assert solution.weights == pytest.approx([1.0, 0.0])


def test_memory_that_cannot_fit_is_an_error_with_device_and_bytes():
    toy = Toy([1.0, 1.0], [("batch", 1.0)], memory=80.0, activations=(("batch", 60.0),))
    with pytest.raises(DoesNotFitError, match=r"device 0 needs 10 B more than the 100 B") as caught:
        solve(toy.stages(even(["batch"], 2)), even(["batch"], 2), [100.0, 100.0])
    assert caught.value.device == 0
    assert caught.value.excess == pytest.approx(10.0)
    assert caught.value.shares["batch"] == pytest.approx([0.5, 0.5])


def test_the_trust_region_bounds_every_share():
    toy = Toy([1.0, 9.0], [("batch", 1.0)])
    solution = solve(toy.stages(even(["batch"], 2)), even(["batch"], 2), [1e9] * 2, radius=0.125)
    assert solution.shares["batch"] == pytest.approx([0.375, 0.625])


def test_devices_that_are_left_out_keep_no_share():
    shares = {"batch": [0.0, 0.5, 0.5]}
    toy = Toy([1.0, 1.0, 3.0], [("batch", 1.0)])
    solution = solve(toy.stages(shares), shares, [1e9] * 3, left_out={"batch": np.array([True, False, False])})
    assert solution.shares["batch"] == pytest.approx([0.0, 0.25, 0.75])


def test_axes_that_do_not_matter_keep_their_shares():
    shares = {"batch": [0.5, 0.5], "idle": [0.3, 0.7]}
    toy = Toy([1.0, 3.0], [("batch", 1.0)])
    assert solve(toy.stages(shares), shares, [1e9] * 2).shares["idle"] == [0.3, 0.7]
    nothing = Toy([1.0, 3.0], [])
    assert solve(nothing.stages(shares), shares, [1e9] * 2).shares == shares


def test_equal_devices_get_equal_shares():
    speeds = [1.0] * 12 + [4.0] * 4
    toy = Toy(speeds, [("batch", 1.0), ("heads", 2.0)], [("padded", "batch", 0.1)], launch=1e-5)
    start = even(["batch", "heads"], 16)
    solution = solve(toy.stages(start), start, [1e9] * 16)
    for axis in start:
        assert len(set(solution.shares[axis][:12])) == 1
        assert len(set(solution.shares[axis][12:])) == 1


def unmerged(program, capacity):
    """The least seconds of one axis, by a row per stage and device; infinite where memory does not fit."""
    devices, stages = range(len(program.kinds)), program.stages
    entries, row_lower, row_upper = [], [], []

    def row(columns, lower, upper):
        entries.extend((len(row_lower), column, value) for column, value in columns.items())
        row_lower.append(lower)
        row_upper.append(upper)

    for number, stage in enumerate(stages):
        for device in devices:
            term = stage.terms[program.kinds[device]]
            row({number: 1.0, len(stages) + device: -term.slopes["a"]}, term.constant, INFINITY)
    for device in devices:
        term = program.memory[program.kinds[device]]
        row({len(stages) + device: term.slopes["a"]}, -INFINITY, capacity - term.constant)
    row({len(stages) + device: 1.0 for device in devices}, 1.0, 1.0)
    rows, columns, values = map(np.array, zip(*entries, strict=True))
    cost = np.array([stage.count for stage in stages] + [0.0] * len(devices))
    lower = np.array([-INFINITY] * len(stages) + [0.0] * len(devices))
    upper = np.array([INFINITY] * len(cost))
    asked = LinearProgram(cost, lower, upper, np.array(row_lower), np.array(row_upper), rows, columns, values)
    optimum = Solver().minimise(asked)
    return INFINITY if optimum is None else float(cost @ optimum[0])


@given(st.data())
def test_merged_devices_and_stages_have_the_optimum_of_all(data):
    kinds = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=7))

    def terms(scale):
        return tuple(Affine(scale * data.draw(seconds), {"a": scale * data.draw(seconds)}) for _ in range(3))

    sorts = [terms(1.0) for _ in range(data.draw(st.integers(1, 2)))]
    stages = []
    for _ in range(data.draw(st.integers(1, 5))):
        times = data.draw(st.sampled_from([0.5, 1.0, 4.0]))
        sort = tuple(
            Affine(times * t.constant, {"a": times * t.slopes["a"]}) for t in data.draw(st.sampled_from(sorts))
        )
        stages.append(Stage("compute", sort, data.draw(st.integers(1, 3))))
    program = Written(tuple(kinds), tuple(stages), terms(1.0))
    capacity = data.draw(st.floats(2.0, 20.0))
    least = unmerged(program, capacity)
    try:
        found = solve(program.arrays(), even(["a"], len(kinds)), [capacity] * len(kinds)).seconds
    except DoesNotFitError:
        found = INFINITY
    assert found == pytest.approx(least, rel=1e-7)


def test_what_is_alike_is_one_row():
    speeds = [speed for speed in (1.0, 2.0, 3.0, 4.0) for _ in range(16)]
    toy = Toy(speeds, [("batch", 1.0), ("batch", 2.0), ("heads", 1.0)] * 12, [("padded", "batch", 0.1)] * 12)
    start = even(["batch", "heads"], 64)
    model = merged(toy.stages(start), start, [1e9] * 64, 1.0, {})
    assert model.members.tolist() == [16.0] * 4
    assert model.constants.shape == (3, 4)
    assert model.weight.sum() == pytest.approx(12 * (3.0 + 1.0 + 0.1))


def test_a_solver_goes_on_from_the_last_optimum_and_finds_the_same():
    toy = Toy([1.0, 2.0, 5.0], [("batch", 8.0), ("heads", 3.0)], [("padded", "heads", 1.0)])
    solver = Solver()
    for start in (even(["batch", "heads"], 3), {"batch": [0.5, 0.3, 0.2], "heads": [0.1, 0.1, 0.8]}):
        for radius in (1.0, 0.1):
            stages = toy.stages(start)
            again = solve(stages, start, [1e9] * 3, radius, solver=solver)
            assert again.seconds == pytest.approx(solve(stages, start, [1e9] * 3, radius).seconds)


@pytest.mark.parametrize("axes", [("a.b", "a_b", "a_b_"), ("schön 日", "sch_n_本"), ("日", "本")])
def test_axes_keep_different_names_in_the_file(tmp_path, axes):
    toy, start = Toy([1.0, 2.0], [(axis, 1.0) for axis in axes]), even(axes, 2)
    write_linear_program(toy.stages(start), start, [1e9] * 2, tmp_path / "ratios.lp")
    text = (tmp_path / "ratios.lp").read_text(encoding="ascii")
    assert len(set(re.findall(r"share\.\w+\.0", text))) == len(set(re.findall(r"whole\.\w+", text))) == len(axes)


def test_the_linear_program_can_be_looked_at(tmp_path):
    toy = Toy([1.0, 1.0, 2.0], [("batch", 8.0)], [("padded", "self.heads", 1.5)])
    start = even(["batch", "self.heads"], 3)
    write_linear_program(toy.stages(start), start, [1e9] * 3, tmp_path / "ratios.lp")
    text = (tmp_path / "ratios.lp").read_text()
    assert "share.batch.0" in text
    assert "share.self_heads.2" in text
    assert "busy.0.2:" in text
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(tmp_path / "ratios.lp"))
    solver.run()
    # 2 s of computation and 0.5 s of communication, in units of 8 s and 1.5 s.
    assert solver.getInfo().objective_function_value == pytest.approx((2.0 + 0.5) / (8.0 + 1.5))
    with pytest.raises(PlanError, match="cannot be written"):
        write_linear_program(toy.stages(start), start, [1e9] * 3, tmp_path / "absent" / "ratios.lp")
    with pytest.raises(PlanError, match=r"expected a file ratios\.lp, not ratios\.txt"):
        write_linear_program(toy.stages(start), start, [1e9] * 3, tmp_path / "ratios.txt")

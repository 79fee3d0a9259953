import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hap.profiling.collectives import _lines
from hap.profiling.fit import fit

amounts = st.lists(st.floats(1.0, 1e9), min_size=2, max_size=12, unique=True).filter(lambda x: max(x) > 1.5 * min(x))


@given(amounts, st.floats(1e-6, 1e-2), st.floats(1e3, 1e12))
def test_a_line_is_found_again(amounts, latency, rate):
    line = fit(amounts, [latency + amount / rate for amount in amounts])
    assert line.error <= 1e-6
    for amount in amounts:
        assert line.seconds(amount) == pytest.approx(latency + amount / rate, rel=1e-5)


@given(amounts, st.randoms(use_true_random=False))
def test_no_line_that_is_allowed_is_better(amounts, generator):
    seconds = [generator.uniform(1e-5, 1.0) for _ in amounts]
    line = fit(amounts, seconds)
    assert line.latency >= 0.0
    assert line.rate > 0.0

    def error(latency, slope):
        return np.sqrt(np.mean([((latency + slope * x) / y - 1.0) ** 2 for x, y in zip(amounts, seconds, strict=True)]))

    assert error(line.latency, 1.0 / line.rate) == pytest.approx(line.error)
    for _ in range(20):
        other = error(generator.uniform(0.0, 1.0), generator.uniform(1e-12, 1.0) / max(amounts))
        assert line.error <= other * (1 + 1e-5)


@given(amounts, st.floats(1e-6, 1e-2), st.floats(1e3, 1e12), st.floats(1e3, 1e12))
def test_rates_are_limited(amounts, latency, rate, fastest):
    seconds = [latency + amount / rate for amount in amounts]
    line = fit(amounts, seconds, fastest=fastest)
    assert line.rate <= fastest * (1 + 1e-9)
    if rate > fastest:
        for factor in (0.5, 0.9, 1.1, 2.0):
            other = [
                (line.latency * factor + amount / fastest) / time - 1
                for amount, time in zip(amounts, seconds, strict=True)
            ]
            assert line.error <= np.sqrt(np.mean(np.square(other))) * (1 + 1e-5)


def test_a_rate_that_does_not_show_is_that_of_the_fastest_that_does():
    amounts = (1e4, 1e5, 1e6)
    lines = _lines(
        {
            "steep": [(amount, 1e-4 + amount / 1e8) for amount in amounts],
            "steeper": [(amount, 1e-4 + amount / 2e7) for amount in amounts],
            "level": [(amount, time) for amount, time in zip(amounts, (0.1, 0.11, 0.1), strict=True)],
        }
    )
    assert lines["steep"].rate == pytest.approx(1e8)
    assert lines["steeper"].rate == pytest.approx(2e7)
    assert lines["level"].rate == pytest.approx(1e8)
    assert lines["level"].latency == pytest.approx(0.1, rel=0.1)
    assert _lines({"level": [(1e4, 0.1), (1e6, 0.1)]})["level"].latency == pytest.approx(0.1)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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

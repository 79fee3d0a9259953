import pytest
from hypothesis import given
from hypothesis import strategies as st

from hap.balance import Simulation
from hap.planning.engine import Prices
from hap.planning.prices import busiest, loads, saddle

seconds = st.floats(0.0, 10.0)


def priced(prices, simulation, overlap):
    """The synthesiser's objective for the program that was simulated."""
    computation = sum(weight * busy for weight, busy in zip(prices.weights, simulation.compute, strict=True))
    return prices.theta * computation + (1.0 - prices.theta * overlap) * simulation.communication


@given(
    st.lists(st.lists(st.floats(0.01, 10.0), min_size=3, max_size=3), min_size=1, max_size=5),
    seconds,
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_prices_are_mixtures_of_what_bounds_the_step(programs, communication, overlap):
    simulations = [Simulation(0.0, tuple(compute), communication, ()) for compute in programs]
    busy = [loads(simulation, overlap) for simulation in simulations]
    best, most = saddle(busy, overlap)
    for prices in (best, busiest(simulations[0], overlap)):
        assert sum(prices.weights) == pytest.approx(1.0)
        assert min(prices.weights) >= 0.0
        assert 0.0 <= prices.theta <= 1.0
        costs = [priced(prices, simulation, overlap) for simulation in simulations]
        assert all(cost <= max(own) * (1 + 1e-9) for cost, own in zip(costs, busy, strict=True))
        assert min(costs) <= most * (1 + 1e-7)
        assert overlap > 0.0 or prices.theta == 1.0
    assert min(priced(best, simulation, overlap) for simulation in simulations) == pytest.approx(most)


def test_the_busiest_device_gets_the_price():
    assert busiest(Simulation(0.0, (1.0, 4.0, 4.0), 1.0, ()), 0.0) == Prices((0.0, 0.5, 0.5), 1.0)
    assert busiest(Simulation(0.0, (1.0, 1.0), 9.0, ()), 1.0).theta == 0.0


def test_the_saddle_point_of_programs():
    # (4, 1) and (1, 3) seconds on two devices. The best mixture makes them equal: 2/5 and 3/5.
    prices, most = saddle([[4.0, 1.0, 0.0], [1.0, 3.0, 0.0], [5.0, 5.0, 0.0]], 0.0)
    assert prices.weights == pytest.approx((0.4, 0.6))
    assert most == pytest.approx(2.2)
    # All communication hides: its stream is what bounds.
    assert saddle([[4.0, 1.0, 7.0], [1.0, 3.0, 7.0]], 1.0) == (Prices((0.5, 0.5), 0.0), pytest.approx(7.0))
    assert saddle([[0.0, 0.0]], 0.0) == (Prices((1.0,), 1.0), 0.0)

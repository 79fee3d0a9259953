import pytest
from hypothesis import given
from hypothesis import strategies as st

from hap.balance import Simulation
from hap.planning.engine import Prices
from hap.planning.prices import ascend, busiest, loads

seconds = st.floats(0.0, 10.0)


def priced(prices, simulation, overlap):
    """The synthesiser's objective for the program that was simulated."""
    computation = sum(weight * busy for weight, busy in zip(prices.weights, simulation.compute, strict=True))
    return prices.theta * computation + (1.0 - prices.theta * overlap) * simulation.communication


@given(
    st.lists(st.floats(0.01, 10.0), min_size=1, max_size=5),
    seconds,
    st.sampled_from([0.0, 0.3, 1.0]),
    st.integers(0, 3),
)
def test_prices_are_mixtures_of_what_bounds_the_step(compute, communication, overlap, failures):
    simulation = Simulation(0.0, tuple(compute), communication, ())
    busy = loads(simulation, overlap)
    for prices in (
        busiest(simulation, overlap),
        ascend(busiest(simulation, overlap), busy, overlap, failures),
        ascend(Prices((1.0 / len(compute),) * len(compute)), busy, overlap, failures),
    ):
        assert sum(prices.weights) == pytest.approx(1.0)
        assert min(prices.weights) >= 0.0
        assert 0.0 <= prices.theta <= 1.0
        assert priced(prices, simulation, overlap) <= max(busy) * (1 + 1e-9)
        assert overlap > 0.0 or prices.theta == 1.0


def test_the_busiest_device_gets_the_price():
    assert busiest(Simulation(0.0, (1.0, 4.0, 4.0), 1.0, ()), 0.0) == Prices((0.0, 0.5, 0.5), 1.0)
    assert busiest(Simulation(0.0, (1.0, 1.0), 9.0, ()), 1.0).theta == 0.0


def test_steps_approach_the_saddle_point():
    # Two programs: (4, 1) and (1, 3) seconds on two devices. The best mixture makes them equal: 2/5 and 3/5.
    programs = [Simulation(0.0, (4.0, 1.0), 0.0, ()), Simulation(0.0, (1.0, 3.0), 0.0, ())]
    prices, bounds, failures = Prices((0.5, 0.5)), [], 0
    anchor = prices, 0.0, None
    for _ in range(30):
        cheapest = min(programs, key=lambda program: priced(prices, program, 0.0))
        bounds.append(priced(prices, cheapest, 0.0))
        if bounds[-1] > anchor[1]:
            anchor = prices, bounds[-1], loads(cheapest, 0.0)
        else:
            failures += 1
        prices = ascend(anchor[0], anchor[2], 0.0, failures)
    assert max(bounds) == pytest.approx(2.2, rel=1e-3)

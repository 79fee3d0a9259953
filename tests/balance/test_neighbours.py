"""What moving units promises by the linear stages, beside what the stages themselves say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hap.balance import rounding
from hap.balance.rounding import fractions
from tests.balance.written import Affine, Stage, Written

AXES = ("a", "b")
NUMBERS = st.floats(0.0, 4.0)


@st.composite
def written(draw):
    """A random program on up to five devices of two kinds, and units of two axes."""
    devices = draw(st.integers(2, 5))
    kinds = tuple(draw(st.lists(st.integers(0, 1), min_size=devices, max_size=devices)))

    def terms():
        return tuple(Affine(draw(NUMBERS), {axis: draw(NUMBERS) for axis in AXES}) for _ in range(2))

    stages = tuple(Stage("compute", terms(), draw(st.integers(1, 3))) for _ in range(draw(st.integers(1, 4))))
    units = {axis: draw(st.lists(st.integers(0, 5), min_size=devices, max_size=devices).filter(any)) for axis in AXES}
    return Written(kinds, stages, terms()).arrays(), units


@pytest.mark.parametrize("entries", [rounding.ENTRIES, 1])
@given(drawn=written(), data=st.data())
def test_changes_are_what_the_stages_say(entries, drawn, data):
    stages, units = drawn
    devices = len(stages.kinds)
    capacity = data.draw(st.lists(st.floats(1.0, 20.0), min_size=devices, max_size=devices))
    shares = fractions(units)
    changed = rounding._Changed(stages, shares, capacity)
    for number, axis in enumerate(stages.axes):
        others = st.lists(st.integers(0, 5), min_size=devices, max_size=devices).filter(any)
        tried = data.draw(st.lists(others, min_size=1, max_size=4))
        table = np.array([fractions({axis: each})[axis] for each in tried])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rounding, "ENTRIES", entries)
            seconds, excess = changed.seconds(number, table), changed.excess(number, table)
        for row, gained, over in zip(table.tolist(), seconds, excess, strict=True):
            other = {**shares, axis: row}
            assert gained == pytest.approx(stages.seconds(other) - stages.seconds(shares), abs=1e-9)
            assert over == pytest.approx(stages.excess(other, capacity), abs=1e-9)

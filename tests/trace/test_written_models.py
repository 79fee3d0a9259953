"""Modules as people write them: loss, outputs, gradients and buffers of random uneven programs equal eager's."""

from __future__ import annotations

import pytest
from torch._subclasses.fake_tensor import FakeTensor

from tests.trace import written_control, written_parameters, written_state, written_structures
from tests.trace.written import made, prove, tensors_within

THEMES = (written_parameters, written_structures, written_state, written_control)
ENTRIES = {name: make for theme in THEMES for name, make in theme.ENTRIES.items()}


def test_no_two_entries_have_one_name() -> None:
    assert len(ENTRIES) == sum(len(theme.ENTRIES) for theme in THEMES)


@pytest.mark.parametrize("name", ENTRIES)
def test_equals_eager(name: str) -> None:
    # Planning traces the module once more, as it is: where it keeps parameters and state in ways of its own.
    prove(made(ENTRIES[name]), plan=name in {**written_parameters.ENTRIES, **written_state.ENTRIES})
    assert not any(isinstance(tensor, FakeTensor) for tensor in tensors_within(written_state.MASKS))

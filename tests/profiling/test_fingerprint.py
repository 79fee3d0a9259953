"""Clusters that were measured elsewhere."""

import msgspec
import pytest

from hap.profiling.fingerprint import fingerprint
from hap.profiling.machine import Machine
from tests.profiling import jobs
from tests.runtime.launch import Launcher

BOARD = Machine(host="a", name="card", memory=10**10, free=9 * 10**9, threads=0, torch="2")


@pytest.mark.parametrize("change", [{"host": "b"}, {"name": "x"}, {"memory": 1}, {"threads": 1}, {"torch": "3"}])
def test_a_fingerprint_tells_hardware_apart(change):
    other = msgspec.structs.replace(BOARD, **change)
    assert len({fingerprint(machines) for machines in ([BOARD, BOARD], [BOARD, other], [other, BOARD])}) == 3


def test_free_memory_does_not_count():
    assert fingerprint([msgspec.structs.replace(BOARD, free=1)]) == fingerprint([BOARD])


def test_a_job_on_a_cluster_that_was_measured_elsewhere_is_warned_once():
    with Launcher(2) as launcher:
        (here, first), (same, second) = launcher.run(jobs.warnings_of_other_hardware, limit=60.0)
    assert here == same
    (text,) = first[1][0]
    assert f"(fingerprint 000000000000, here {here[:12]})" in text
    assert "its times may not hold; hap profile measures again" in text
    # On the same hardware nothing is told, and without a fingerprint nothing asked.
    assert first == [([], 1), ([text], 1), ([], 0)]
    assert second == [([], 1), ([], 1), ([], 0)]

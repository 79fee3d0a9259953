"""The memory of devices that were measured before: what is free now."""

import logging

import pytest
import torch
from msgspec.structs import replace

import hap
from hap.errors import PlanError
from hap.profiling import machine
from hap.profiling.describe import Measured, describe
from hap.profiling.fingerprint import fingerprint
from hap.profiling.fit import Line
from hap.profiling.free import as_free_now, free_memory
from hap.profiling.hosts import EXCHANGE
from tests.profiling import jobs
from tests.profiling.jobs import BOARD
from tests.runtime.launch import Launcher

LINES = {EXCHANGE: Line(1e-4, 1e9, 0.25)}
FAST = {"memory": ((1e3, 1e-5), (1e6, 1e-3)), "matmul/float32": ((1e6, 1e-4), (1e9, 1e-2))}
SLOW = {name: tuple((amount, 3.0 * seconds) for amount, seconds in points) for name, points in FAST.items()}


def board(free, **changes):
    return replace(BOARD, free=int(free), **changes)


def described(machines, points):
    pairs = zip(machines, points, strict=True)
    lines = LINES if len(machines) > 1 else {}
    return describe([Measured(hardware, times, LINES[EXCHANGE]) for hardware, times in pairs], lines)


def memory(cluster):
    return [device.memory for device in cluster.devices]


def test_equal_ranks_have_the_same_memory():
    machines = [board(8e9, threads=0), board(6e9, threads=0), board(7e9, threads=0), board(5e9, threads=0, name="x")]
    assert free_memory(machines, [FAST, FAST, SLOW, FAST]) == [6e9, 6e9, 7e9, 5e9]
    assert free_memory([board(0), board(0)], [FAST, SLOW]) == [0.5, 0.5]


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("free", [[2e9, 3e9, 8.5e9, 4e9], [8e9] * 4, [8e9, 8.5e9, 4e9, 7e9]])
def test_memory_is_found_as_profiles_find_it(free, threads):
    """Devices that are described by what is free now are those that were described before, brought up to date."""
    points = [FAST, FAST, SLOW, FAST]
    hosts = ["a", "a", "a", "b"]
    before = described([board(1e10, threads=threads, host=host) for host in hosts], points)
    machines = [board(size, threads=threads, host=host) for size, host in zip(free, hosts, strict=True)]
    now = as_free_now(before, machines)
    assert now == described(machines, points)
    assert [device.reserve for device in now.devices] == [0.0 if threads else 0.1 * size for size in memory(now)]


def test_a_small_change_changes_nothing(caplog):
    before = described([board(8e9)] * 2, [FAST, SLOW])
    with caplog.at_level(logging.INFO, logger="hap"):
        assert as_free_now(before, [board(7.21e9), board(8.79e9)]) == before
        assert not caplog.records
        assert memory(as_free_now(before, [board(7.19e9), board(8.79e9)])) == [3.595e9, 4e9]
    assert caplog.messages == ["rank 0 has 3.35 GiB of memory free, no longer 3.73 GiB as in its profile"]


def test_less_than_a_plan_may_use_of_an_accelerator_counts():
    before = described([board(8e10, threads=0)], [FAST])
    assert before.devices[0].usable_memory == 7.9e10
    assert as_free_now(before, [board(7.95e10, threads=0)]) == before
    assert as_free_now(before, [board(7.85e10, threads=0)]).devices[0].usable_memory == 7.75e10


def test_a_job_starts_with_the_memory_that_is_free_on_all_ranks(tmp_path):
    kept = described([BOARD] * 2, [FAST, SLOW])
    path = tmp_path / "hap" / f"{fingerprint([BOARD] * 2)}.json"
    path.parent.mkdir()
    kept.save(path)
    with Launcher(2) as launcher:
        for free in ((8 * 10**9, 8 * 10**9), (4 * 10**9, 2 * 10**9)):
            texts = launcher.run(jobs.start_with_free_memory, str(tmp_path), free, limit=60.0)
            assert texts[0] == texts[1]
            found = hap.Cluster.from_json(texts[0])
            assert memory(found) == [free[0] / 2, free[1] / 2]
            assert found.with_devices(kept.devices) == kept
    # What was measured stays as it was.
    assert hap.Cluster.load(path) == kept


def test_a_plan_that_does_not_fit_says_where_the_memory_is_from(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("hap.profiling.cache.machine", lambda device: board(1000))
    monkeypatch.setattr("hap.profiling.cache.profile", lambda **_: described([board(1000)], [FAST]))
    module, x = torch.nn.Linear(64, 64), torch.ones(4, 64)
    with pytest.raises(PlanError, match=r"(?s)no plan fits memory.*\nWithout devices=, .* found free of it"):
        hap.parallelize(module, example_inputs=(x,))
    with pytest.raises(PlanError, match="no plan fits memory") as caught:
        hap.parallelize(module, devices=described([board(1000)], [FAST]), example_inputs=(x,))
    assert "Without devices=" not in str(caught.value)


def test_copies_of_files_in_a_container_are_free(monkeypatch):
    files = {
        "/proc/meminfo": ["MemAvailable: 9000 kB"],
        "/sys/fs/cgroup/memory.max": ["5000000"],
        "/sys/fs/cgroup/memory.current": ["4000000"],
        "/sys/fs/cgroup/memory.stat": ["anon 1000000", "inactive_file 2500000", "active_file 500000"],
    }
    monkeypatch.setattr(machine, "_lines", lambda path: files.get(path, []))
    assert machine._host_memory() == (5_000_000, 3_500_000)

import contextlib
import multiprocessing
import os
import signal
import time

import pytest

from emulation.throttle import BURST, PERIOD, Throttle, feasible, processor_time


def spin():
    while True:
        pass


@contextlib.contextmanager
def spinning(count):
    processes = [multiprocessing.get_context("fork").Process(target=spin) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def test_processes_keep_to_their_duties():
    duties = [0.5, 0.1]
    with spinning(2) as pids, Throttle(dict(zip(pids, duties, strict=True))) as throttle:
        throttle.tick()
        start, used = time.monotonic(), [processor_time(pid) for pid in pids]
        while time.monotonic() - start < 1.0:
            throttle.tick()
            time.sleep(PERIOD)
        seconds = time.monotonic() - start
        shares = [(processor_time(pid) - before) / seconds for pid, before in zip(pids, used, strict=True)]
    # Below only where other processes have taken the processor away.
    assert shares[0] < 0.5 + 0.05
    assert 0 < shares[1] < 0.1 + 0.05


def test_unthrottled_process_is_never_stopped():
    with spinning(1) as (pid,), Throttle({pid: 1.0}) as throttle:
        for _ in range(20):
            throttle.tick()
            time.sleep(PERIOD)
            assert state(pid) == "R"


def test_release_lets_stopped_processes_go_on():
    with spinning(1) as (pid,):
        with Throttle({pid: 0.01}) as throttle:
            deadline = time.monotonic() + 20
            while state(pid) != "T":
                assert time.monotonic() < deadline
                throttle.tick()
                time.sleep(PERIOD)
        assert state(pid) == "R"


def test_release_ignores_processes_that_have_ended():
    with spinning(1) as (pid,), Throttle({pid: 0.01}) as throttle:
        deadline = time.monotonic() + 20
        while state(pid) != "T":
            assert time.monotonic() < deadline
            throttle.tick()
            time.sleep(PERIOD)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_clock_of_a_process_is_that_of_its_main_thread():
    assert processor_time(os.getpid()) == pytest.approx(time.thread_time(), abs=0.05)


def test_duties_fit_the_machine():
    processors = len(os.sched_getaffinity(0))
    assert feasible([0.01, 0.02]) == [0.01, 0.02]
    many = feasible([0.5] * 4 * processors)
    assert sum(many) == pytest.approx(0.85 * processors)
    assert BURST * min(many) > 0

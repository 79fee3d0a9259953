import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benches.cluster import leftovers, network, processors
from benches.cluster.emulate import emulated
from benches.cluster.layout import Share

import hap

ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(
    not (network.possible() and processors.controlled()), reason="needs root, namespaces and control groups"
)


def traces(name):
    """Everything that there is of a cluster."""
    places = (leftovers.NAMESPACES, processors.CPU, processors.MEMORY, leftovers.folder_of(name).parent)
    found = [entry.name for place in places if place.is_dir() for entry in place.iterdir()]
    return [entry for entry in found if entry.startswith(f"{name}-")] + list(leftovers.processes(name))


def two_hosts(memory):
    """A cluster of two unequal hosts, joined by 20 Mbit/s."""
    devices = [hap.Device(flops=flops, memory_bandwidth=1e9, memory=memory) for flops in (2e9, 1e9)]
    return hap.Cluster(devices, link=hap.Link(bandwidth=2.5e6, latency=1e-4))


# Without torch, which takes long to import.
PROBE = """
import os, socket, time
folder, rank = os.environ["HERE"], int(os.environ["RANK"])
began, used = time.perf_counter(), time.process_time()
while time.perf_counter() - began < 0.7:
    pass
share = (time.process_time() - used) / (time.perf_counter() - began)
rate = 0.0
if os.environ["GLOO_SOCKET_IFNAME"] == "eth0":
    if rank == 0:
        server = socket.create_server(("10.213.0.1", 5000))
        open(f"{folder}/listening", "w").close()
        began, received = time.perf_counter(), 0
        other = server.accept()[0]
        while part := other.recv(2**20):
            if not received:
                began = time.perf_counter()
            received += len(part)
        rate = received / (time.perf_counter() - began)
    else:
        while not os.path.exists(f"{folder}/listening"):
            time.sleep(0.01)
        with socket.create_connection(("10.213.0.1", 5000)) as other:
            other.sendall(bytes(2_500_000))
with open(f"{folder}/{rank}", "w") as file:
    file.write(f"{share} {rate} {len(os.sched_getaffinity(0))} {os.environ['OMP_NUM_THREADS']}")
time.sleep(60)
"""


@needs_root
def test_a_job_has_its_shares_and_links_and_nothing_is_left_of_a_tool_that_is_killed(tmp_path):
    two_hosts(2e9).save(tmp_path / "cluster.json")
    (tmp_path / "probe.py").write_text(PROBE)
    command = [sys.executable, "-m", "benches.cluster.emulate", "cluster.json", "--", sys.executable, "probe.py"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'python'}", "HERE": str(tmp_path)}
    tool = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    name = leftovers.name_of(tool.pid)
    results = [tmp_path / str(rank) for rank in (0, 1)]
    while not all(result.exists() and result.read_text() for result in results):
        assert tool.poll() is None, tool.communicate()[1]
        time.sleep(0.05)
    fast, slow = ([float(figure) for figure in result.read_text().split()] for result in results)
    # Others may keep the ranks from their shares, but nobody gets more.
    assert fast[0] < 0.95
    assert slow[0] < 0.5
    assert fast[1] < 3.5e6
    assert fast[2:] == slow[2:] == [1, 1]
    assert len(list(leftovers.processes(name))) >= 4
    tool.send_signal(signal.SIGKILL)
    tool.communicate()
    gone(name)


@needs_root
def test_what_is_made_is_removed_with_all_that_runs_in_it():
    name = leftovers.name_of(os.getpid())
    with emulated(two_hosts(2e9)) as cluster:
        assert cluster.name == name
        assert len(traces(name)) == 8
        command = [*network.inside(name, 1), "sleep", "60"]
        process = subprocess.Popen(command, env=os.environ | {leftovers.MARK: name})
    assert process.wait(timeout=10) == -signal.SIGKILL
    assert not traces(name)


def gone(name):
    """Waits for the end of the process that removes a cluster."""
    deadline = time.monotonic() + 10
    while (left := traces(name)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


@needs_root
def test_orphans_are_removed_and_others_are_not(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    orphan, alive, other = leftovers.name_of(ended.pid), leftovers.name_of(os.getpid()), f"hap-other-{os.getpid()}"
    groups = [processors.CPU / f"{orphan}-rank0", processors.CPU / f"{alive}-rank0", processors.CPU / other]
    for group in groups:
        group.mkdir()
    try:
        assert orphan in leftovers.remove_orphans()
        assert [group.exists() for group in groups] == [False, True, True]
    finally:
        for group in groups[1:]:
            group.rmdir()


@needs_root
def test_a_rank_that_needs_too_much_memory_is_known():
    name = leftovers.name_of(os.getpid())
    files = processors.make_groups(name, [Share(0, 0.9)] * 2, [5e7] * 2)
    program = "import pathlib, sys; from benches.cluster import processors\n"
    program += "processors.join(pathlib.Path(sys.argv[1])); print(len(bytearray(b'x') * int(sys.argv[2])))"
    try:
        for (file, _), size in zip(files, ("1000000", "100000000"), strict=True):
            subprocess.run([sys.executable, "-c", program, file, size], cwd=ROOT, capture_output=True)
        assert processors.overruns(name, 2) == [1]
    finally:
        leftovers.remove(name)
    assert not traces(name)


BUSY = """
import time
began = time.perf_counter()
while time.perf_counter() - began < 0.8:
    pass
print(time.process_time())
"""


def test_signals_give_shares_and_lift_them(tmp_path):
    stopper = processors.Stopper(tmp_path, [Share(0, 0.3), Share(0, 0.3)])
    stopper.start()
    try:
        slowed, free = (
            subprocess.Popen([sys.executable, "-S", "-c", BUSY], stdout=subprocess.PIPE, text=True) for _ in range(2)
        )
        (tmp_path / "rank0").write_text(str(slowed.pid))
        used = [float(process.communicate(timeout=30)[0]) for process in (slowed, free)]
        # Others may keep both from a processor.
        assert used[0] < 0.6 * max(0.8, used[1])
    finally:
        stopper.ended.set()
        stopper.join()

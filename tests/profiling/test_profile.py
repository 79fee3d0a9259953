"""Measurements of the machine that the tests run on: what they are is open, what is made of them is not."""

import itertools
import time
from dataclasses import dataclass
from unittest import mock

import msgspec
import pytest
import torch

import hap
from hap.cluster import COLLECTIVES, CollectiveCost
from hap.errors import ClusterError
from hap.profiling import clock, collectives, interference, operators, run
from hap.profiling.describe import Measured, alike, describe
from hap.profiling.fingerprint import fingerprint
from hap.profiling.fit import Line
from hap.profiling.machine import Machine, machine
from hap.rules import costs
from tests.profiling import jobs
from tests.runtime.launch import Launcher

CPU = torch.device("cpu")
POINTS = {"memory": ((1e3, 1e-5), (1e6, 1e-3)), "matmul/float32": ((1e6, 1e-4), (1e9, 1e-2))}
LINES = {name: Line(1e-4, 1e9, 0.25) for name in COLLECTIVES}


def measured(scale=1.0, **changes):
    fields = {"host": "a", "name": "card", "memory": 10**10, "free": 9 * 10**9, "threads": 0, "torch": "2"} | changes
    points = {name: tuple((x, scale * y) for x, y in line) for name, line in POINTS.items()}
    return Measured(Machine(**fields), points)


def test_every_family_is_measured_at_rising_amounts():
    rounds = []
    measured, _ = operators.measure((torch.float32,), CPU, seconds=0.02, advance=lambda: rounds.append(None))
    assert list(measured) == operators.names((torch.float32,))
    assert len(rounds) >= clock.LEAST
    for points in measured.values():
        assert len(points) >= 2
        assert all(one[0] < other[0] and one[1] < other[1] for one, other in itertools.pairwise(points))
    assert hap.Device("x", flops=1, memory_bandwidth=1, memory=1, measured=measured).measured == measured


def test_noise_counts_as_little_as_it_can():
    """Of each piece of work the least time of a lot, and no more than that of a larger one."""
    problems = [(1.0, (object,)), (2.0, (object, object)), (4.0, (object,))]
    rounds = [[5.0, 2.0, 2.0, 9.0], [3.0, 2.0, 4.0, 6.0]]
    with (
        mock.patch.object(operators, "names", return_value=["memory"]),
        mock.patch.object(operators, "_problems", return_value=problems),
        mock.patch.object(operators, "rounds", return_value=rounds),
    ):
        points, _ = operators.measure((), CPU, seconds=1.0)
    ((first, smallest), *others) = points["memory"]
    assert others == [(2.0, 2.0), (4.0, 6.0)]
    assert (first, smallest) == (1.0, pytest.approx(2.0, rel=1e-5))
    assert smallest < 2.0


def test_the_least_and_the_largest_of_the_lots_do_not_count():
    lots = [[[each]] for each in (3.0, 9.0, 1.0, 5.0, 4.0)]
    with (
        mock.patch.object(operators, "names", return_value=["memory"]),
        mock.patch.object(operators, "_problems", return_value=[(1.0, (object,))]),
        mock.patch.object(operators, "rounds", side_effect=lots),
    ):
        points, _ = operators.measure((), CPU, seconds=1.0)
    assert points == {"memory": ((1.0, 4.0),)}


def test_a_machine_that_changes_its_speed_is_told_of(caplog):
    slower, usual = [[1.3, 2.6]] * operators.COMPARABLE, [[1.0, 2.0]] * operators.COMPARABLE
    with (
        mock.patch.object(operators, "names", return_value=["memory"]),
        mock.patch.object(operators, "_problems", return_value=[(1.0, (object,)), (2.0, (object,))]),
        mock.patch.object(operators, "rounds", side_effect=[slower, *[usual] * (operators.LOTS - 1)]),
    ):
        points, _ = operators.measure((), CPU, seconds=1.0)
    assert points == {"memory": ((1.0, 1.0), (2.0, 2.0))}
    assert "changed by 30%" in caplog.text


def test_operators_take_as_long_as_heavy_ones_usually_do():
    # By round: a heavy one, and another, which takes its least time as often as it likes.
    rounds = [[1.0, 5.0], [1.2, 5.0], [1.2, 9.0], [1.3, 5.0], [30.0, 5.0]]
    assert operators._usual(rounds, [1.0, 5.0], [True, False]) == 1.2
    assert operators._usual(rounds, [1.0, 5.0], [False, False]) == 1.0


def test_a_process_that_has_its_processor_for_a_part_of_the_time_is_slower():
    def idle(*_, **__):
        time.sleep(0.02)
        return [[1.0, 2.0]]

    with (
        mock.patch.object(operators, "names", return_value=["memory"]),
        mock.patch.object(operators, "_problems", return_value=[(1.0, (object,)), (2.0, (object,))]),
        mock.patch.object(operators, "rounds", side_effect=idle),
    ):
        points, share = operators.measure((), CPU, seconds=1.0)
    assert points == {"memory": ((1.0, 1.0), (2.0, 2.0))}
    assert 0.0 < share < 0.5
    assert run.slowed(points, 0.5) == {"memory": ((1.0, 2.0), (2.0, 4.0))}


def test_what_others_do_within_an_operator_does_not_count():
    def interrupted():
        time.sleep(0.004)

    with (
        mock.patch.object(operators, "names", return_value=["memory"]),
        mock.patch.object(operators, "_problems", side_effect=lambda *_: iter([(1.0, (interrupted,))])),
    ):
        points, share = operators.measure((), CPU, seconds=0.05)
    # It shows in the share instead.
    assert points["memory"][0][1] < 0.002
    assert share < 0.5


def test_work_is_done_in_turns():
    done = []
    works = [(lambda: done.append("a"), 1.0), (lambda: done.append("b"), clock.RESOLVED / 2)]
    found = list(clock.rounds(works, CPU, seconds=0.0))
    # What is short twice at a time, after once that does not count.
    assert done == ["a", "b", "b", "b"] * clock.LEAST
    assert [len(times) for times in found] == [2] * clock.LEAST
    assert clock.quartile([5.0, 1.0, 2.0, 3.0]) == 2.0


def test_operators_belong_to_families():
    families = {
        "clone": "copy",
        "convolution_backward": "convolution_backward",
        "exp": "transcendental",
        "gelu_backward": "transcendental_backward",
        "max_pool2d_with_indices": "pooling",
        "max_pool2d_with_indices_backward": "pooling_backward",
        "native_layer_norm_backward": "normalisation",
        "tanh": "transcendental",
        "tanh_backward": None,
    }
    for name, family in families.items():
        packet = getattr(torch.ops.aten, name)
        assert costs.family(getattr(packet, packet.overloads()[0])) == family
    assert costs.family(torch.ops.aten.expand.default) is None
    assert costs.family(torch.ops.aten.add.Tensor) is None


def test_a_device_has_the_figures_of_its_largest_problems():
    cluster = describe([measured(), measured(2.0)], LINES)
    first, second = cluster.devices
    assert (first.flops["float32"], first.memory_bandwidth, first.launch_overhead) == (1e11, 1e9, 1e-5)
    assert second.flops["float32"] == 0.5e11
    assert (first.memory, first.usable_memory) == (9e9, 8.1e9)
    assert first.measured == POINTS
    assert cluster.collectives == dict.fromkeys(COLLECTIVES, CollectiveCost(latency=1e-4, bandwidth=1e9, error=0.25))
    assert (cluster.link.bandwidth, cluster.link.latency) == (1e9, 1e-4)
    assert cluster.fingerprint == fingerprint([measured().machine] * 2)
    assert hap.Cluster.from_json(cluster.to_json()) == cluster


def test_a_known_accelerator_has_its_usual_name():
    cluster = describe([measured(name="Tesla V100-SXM2-16GB", memory=16_900_000_000, free=16_000_000_000)], {})
    assert (cluster.devices[0].name, cluster.devices[0].usable_memory) == ("V100", 15e9)


def test_processes_on_cpus_share_the_memory_of_their_host():
    pair = msgspec.structs.replace(measured(threads=1), inside=Line(1e-4, 1e9, 0.0))
    cluster = describe([pair, pair, measured(threads=1, host="b")], LINES)
    assert [device.memory for device in cluster.devices] == [4.5e9, 4.5e9, 9e9]


def test_ranks_on_equal_hardware_are_equal_but_for_noise():
    ranks = [measured(1.0), measured(3.0), measured(1.1), measured(3.1), measured(1.05, name="other card")]
    first, third, second, fourth, other = alike(ranks)
    assert first.points == second.points != third.points == fourth.points
    assert first.points["memory"][0][1] == pytest.approx(1.05e-5)
    assert other.points == ranks[4].points


def test_amounts_that_only_some_have_measured_are_left_out():
    short = Measured(measured().machine, POINTS | {"memory": ((1e3, 1e-5), (1e5, 2e-4), (1e6, 1e-3))})
    assert alike([measured(), short])[1].points["memory"] == POINTS["memory"]


@pytest.mark.parametrize(
    ("name", "equal", "skewed"),
    [
        ("all_gather/padded", 50.0, 75.0),
        ("all_gather/grouped", 100.0, 100.0),
        ("all_reduce/builtin", 100.0, 100.0),
        ("reduce_scatter/padded", 50.0, 75.0),
        ("all_to_all/exchange", 25.0, 18.75),
    ],
)
def test_bytes_are_those_of_the_cost_model(name, equal, skewed):
    assert collectives.moved(name, 100.0, (8, 8)) == equal
    assert collectives.moved(name, 100.0, (12, 4)) == skewed


def test_computation_and_communication_that_slow_each_other():
    def rank(*samples):
        """By size, two rounds that differ, with the mean that is given."""
        return [
            [interference.Sample(alone, beside + change, product, slowed + change) for change in (-0.5, 0.5)]
            for alone, beside, product, slowed in samples
        ]

    sizes = [(1.0, 3.0, 1.0, 4.0), (4.0, 5.0, 1.0, 2.0), (9.0, 9.0, 1.0, 1.0)]
    quiet = [(1.0, 2.0, 1.0, 1.0), (4.0, 5.0, 1.0, 1.0), (9.0, 9.0, 1.0, 1.0)]
    # The products of the slowest rank proceed at a quarter, a half and all of their rate; the medians count.
    assert interference.summary([rank(*sizes), rank(*quiet)]) == (0.5, 1.0)
    # Noise, where it takes less time than alone.
    assert interference.summary([rank((4.0, 3.0, 2.0, 1.5))]) == (0.0, 0.0)
    cluster = describe([measured(), measured()], LINES, (0.25, 0.5))
    assert cluster.contention == 0.5
    assert (cluster.interference, cluster.overlap, cluster.hidden) == (0.25, 1.0, 0.75)
    assert hap.Cluster(["V100"] * 2, link=cluster.link, overlap=1.0, interference=0.25).hidden == 0.75


@dataclass
class Simulated:
    """A group whose all-reduces take so long by its own clock, alone and beside products, which it slows."""

    alone: float
    beside: float
    product: float
    slowed: float
    now: float = 0.0
    ends: float = 0.0
    all_reduces: int = 0

    def issue(self, request, *, asynchronous):
        assert asynchronous
        self.all_reduces += 1
        self.ends = self.now + (self.beside if self.all_reduces > 1 else self.alone)
        return None, [self]

    def is_completed(self):
        return self.now >= self.ends

    def multiply(self, matrix):
        self.now += self.product if self.is_completed() else self.slowed

    def wait(self, works):
        assert works == [self]
        self.now = max(self.now, self.ends)

    def sample(self):
        with (
            mock.patch.object(interference, "time", mock.Mock(perf_counter=lambda: self.now)),
            mock.patch.object(interference, "_product", self.multiply),
            mock.patch.object(interference, "wait", self.wait),
        ):
            return interference._sample(self, mock.Mock(), torch.ones(1), torch.zeros(1), 0.0)


def test_an_all_reduce_and_products_are_timed_alone_and_beside_each_other():
    # Products begin at 0, 2, 4 and 6; during the last one it ends.
    assert Simulated(alone=4.0, beside=7.0, product=1.0, slowed=2.0).sample() == interference.Sample(4.0, 6.0, 1.0, 2.0)
    assert Simulated(alone=4.0, beside=4.0, product=1.0, slowed=1.0).sample() == interference.Sample(4.0, 3.0, 1.0, 1.0)
    # One product at least.
    assert Simulated(alone=0.5, beside=0.0, product=1.0, slowed=9.0).sample() == interference.Sample(0.5, 0.0, 1.0, 1.0)


def test_a_collective_lasts_from_when_the_last_rank_begins_until_the_last_has_ended():
    early, late = [(1.0, 7.0), (0.0, 2.0)], [(3.0, 6.5), (0.5, 1.5)]
    times = collectives._times
    assert times([early, late]) == times([late, early]) == [4.0, 1.5]


def test_a_device_is_kept_busy_for_so_long():
    for seconds in (0.0, 0.05):
        began = time.perf_counter()
        clock.compute_for(seconds, CPU)
        assert time.perf_counter() - began >= seconds


def test_the_machine_is_described():
    found = machine(CPU)
    assert 0 < found.free <= found.memory
    assert found.threads == torch.get_num_threads()


def test_a_job_measures_itself_and_remembers(tmp_path):
    with Launcher(2) as launcher:
        texts = launcher.run(jobs.measure, limit=60.0)
        assert texts[0] == texts[1]
        cluster = hap.Cluster.from_json(texts[0])
        assert len(cluster.devices) == 2
        assert set(cluster.collectives) == set(COLLECTIVES)
        assert 0.0 <= cluster.interference <= 1.0
        assert all(set(device.measured) == set(operators.names((torch.float32,))) for device in cluster.devices)
        found = launcher.run(jobs.parallelize_without_devices, str(tmp_path), limit=60.0)
    assert found == [{"measured": 1, "equal": True}] * 2
    (kept,) = tmp_path.glob("hap/*.json")
    assert hap.Cluster.load(kept).fingerprint == kept.stem == cluster.fingerprint


def test_one_process_measures_no_collectives(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("hap.profiling.run.QUICK_OPERATORS", 0.0)
    cluster = hap.profile(quick=True, device="cpu")
    assert len(cluster.devices) == 1
    assert cluster.collectives == {}
    assert cluster.fingerprint == fingerprint([machine(CPU)])


def test_a_kept_profile_that_cannot_be_read_is_measured_anew(tmp_path, monkeypatch, caplog):
    from hap.profiling import cache

    path = tmp_path / "broken.json"
    path.write_text("{")
    assert cache._remembered(path, [measured().machine]) is None
    assert "cannot be used, measuring anew: cluster: not valid JSON" in caplog.text
    (tmp_path / "one.json").write_text(describe([measured()], {}).to_json())
    assert cache._remembered(tmp_path / "one.json", [measured().machine] * 2) is None
    assert "cannot be used, measuring anew: expected 2 devices, got 1" in caplog.text
    with pytest.raises(ClusterError):
        hap.Cluster.load(path)

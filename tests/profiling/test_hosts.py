"""Profiles over several hosts, which are pretended."""

import logging
from dataclasses import replace

import pytest
import torch

import hap
from hap.cluster import COLLECTIVES
from hap.profiling import collectives
from hap.profiling.describe import Measured, describe
from hap.profiling.fingerprint import fingerprint
from hap.profiling.fit import Line
from hap.profiling.hosts import EXCHANGE, hosts_of
from hap.profiling.machine import Machine
from tests.profiling import jobs
from tests.runtime.launch import Launcher

POINTS = {"memory": ((1e3, 1e-5), (1e6, 1e-3)), "matmul/float32": ((1e6, 1e-4), (1e9, 1e-2))}
# 3 messages of 0.1 ms each, and one of a host's 2 ranks.
LINES = {name: Line(3e-4, 3e8, 0.25) for name in COLLECTIVES}
INSIDE = {"a": Line(2e-6, 1e10, 0.0), "b": Line(4e-6, 2e10, 0.0)}


def described(names, lines=LINES):
    machines = [Machine(host=name, name="card", memory=10**10, free=10**10, threads=0, torch="2") for name in names]
    several = len({*names}) > 1
    ranks = [
        Measured(each, POINTS, INSIDE[each.host] if several and names.count(each.host) > 1 else None)
        for each in machines
    ]
    return describe(ranks, lines)


def test_hosts_are_those_of_consecutive_ranks():
    assert hosts_of("aabb") == [(0, 1), (2, 3)]
    assert hosts_of("abbc") == [(0,), (1, 2), (3,)]
    assert hosts_of("ab") == [(0,), (1,)]
    assert hosts_of("aa") == hosts_of("a") == hosts_of("abab") == hosts_of("aba") == []


def test_hosts_are_clusters_with_links_of_their_own(caplog):
    with caplog.at_level(logging.INFO, logger="hap"):
        cluster = described("aabb")
    assert not caplog.records
    first, second = cluster.members
    assert (len(first.members), len(second.members)) == (2, 2)
    assert first.link == hap.Link(bandwidth=1e10, latency=2e-6)
    assert second.link == hap.Link(bandwidth=2e10, latency=4e-6)
    # Of what each of 4 ranks sends 2 thirds leave its host, together with those of the other one.
    assert cluster.link == hap.Link(bandwidth=4e8, latency=3e-4 / 3)
    assert set(cluster.collectives) == set(COLLECTIVES)
    assert cluster.devices == described("aaaa").devices
    assert hap.Cluster.from_json(cluster.to_json()) == cluster


def test_a_rank_alone_on_its_host_is_no_cluster():
    cluster = described("abb")
    assert isinstance(cluster.members[0], hap.Device)
    assert cluster.members[1].link == hap.Link(bandwidth=2e10, latency=4e-6)
    assert cluster.link == hap.Link(bandwidth=3e8, latency=3e-4 / 2)
    assert described("ab").members == described("aa").devices
    assert described("ab").link == described("aa").link == hap.Link(bandwidth=3e8, latency=3e-4)


def test_ranks_of_hosts_that_are_not_consecutive_stay_in_order(caplog):
    with caplog.at_level(logging.INFO, logger="hap"):
        cluster = described("abab")
    assert "a flat list of devices is made of all hosts" in caplog.text
    assert cluster.members == described("aaaa").members
    assert cluster.link == described("aaaa").link == hap.Link(bandwidth=3e8, latency=3e-4 / 3)


@pytest.mark.parametrize("names", ["aaaa", "aabb", "abbb"])
def test_the_exchange_of_all_is_as_fast_as_it_was_measured(names):
    """The link between hosts is such that the core derives the rate that was measured."""
    cluster = described(names)
    # Copies take no time.
    board = hap.Device(flops=1.0, memory_bandwidth=1e30, memory=1.0)
    derived = replace(cluster, collectives={}).with_devices([board] * 4)
    for size in (0.0, 1e9):
        expected = LINES[EXCHANGE].latency + collectives.moved(EXCHANGE, size, [4] * 4) / LINES[EXCHANGE].rate
        assert collectives.predicted(EXCHANGE, size, [4] * 4, derived) == pytest.approx(expected)


def test_a_plan_may_leave_a_host_out_and_count_on_the_link_of_the_other():
    cluster = described("aabb", dict.fromkeys(COLLECTIVES, Line(3e-5, 1e5, 0.0)))
    # Of the well-known strategies that by tensors moves the least, and on one host it is the slowest.
    module, inputs = torch.nn.Linear(256, 256), (torch.ones(4096, 256),)
    plan = hap.plan(module, devices=cluster, example_inputs=inputs)
    assert plan.left_out in {(0, 1), (2, 3)}
    left = cluster.without(plan.left_out)
    alone = hap.plan(module, devices=left, example_inputs=inputs)
    flat = hap.Cluster(left.devices, link=left.links[0], overlap=1.0)
    assert alone.predicted_time == hap.plan(module, devices=flat, example_inputs=inputs).predicted_time
    # The message that tells the others of the loss.
    assert plan.predicted_time == pytest.approx(alone.predicted_time + cluster.link.latency)


def test_the_same_ranks_on_one_and_on_several_hosts_have_other_fingerprints():
    def machines(names):
        return [Machine(host=name, name="card", memory=1, free=1, threads=0, torch="2") for name in names]

    assert len({fingerprint(machines(names)) for names in ("aaaa", "aabb", "abab", "abbb")}) == 4


def test_ranks_measure_among_themselves_on_each_host():
    with Launcher(4) as launcher:
        found = launcher.run(jobs.measure_on_hosts, "aabb", limit=100.0)
        mixed = launcher.run(jobs.measure_on_hosts, "abab", limit=100.0)
    (text,) = {text for text, _, _ in found}
    cluster = hap.Cluster.from_json(text)
    assert [len(member.members) for member in cluster.members] == [2, 2]
    assert len(cluster.links) == 3
    assert set(cluster.collectives) == set(COLLECTIVES)
    assert all(groups == 0 and seconds[0] < 3.0 for _, groups, seconds in found)
    (text,) = {text for text, _, _ in mixed}
    assert hap.Cluster.from_json(text).members == hap.Cluster.from_json(text).devices
    assert all((groups, seconds) == (0, []) for _, groups, seconds in mixed)

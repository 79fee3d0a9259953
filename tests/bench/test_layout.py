import pytest
from benches.cluster.layout import FULL, hosts, shares
from hypothesis import given
from hypothesis import strategies as st

import hap


def cluster_of(*members):
    return hap.Cluster(members, link=hap.Link(bandwidth=1e7, latency=1e-4))


DEVICE = hap.Device(flops=1e9, memory_bandwidth=1e9, memory=1e9)


def test_members_are_hosts():
    host = hap.Cluster([DEVICE] * 2, link=hap.Link(bandwidth=1e9, latency=0.0))
    assert [one.ranks for one in hosts(cluster_of(DEVICE, host, DEVICE))] == [(0,), (1, 2), (3,)]
    assert {one.bandwidth for one in hosts(cluster_of(host, host))} == {1e7}
    with pytest.raises(ValueError, match="member 1 of the cluster holds clusters"):
        hosts(cluster_of(host, cluster_of(host, host)))


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6), st.integers(1, 3))
def test_shares_are_proportional_and_fit(speeds, processors):
    found = shares(speeds, range(processors))
    loads = [sum(share.part for share in found if share.processor == number) for number in range(processors)]
    assert max(loads) == pytest.approx(FULL)
    ratios = [share.part / speed for share, speed in zip(found, speeds, strict=True)]
    assert ratios == pytest.approx([ratios[0]] * len(ratios))


def test_large_and_small_shares_go_together():
    assert [round(share.part, 3) for share in shares([60, 20, 60, 20], [0, 1])] == [0.675, 0.225, 0.675, 0.225]
    assert [share.processor for share in shares([60, 20, 60, 20], [0, 1])] == [0, 0, 1, 1]

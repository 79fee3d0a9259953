import json
import logging
import pickle

import pytest

import hap
from hap import _core
from hap.cluster import CollectiveCost
from hap.errors import ClusterError

LINK = hap.Link(bandwidth=1.25e9, latency=5e-5)


def test_devices_are_the_leaves_in_rank_order():
    cluster = hap.Cluster(["V100", hap.Cluster(["T4", hap.Cluster(["P100"], link=LINK)], link=LINK), "A10"], link=LINK)
    assert [device.name for device in cluster.devices] == ["V100", "T4", "P100", "A10"]


def test_devices_that_are_taken_away_leave_the_others_as_they_were():
    inner = hap.Cluster(["T4", "A10"], link="NVLink 3")
    cluster = hap.Cluster(["V100", inner, "P100"], link=LINK, overlap=0.5)
    without = cluster.without([1, 3])
    assert without == hap.Cluster(["V100", hap.Cluster(["A10"], link="NVLink 3")], link=LINK, overlap=0.5)
    assert cluster.without([1, 2]) == hap.Cluster(["V100", "P100"], link=LINK, overlap=0.5)
    assert cluster.without([]) == cluster
    slowed = hap.Cluster(["V100"] * 3, overlap=1.0, interference=0.5)
    assert slowed.without([2]).hidden == slowed.hidden == 0.5
    with pytest.raises(ClusterError, match=r"expected ranks from 0 to 3, got \[4\]"):
        cluster.without([0, 4])
    with pytest.raises(ClusterError, match="at least one device to stay"):
        cluster.without(range(4))


def test_other_devices_take_the_places_of_those_that_are_there():
    tree = hap.Cluster(["V100", hap.Cluster(["T4", "A10"], link="NVLink 3")], link=LINK, overlap=0.5)
    others = hap.Cluster(["A10", hap.Cluster(["P100", "V100"], link="NVLink 3")], link=LINK, overlap=0.5)
    assert tree.with_devices(others.devices) == others
    with pytest.raises(ClusterError, match="expected 3 devices, got 2"):
        tree.with_devices(others.devices[1:])


def test_a_fingerprint_is_that_of_all_devices():
    cluster = hap.Cluster(["V100", "T4"], link=LINK, fingerprint="0" * 64)
    assert cluster.without([]) == cluster
    assert cluster.without([1]).fingerprint is None
    assert hap.Cluster([cluster, "T4"], link=LINK).members[0] == hap.Cluster(["V100", "T4"], link=LINK)


def test_the_core_reads_a_fingerprint():
    mark = "0123456789abcdef" * 4
    text = hap.Cluster(["V100"], fingerprint=mark).to_json()
    graph = {"format": "hap-graph-1", "axes": [], "tensors": [], "inputs": [], "operators": [], "outputs": []}
    core = _core.Graph(json.dumps(graph).encode())
    assert json.loads(core.simulate(text, '{"instructions": []}', "{}", "{}"))["seconds"] == 0.0
    with pytest.raises(ValueError, match='fingerprint is "no", expected 64 hexadecimal digits'):
        core.simulate(text.replace(mark, "no"), '{"instructions": []}', "{}", "{}")


def test_collectives_are_those_of_the_outermost_link():
    costs = {"all_reduce/builtin": COST}
    inner = hap.Cluster(["T4", "A10", "T4"], link="NVLink 3")
    cluster = hap.Cluster([inner, "V100", inner], link=LINK, overlap=0.5, interference=0.5, collectives=costs)
    for removed in ([0], [3], [0, 1, 2], [0, 1, 2, 4, 5], [3, 4, 5, 6][:3]):
        assert cluster.without(removed).collectives == costs
    # One of the clusters that it joins, or a part of one.
    for removed in (range(3, 7), range(4), range(5)):
        left = cluster.without(removed)
        assert left.links == (hap.Link("NVLink 3"),)
        assert (left.collectives, left.overlap, left.interference) == ({}, 0.5, 0.5)
    # They were measured inside of what the root alone has.
    wrapped = hap.Cluster([inner], link=LINK, collectives=costs)
    assert wrapped.without([0]).collectives == costs
    nested = hap.Cluster([hap.Cluster([inner, "V100"], link=LINK)], link=LINK, collectives=costs)
    assert nested.without([0]).collectives == costs
    assert nested.without([3]).collectives == {}


def test_of_normalises_what_users_write():
    cluster = hap.Cluster(["V100", "T4"])
    assert hap.Cluster.of(cluster) is cluster
    assert hap.Cluster.of(["V100", hap.Device("T4")]) == cluster
    assert hap.Cluster.of(name for name in ("V100", "T4")) == cluster


def test_assumed_link_is_logged(caplog):
    with caplog.at_level(logging.INFO, logger="hap"):
        hap.Cluster.of(["V100", "V100"])
    assert "no link given for 2 members: assuming PCIe 3, 7.875e+09 B/s" in caplog.text


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["V100", "A100-80GB"], "PCIe 3"), (["A100-80GB", "H100"], "PCIe 4"), (["H100", "B200"], "PCIe 5")],
)
def test_devices_without_link_stand_in_one_host_on_the_oldest_bus(names, expected):
    cluster = hap.Cluster(names)
    assert cluster.link == hap.Link(expected, assumed=True)
    assert cluster.links == (cluster.link,)
    assert hap.Cluster.from_json(cluster.to_json()) == cluster


def test_a_device_that_is_not_known_is_assumed_on_the_oldest_bus():
    board = hap.Device("board", flops=1, memory_bandwidth=2, memory=3)
    assert hap.Cluster(["H100", board]).link.name == "PCIe 3"


def test_hosts_without_link_are_assumed_on_a_network():
    cluster = hap.Cluster([hap.Cluster(["V100"] * 2), hap.Cluster(["T4"]), "T4"])
    assert cluster.links == (hap.Link("10GbE", assumed=True), hap.Link("PCIe 3", assumed=True))


def test_a_link_may_be_given_by_name():
    cluster = hap.Cluster(["V100", "T4"], link="100 Gb Ethernet")
    assert cluster.link == hap.Link("100GbE")
    assert not cluster.link.assumed


@pytest.mark.parametrize("link", [LINK, None])
def test_nothing_is_logged_where_nothing_is_assumed(caplog, link):
    with caplog.at_level(logging.INFO, logger="hap"):
        hap.Cluster(["V100"] * (2 if link else 1), link=link)
    assert not caplog.records


def test_clusters_are_plain_data():
    cluster = hap.Cluster(["V100", "T4"], link=LINK, overlap=0.5, collectives={"all_reduce/builtin": COST})
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert cluster != hap.Cluster(["V100", "T4"], link=LINK)
    assert cluster != hap.Cluster(["T4", "V100"], link=LINK, overlap=0.5, collectives={"all_reduce/builtin": COST})


COST = CollectiveCost(latency=1e-4, bandwidth=1e9)


def test_repr_builds_an_equal_cluster():
    cluster = hap.Cluster(
        ["V100", hap.Cluster([hap.Device("x", flops=1, memory_bandwidth=2, memory=3)], link=LINK)],
        link=LINK,
        overlap=0.25,
        collectives={"all_reduce/builtin": COST},
    )
    names = {"Cluster": hap.Cluster, "Device": hap.Device, "Link": hap.Link, "CollectiveCost": CollectiveCost}
    assert eval(repr(cluster), names) == cluster


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: hap.Cluster("V100"), "expected a list of devices"),
        (lambda: hap.Cluster.of(hap.Device("V100")), "expected a list of devices"),
        (lambda: hap.Cluster.of(3), "expected a list of devices"),
        (lambda: hap.Cluster({"V100": 2}), "expected a list of devices"),
        (lambda: hap.Cluster({"V100", "T4"}), "expected a list of devices"),
        (lambda: hap.Cluster(["V100"], link=LINK, collectives=5), "collectives: expected a mapping from names"),
        (lambda: hap.Cluster(["V100"], link=LINK, collectives=[]), "collectives: expected a mapping from names"),
        (lambda: hap.Cluster.from_json(None), "cluster: expected JSON as text, got NoneType"),
        (lambda: hap.Cluster.from_json("[" * 100_000), "cluster: nested too deeply"),
        (lambda: hap.Cluster.load(0.5), r"Cluster\.load: expected a path, got 0\.5"),
        (lambda: hap.Link(5), "Link: expected a name, got 5"),
        (lambda: hap.Link("10GbE", assumed="no"), "Link: assumed: expected True or False, got 'no'"),
        (lambda: hap.Device(5), "Device: expected a name, got 5"),
        (lambda: hap.Device("V100", tf32="no"), "Device: tf32: expected True or False, got 'no'"),
        (lambda: hap.Cluster([]), "at least one device"),
        (lambda: hap.Cluster(["V100", 3]), "member 1: expected a device, an accelerator's name or a cluster, got 3"),
        (lambda: hap.Cluster(["V1000"]), '"V1000" is not a known accelerator: did you mean V100'),
        (lambda: hap.Cluster(["V100"], link=1e9), r"link: expected a hap\.Link"),
        (lambda: hap.Cluster(["V100"], link=LINK, overlap=1.5), "overlap: expected a number from 0 to 1"),
        (lambda: hap.Cluster(["V100"], fingerprint=5), "Cluster: fingerprint: expected a SHA-256 as 64 hex"),
        (lambda: hap.Cluster(["V100"], link=LINK, interference=2), "interference: expected a number from 0 to 1"),
        (lambda: hap.Cluster(["V100"], link=LINK, collectives={"all_gather": COST}), 'unknown "all_gather"; expected'),
        (lambda: hap.Cluster(["V100"], link=LINK, collectives={"all_reduce/builtin": 1e9}), "CollectiveCost"),
        (
            lambda: hap.Cluster([hap.Cluster(["V100"], link=LINK, overlap=0.5)], link=LINK),
            "member 0: collectives, overlap, interference and contention belong to the outermost cluster",
        ),
        (lambda: hap.Link(bandwidth=0, latency=0), "Link: bandwidth: expected a finite number above 0, got 0"),
        (lambda: hap.Link(bandwidth=1, latency=-1), "Link: latency: expected a finite number of at least 0"),
        (lambda: CollectiveCost(bandwidth=-1, latency=0), "CollectiveCost: bandwidth"),
    ],
)
def test_mistakes_are_named(build, message):
    with pytest.raises(ClusterError, match=message):
        build()

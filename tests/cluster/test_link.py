import pytest

import hap
from hap.cluster import LINKS
from hap.errors import ClusterError


@pytest.mark.parametrize("name", LINKS)
def test_every_known_link_is_plausible(name):
    link = hap.Link(name)
    assert (link.name, link.assumed) == (name, False)
    assert 1e8 < link.bandwidth < 1e12
    assert 1e-6 < link.latency < 1e-3


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("PCIe 4", "PCIe 4"),
        ("pcie4.0", "PCIe 4"),
        ("PCIe Gen4 P2P", "PCIe 4 peer-to-peer"),
        ("nvlink3", "NVLink 3"),
        ("10gbe", "10GbE"),
        ("10 Gbit Ethernet", "10GbE"),
        ("100 Gigabit Ethernet", "100GbE"),
        ("infiniband hdr", "InfiniBand HDR"),
    ],
)
def test_spelling_of_a_name_is_free(spelling, name):
    assert hap.Link(spelling) == hap.Link(name)


def test_peer_to_peer_is_twice_as_fast_as_through_the_host():
    assert hap.Link("PCIe 4 peer-to-peer").bandwidth == 2 * hap.Link("PCIe 4").bandwidth


@pytest.mark.parametrize(
    "link",
    [
        hap.Link("10GbE"),
        hap.Link(bandwidth=1.0, latency=0),
        hap.Link("10GbE", latency=1e-3),
        hap.Link("my link", bandwidth=1.0, latency=0, assumed=True),
    ],
)
def test_repr_builds_an_equal_link(link):
    assert eval(repr(link), {"Link": hap.Link}) == link


def test_unknown_names_and_missing_figures_are_errors():
    with pytest.raises(ClusterError, match='"infiniband" is not a known link: did you mean InfiniBand EDR or'):
        hap.Link("infiniband")
    with pytest.raises(ClusterError, match=r'"zzz" is not a known link: hap devices lists .*\(missing: latency\)'):
        hap.Link("zzz", bandwidth=1.0)
    with pytest.raises(ClusterError, match="Link: latency missing"):
        hap.Link(bandwidth=1.0)

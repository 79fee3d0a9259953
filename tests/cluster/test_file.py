import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hap
from hap.cluster import ACCELERATORS, COLLECTIVES, CollectiveCost
from hap.errors import ClusterError

positive = st.floats(min_value=1e-12, max_value=1e18)
not_negative = st.floats(min_value=0, max_value=10)
links = st.builds(
    hap.Link, st.none() | st.text(min_size=1), bandwidth=positive, latency=not_negative, assumed=st.booleans()
)
figures = st.builds(
    hap.Device,
    st.text(min_size=1, max_size=8),
    flops=positive | st.dictionaries(st.sampled_from(["default", "float32", "bfloat16"]), positive, min_size=1),
    memory_bandwidth=positive,
    memory=positive,
    launch_overhead=not_negative,
    measured=st.just({})
    | st.just({"attention/bfloat16": [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)], "memory": [(1, 2), (3, 4)]}),
)
devices = figures | st.sampled_from([*ACCELERATORS]).map(hap.Device)
members = st.recursive(
    devices,
    lambda inner: st.builds(lambda inside, link: hap.Cluster(inside, link=link), st.lists(inner, min_size=1), links),
    max_leaves=6,
)
clusters = st.builds(
    hap.Cluster,
    st.lists(members, min_size=1, max_size=4),
    link=links,
    overlap=st.floats(0, 1),
    interference=st.floats(0, 1),
    collectives=st.dictionaries(
        st.sampled_from(COLLECTIVES),
        st.builds(CollectiveCost, latency=not_negative, bandwidth=positive, error=st.none() | not_negative),
    ),
    fingerprint=st.none() | st.text("0123456789abcdef", min_size=64, max_size=64),
)


@given(clusters)
def test_json_keeps_everything(cluster):
    text = cluster.to_json()
    assert hap.Cluster.from_json(text) == cluster
    assert hap.Cluster.from_json(text).to_json() == text


FINGERPRINT = "0123456789abcdef" * 4
CLUSTER = hap.Cluster(
    ["V100", hap.Cluster([hap.Device("board", flops=3e12, memory_bandwidth=2e11, memory=8e9)])],
    # The inner link is assumed.
    link=hap.Link(bandwidth=1.25e9, latency=5e-5),
    collectives={"all_reduce/builtin": CollectiveCost(latency=1e-4, bandwidth=1e9, error=0.05)},
    fingerprint=FINGERPRINT,
)


def test_file_has_the_format_of_the_core():
    board = {"name": "board", "flops": {"default": 3e12}, "memory_bandwidth": 2e11, "memory": 8e9}
    pcie = {"bandwidth": 7.875e9, "latency": 2e-5, "name": "PCIe 3", "assumed": True}
    inner = {"link": pcie, "members": [{"device": board | {"launch_overhead": 5e-6}}]}
    v100 = {"name": "V100", "memory_bandwidth": 9e11, "memory": 1.6e10, "reserve": 1e9, "launch_overhead": 5e-6}
    v100["flops"] = {"bfloat16": 1.57e13, "default": 1.57e13, "float16": 1.25e14, "float32": 1.57e13, "float64": 7.8e12}
    assert json.loads(CLUSTER.to_json()) == {
        "format": "hap-cluster-1",
        "root": {"link": {"bandwidth": 1.25e9, "latency": 5e-5}, "members": [{"device": v100}, {"group": inner}]},
        "collectives": {"all_reduce/builtin": {"latency": 1e-4, "bandwidth": 1e9, "error": 0.05}},
        "overlap": 0.0,
        "fingerprint": FINGERPRINT,
    }


def test_save_and_load(tmp_path):
    CLUSTER.save(tmp_path / "cluster.json")
    assert hap.Cluster.load(tmp_path / "cluster.json") == CLUSTER
    assert hap.Cluster.load(str(tmp_path / "cluster.json")) == CLUSTER
    assert (tmp_path / "cluster.json").read_text().startswith('{\n  "format": "hap-cluster-1",\n')


def test_what_is_measured_of_the_whole_may_be_left_out():
    content = json.loads(CLUSTER.to_json())
    del content["collectives"], content["overlap"], content["fingerprint"]
    assert hap.Cluster.from_json(json.dumps(content)) == hap.Cluster(CLUSTER.members, link=CLUSTER.link)


DELETE = object()
OPTIONAL = {
    "collectives",
    "collectives.all_reduce/builtin",
    "collectives.all_reduce/builtin.error",
    "fingerprint",
    "overlap",
    "root.members[0].device.reserve",
    "root.members[1].group.link.name",
    "root.members[1].group.link.assumed",
}


def fields(value, path=()):
    """Paths of all fields and list entries inside a JSON value."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key), inner
            yield from fields(inner, (*path, key))


def text_of(path):
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def changed(content, path, value):
    """The content of a file with another value at a path, or without one."""
    content = copy.deepcopy(content)
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    if value is DELETE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = copy.deepcopy(value)
    return content


def written(path, value):
    return json.dumps(changed(json.loads(CLUSTER.to_json()), path, value))


PATHS = list(fields(json.loads(CLUSTER.to_json())))
FIGURES = [path for path, value in PATHS if isinstance(value, float)]
LOWEST_IS_ZERO = ("error", "latency", "launch_overhead", "overlap", "reserve")


def test_the_paths_below_cover_the_format():
    assert text_of(("root", "members", 1, "group", "members", 0, "device", "memory")) in map(text_of, FIGURES)
    assert len(FIGURES) == 21


@pytest.mark.parametrize("figure", [0.0, -1.0, float("nan"), float("inf"), "8e9", None, True, [], 10**400])
@pytest.mark.parametrize("path", FIGURES, ids=text_of)
def test_each_figure_is_checked_and_named(path, figure, tmp_path):
    if figure == 0.0 and path[-1] in LOWEST_IS_ZERO:
        assert hap.Cluster.from_json(written(path, figure))
        return
    file = tmp_path / "cluster.json"
    file.write_text(written(path, figure))
    with pytest.raises(ClusterError) as caught:
        hap.Cluster.load(file)
    assert str(caught.value).startswith(f"cluster file {file}: {text_of(path)}: expected ")


@pytest.mark.parametrize("path", [path for path, _ in PATHS if not isinstance(path[-1], int)], ids=text_of)
def test_each_missing_field_is_named(path):
    if text_of(path) in OPTIONAL or (path[-2:-1] == ("flops",) and path[-1] != "default"):
        assert hap.Cluster.from_json(written(path, DELETE))
        return
    named = text_of(path[:-1]) if path[-1] in ("default", "device", "group") else text_of(path)
    with pytest.raises(ClusterError) as caught:
        hap.Cluster.from_json(written(path, DELETE))
    assert str(caught.value).startswith(f"cluster: {named}: ")
    assert "expected" in str(caught.value)


@pytest.mark.parametrize("path", [(), *(path for path, value in PATHS if isinstance(value, dict))], ids=text_of)
def test_each_unknown_field_is_named(path):
    with pytest.raises(ClusterError) as caught:
        hap.Cluster.from_json(written((*path, "colour"), 1.0))
    assert str(caught.value).startswith(f"cluster: {text_of((*path, 'colour'))}: ")


@pytest.mark.parametrize("value", [3.0, "text", [], {}, None], ids=repr)
@pytest.mark.parametrize(
    "path", [path for path, value in PATHS if isinstance(value, (dict, list, str, bool))], ids=text_of
)
def test_each_wrong_type_is_named(path, value):
    if (path[-1] == "name" and value == "text") or (path == ("collectives",) and value == {}):
        assert hap.Cluster.from_json(written(path, value))
        return
    with pytest.raises(ClusterError) as caught:
        hap.Cluster.from_json(written(path, value))
    assert str(caught.value).startswith(f"cluster: {text_of(path)}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cluster: not valid JSON"),
        ('{"format": ', "cluster: not valid JSON"),
        (b"\xff\xfe{}", "cluster: not valid JSON"),
        ("[]", r"cluster: top level: expected an object, got \[\]"),
        ("{}", "cluster: format: missing"),
        (CLUSTER.to_json().replace(FINGERPRINT, FINGERPRINT.upper()), "cluster: fingerprint: expected a SHA-256 as 64"),
        (CLUSTER.to_json().replace(FINGERPRINT, FINGERPRINT[1:]), "cluster: fingerprint: expected a SHA-256 as 64"),
        ('{"format": "hap-cluster-2", "new": 1}', "cluster: format: expected \"hap-cluster-1\", got 'hap-cluster-2'"),
    ],
)
def test_text_that_is_no_cluster_file(text, message):
    with pytest.raises(ClusterError, match=message):
        hap.Cluster.from_json(text)


def test_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ClusterError, match=r"cluster file .*nowhere\.json: No such file"):
        hap.Cluster.load(tmp_path / "nowhere.json")


def test_a_reserve_that_is_too_large_is_named_by_its_place():
    content = json.loads(CLUSTER.to_json())
    content["root"]["members"][0]["device"]["reserve"] = 1e12
    place = r"c\.json: root.members\[0\].device.reserve: expected less than its memory, 1.6e\+10 bytes, got 1e\+12"
    with pytest.raises(ClusterError, match=place):
        hap.Cluster.from_json(json.dumps(content), source="c.json")


def test_a_name_that_stands_twice_is_refused():
    text = CLUSTER.to_json().replace('"latency": 5e-05', '"latency": 5e-05, "latency": 1.0', 1)
    with pytest.raises(ClusterError, match=r'c\.json: "latency" stands twice in one object'):
        hap.Cluster.from_json(text, source="c.json")

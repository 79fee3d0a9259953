"""The JSON schema of cluster files: it takes what is written, and of what is wrong it refuses what reading refuses."""

import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given

import hap
from hap.cluster import CollectiveCost
from hap.errors import ClusterError
from tests.cluster.test_file import DELETE, changed, clusters, fields, text_of

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "cluster.json").read_text())
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)

MEASURED = hap.Device(
    "board",
    flops={"float32": 3e12, "bfloat16": 1.2e13},
    memory_bandwidth=2e11,
    memory=8e9,
    reserve=0.25,
    measured={"matmul/float32": [(1e6, 1e-5), (1e9, 1e-3)], "memory": [(1e3, 1e-6), (1e8, 1e-3)]},
)
CLUSTER = hap.Cluster(
    [hap.Cluster([MEASURED, hap.Device("P100", reserve=0.5)]), hap.Device("V100", reserve=0.5)],
    link="25GbE",
    overlap=0.5,
    interference=0.25,
    contention=1e-3,
    collectives={
        "all_reduce/builtin": CollectiveCost(latency=1e-4, bandwidth=1e9, error=0.05),
        "all_gather/padded": CollectiveCost(latency=1e-4, bandwidth=1e9),
    },
    fingerprint="0123456789abcdef" * 4,
)
CONTENT = json.loads(CLUSTER.to_json())
PATHS = list(fields(CONTENT))
# What no schema can say: one figure is less than another.
BEYOND = ("expected less than its memory", "expected points with rising")


def refusal(content):
    """What reading says against it, as far as a schema can; ``None`` where it is a cluster."""
    try:
        hap.Cluster.from_json(json.dumps(content))
    except ClusterError as error:
        return None if any(beyond in str(error) for beyond in BEYOND) else str(error)
    return None


def test_it_is_a_schema():
    type(VALIDATOR).check_schema(SCHEMA)
    assert VALIDATOR.is_valid(CONTENT)
    written = {text_of(path[-1:]) for path, _ in PATHS}
    described = {name for entry in SCHEMA["$defs"].values() for name in entry["properties"]}
    assert described <= written, "the cluster above has every field"


@given(clusters)
def test_what_is_written_is_valid(cluster):
    VALIDATOR.validate(json.loads(cluster.to_json()))


WRONG = [0.0, 3.0, -1.0, "text", "", None, True, [], {}, [1.0, 2.0], {"device": {}}, DELETE]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: "deleted" if value is DELETE else repr(value))
def test_a_changed_field_is_refused_where_reading_refuses_it(value):
    for path, _ in PATHS:
        content = changed(CONTENT, path, value)
        assert VALIDATOR.is_valid(content) is (refusal(content) is None), (text_of(path), refusal(content))


@pytest.mark.parametrize("name", ["colour", "float32", "matmul/float32", "all_to_all/exchange", "default", "fp16"])
def test_a_further_field_is_refused_where_reading_refuses_it(name):
    objects = [(), *(path for path, value in PATHS if isinstance(value, dict))]
    for value in (1.0, [[1.0, 2.0], [3.0, 4.0]], {"latency": 0.0, "bandwidth": 1.0}):
        for path in objects:
            content = changed(CONTENT, (*path, name), value)
            assert VALIDATOR.is_valid(content) is (refusal(content) is None), (text_of(path), refusal(content))


def test_typical_mistakes_are_refused_by_their_field():
    device = ("root", "members", 1, "device")
    for path, value, message in (
        (("format",), "hap-cluster-2", "'hap-cluster-1' was expected"),
        ((*device, "memory"), DELETE, "'memory' is a required property"),
        ((*device, "memory"), -1.6e10, "-16000000000.0 is less than or equal to the minimum of 0"),
        ((*device, "bandwidth"), 9e11, "Additional properties are not allowed ('bandwidth' was unexpected)"),
        ((*device, "flops"), {"float32": 1e12}, "'default' is a required property"),
        (("root", "link"), "25GbE", "'25GbE' is not of type 'object'"),
        (("overlap",), 1.5, "1.5 is greater than the maximum of 1"),
    ):
        (error,) = VALIDATOR.iter_errors(changed(CONTENT, path, value))
        assert error.message == message
        assert tuple(error.absolute_path) in (path, path[:-1])
        assert refusal(changed(CONTENT, path, value)) is not None

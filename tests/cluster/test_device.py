import math

import pytest
import torch

import hap
from hap.cluster import ACCELERATORS
from hap.errors import ClusterError

FIGURES = {"flops": 3e12, "memory_bandwidth": 2e11, "memory": 8e9}


def test_known_device_has_the_figures_of_its_data_sheet():
    device = hap.Device("V100")
    assert device.flops["float32"] == device.flops["default"] == 15.7e12
    assert device.flops["float16"] == 125e12
    assert (device.memory_bandwidth, device.memory, device.launch_overhead) == (900e9, 16e9, 5e-6)


@pytest.mark.parametrize("name", ACCELERATORS)
def test_every_known_device_is_plausible(name):
    device = hap.Device(name)
    assert device.name == name
    assert device.flops["float64"] <= device.flops["float32"] <= hap.Device(name, tf32=True).flops["float32"]
    assert device.flops["float32"] <= device.flops["float16"]
    assert 1e9 < device.memory < device.memory_bandwidth < device.flops["float32"]


@pytest.mark.parametrize("spelling", ["A100-80GB", "a100 80gb", "A100_80gb"])
def test_spelling_of_a_name_is_free(spelling):
    assert hap.Device(spelling) == hap.Device("A100-80GB")


def test_figures_may_override_those_of_a_name():
    device = hap.Device("V100", memory=12e9)
    assert device.memory == 12e9
    assert device.flops == hap.Device("V100").flops
    assert device != hap.Device("V100")


def test_device_by_figures():
    device = hap.Device(**FIGURES, launch_overhead=0)
    assert device.flops == {"default": 3e12}
    assert (device.memory_bandwidth, device.memory, device.launch_overhead) == (2e11, 8e9, 0.0)
    assert hap.Device("my board", **FIGURES).name == "my board"


def test_flops_by_element_type():
    by_name = hap.Device(**FIGURES | {"flops": {"float32": 3e12, "bfloat16": 1.2e13}})
    by_type = hap.Device(**FIGURES | {"flops": {torch.float32: 3e12, torch.bfloat16: 1.2e13}})
    assert by_name == by_type
    assert by_name.flops == {"bfloat16": 1.2e13, "default": 3e12, "float32": 3e12}
    assert hap.Device(**FIGURES | {"flops": {"float64": 2e12, "bfloat16": 1e12}}).flops["default"] == 1e12


@pytest.mark.parametrize("device", [hap.Device("T4"), hap.Device(**FIGURES), hap.Device("T4", memory=1e9)])
def test_repr_builds_an_equal_device(device):
    assert eval(repr(device), {"Device": hap.Device}) == device


@pytest.mark.parametrize(
    ("name", "expected"),
    [("V10", "V100 or V100-32GB"), ("A100", "A100-40GB or A100-80GB"), ("RTX4900", "RTX 4090"), ("zzz", "P100, V100")],
)
def test_unknown_name_offers_the_nearest(name, expected):
    with pytest.raises(ClusterError, match=f'"{name}" is not a known accelerator: .*{expected}'):
        hap.Device(name)


def test_unknown_name_with_some_figures_names_the_missing_ones():
    with pytest.raises(ClusterError, match=r"\(missing: memory_bandwidth, memory\)"):
        hap.Device("my board", flops=1e12)
    with pytest.raises(ClusterError, match="memory missing"):
        hap.Device(flops=1e12, memory_bandwidth=1e11)


@pytest.mark.parametrize("figure", [0, -1.0, math.nan, math.inf, True, "8e9", None])
@pytest.mark.parametrize("field", ["flops", "memory_bandwidth", "memory"])
def test_figures_must_be_positive_and_finite(field, figure):
    with pytest.raises(ClusterError, match=field):
        hap.Device("board", **FIGURES | {field: figure})


@pytest.mark.parametrize("figure", [-1e-9, math.nan, math.inf])
def test_launch_overhead_must_not_be_negative(figure):
    with pytest.raises(ClusterError, match=r"launch_overhead: expected a finite number of at least 0"):
        hap.Device("V100", launch_overhead=figure)


def test_element_types_have_pytorch_names():
    with pytest.raises(ClusterError, match='"fp32" is not an element type'):
        hap.Device(**FIGURES | {"flops": {"fp32": 1e12}})
    with pytest.raises(ClusterError, match="at least one element type"):
        hap.Device(**FIGURES | {"flops": {}})

import math

import pytest
import torch

import hap
from hap.cluster import ACCELERATORS
from hap.cluster.accelerators import recognised_name
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
    assert device.flops["float32"] <= device.flops["float16"] or device.lacks("float16")
    assert device.flops["float32"] <= device.flops["bfloat16"]
    assert device.usable_memory == device.memory - 1e9
    assert 1e9 < device.memory < device.memory_bandwidth < device.flops["float32"]


@pytest.mark.parametrize("spelling", ["A100-80GB", "a100 80gb", "A100_80gb", "NVIDIA A100 80GB"])
def test_spelling_of_a_name_is_free(spelling):
    assert hap.Device(spelling) == hap.Device("A100-80GB")


def test_figures_may_override_those_of_a_name():
    device = hap.Device("V100", memory=12e9)
    assert device.memory == 12e9
    assert device.flops == hap.Device("V100").flops
    assert device != hap.Device("V100")


def test_reserve_is_kept_of_a_data_sheet_and_not_of_a_figure():
    assert hap.Device("V100").usable_memory == 15e9
    assert hap.Device("V100", reserve=0).usable_memory == 16e9
    assert hap.Device("V100", memory=12e9).usable_memory == 12e9
    assert hap.Device("V100", memory=12e9, reserve=2e9).usable_memory == 10e9
    with pytest.raises(ClusterError, match="reserve: expected less than its memory, 1e\\+09 bytes, got 1e\\+09"):
        hap.Device("V100", memory=1e9, reserve=1e9)


def test_architectures_have_their_element_types():
    rates = hap.Device("GTX 1080 Ti").flops
    assert rates["float16"] == pytest.approx(rates["float32"] / 64)
    assert rates["bfloat16"] == rates["float32"]
    lacking = {
        dtype: {name for name in ACCELERATORS if hap.Device(name).lacks(dtype)} for dtype in ("float16", "bfloat16")
    }
    assert lacking["float16"] == {"GTX 1060", "GTX 1080", "GTX 1080 Ti", "Titan Xp"}
    assert lacking["bfloat16"] == lacking["float16"] | {"P100", "V100", "V100-32GB", "T4", "Titan V", "RTX 2080 Ti"}
    assert not hap.Device("my board", **FIGURES).lacks("bfloat16")


@pytest.mark.parametrize(
    ("driver", "memory", "expected"),
    [
        ("NVIDIA GeForce RTX 3090", 25.4e9, "RTX 3090"),
        ("Tesla V100-SXM2-16GB", 16.9e9, "V100"),
        ("Tesla V100-SXM2-32GB", 34.1e9, "V100-32GB"),
        ("NVIDIA A100-SXM4-80GB", 85e9, "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", 42e9, "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", 85e9, "H100"),
        ("NVIDIA H100 PCIe", 85e9, "H100-PCIe"),
        ("NVIDIA GeForce RTX 4060 Ti", 17e9, "RTX 4060 Ti-16GB"),
        ("NVIDIA RTX 6000 Ada Generation", 51e9, "RTX 6000 Ada"),
        ("AMD Instinct MI250X / MI250", 68e9, "MI250"),
        ("AMD Instinct MI300X VF", 206e9, "MI300X"),
        ("GeForce GTX 1060 3GB", 3.2e9, None),
        ("Some board", 8e9, None),
    ],
)
def test_names_of_drivers_are_recognised(driver, memory, expected):
    assert recognised_name(driver, memory) == expected


def test_measured_times_are_points_that_rise():
    points = {"matmul/float32": [(1e6, 1e-4), (1e9, 1e-2)], "memory": [(1e4, 1e-5), (1e6, 1e-3)]}
    device = hap.Device(**FIGURES, measured=points)
    assert device.measured == {name: tuple(line) for name, line in points.items()}
    assert hap.Cluster.from_json(hap.Cluster([device]).to_json()).devices == (device,)
    assert eval(repr(device), {"Device": hap.Device}) == device


@pytest.mark.parametrize(
    ("name", "points", "message"),
    [
        ("matmul", [(1, 1), (2, 2)], "unknown; expected memory, or a family and an element type"),
        ("sorting/float32", [(1, 1), (2, 2)], "unknown; expected memory"),
        ("matmul/float33", [(1, 1), (2, 2)], "unknown; expected memory"),
        ("memory", [(1, 1)], "expected at least two points"),
        ("memory", 3, "expected at least two points"),
        ("memory", [(1, 1), (2,)], r"expected points \(amount, seconds\), got \(2,\)"),
        ("memory", [(1, 1), (2, -1)], "expected a finite number above 0, got -1"),
        ("memory", [(1, 1), (1, 2)], "expected points with rising amounts and rising seconds"),
        ("memory", [(1, 2), (2, 2)], "expected points with rising amounts and rising seconds"),
    ],
)
def test_wrong_measured_times_are_named(name, points, message):
    with pytest.raises(ClusterError, match=f'Device "device": measured\\["{name}"\\]: {message}'):
        hap.Device(**FIGURES, measured={name: points})


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


@pytest.mark.parametrize(
    "device", [hap.Device("T4"), hap.Device(**FIGURES), hap.Device("T4", memory=1e9), hap.Device("T4", reserve=0)]
)
def test_repr_builds_an_equal_device(device):
    assert eval(repr(device), {"Device": hap.Device}) == device


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("V10", "V100 or V100-32GB"),
        ("A100", "A100-40GB or A100-80GB"),
        ("RTX4900", "RTX 4090"),
        ("zzz", "hap devices lists"),
    ],
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

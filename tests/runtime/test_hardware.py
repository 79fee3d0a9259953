"""What is really there, against what was planned for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hap
from hap.errors import RuntimeMismatchError
from hap.runtime.agree import Control
from hap.runtime.hardware import Hardware, check_hardware, hardware, mismatches

BUILT = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
V100 = Hardware("Tesla V100-SXM2-16GB", 16_900_000_000, 16_500_000_000, (7, 0), ("sm_70", "sm_80"), "2.13.0+cu126")
A100 = Hardware("NVIDIA A100-SXM4-80GB", 85_000_000_000, 84_000_000_000, (8, 0), BUILT, "2.13.0+cu130")


def like(real, **changes):
    fields = {name: getattr(real, name) for name in real.__slots__} | changes
    return Hardware(**fields)


def devices(*names):
    return hap.Cluster(list(names)).devices


def test_what_was_planned_for_passes():
    assert mismatches(devices("V100", "A100-80GB"), [V100, A100]) == []


def test_cpus_and_unknown_devices_may_stand_for_anything():
    board = hap.Device("board", flops=1e12, memory_bandwidth=1e11, memory=1e9)
    assert mismatches((*devices("V100"), board), [None, A100]) == []
    assert hardware(torch.device("cpu")) is None
    check_hardware(Control(None), hap.Cluster(["V100"]), torch.device("cpu"))


def test_another_order_is_named_with_the_right_list():
    problems = mismatches(devices("A100-80GB", "V100"), [V100, A100])
    assert problems == [
        "rank 0 runs on Tesla V100-SXM2-16GB, planned for as A100-80GB",
        "rank 1 runs on NVIDIA A100-SXM4-80GB, planned for as V100",
        'devices are listed in rank order: devices=["V100", "A100-80GB"] is what is there',
    ]


def test_a_card_that_is_not_known_needs_its_figures():
    problems = mismatches(devices("V100", "V100"), [V100, like(V100, name="Some board")])
    assert 'devices=["V100", hap.Device("Some board", flops=..., memory_bandwidth=..., memory=...)]' in problems[-1]


def test_memory_that_others_hold_is_named():
    (problem,) = mismatches(devices("V100"), [like(V100, free=8_000_000_000)])
    assert problem == (
        "rank 0 runs on Tesla V100-SXM2-16GB, of which 7.45 GiB are free, and the plan may use 13.97 GiB: "
        'end what else runs there, or give Device("V100", memory=7.92e+09, reserve=8e+08)'
    )


@given(st.integers(10**6, 15 * 10**9))
def test_the_memory_that_is_advised_passes(free):
    (problem,) = mismatches(devices("V100"), [like(V100, free=free)])
    advised = eval(problem[problem.index("Device(") :], {"Device": hap.Device})
    assert 0.85 * free < advised.usable_memory < advised.memory <= free
    assert mismatches([advised], [like(V100, free=free)]) == []


@pytest.mark.parametrize(
    ("name", "capability", "kernels", "mend"),
    [
        ("NVIDIA GeForce GTX 1080", (6, 1), BUILT, "torch for CUDA 12.6: pip install torch --index-url"),
        ("NVIDIA B200", (10, 0), ("sm_70", "sm_90"), "torch for CUDA 12.8 or later"),
        ("NVIDIA H100 80GB HBM3", (9, 0), ("sm_80", "sm_86"), "a build of torch for sm_90, or leave the card out"),
    ],
)
def test_a_card_without_kernels_is_named_with_what_to_install(name, capability, kernels, mend):
    card = Hardware(name, 85_000_000_000, 84_000_000_000, capability, kernels, "2.13.0+cu130")
    board = hap.Device("board", flops=1e12, memory_bandwidth=1e11, memory=1e9)
    (problem,) = mismatches([board], [card])
    assert problem.startswith(f"rank 0 runs on {name}, and torch 2.13.0+cu130 has no kernels for it (sm_")
    assert f": install {mend}" in problem


@pytest.mark.parametrize(
    ("capability", "kernels"),
    [((8, 6), ("sm_80",)), ((9, 0), ("sm_70", "compute_80")), ((6, 1), ("sm_60",)), (None, ("gfx90a",))],
)
def test_binaries_run_on_later_minor_versions_and_intermediate_code_on_any(capability, kernels):
    board = hap.Device("board", flops=1e12, memory_bandwidth=1e11, memory=1e9)
    assert mismatches([board], [like(A100, capability=capability, kernels=kernels)]) == []


def test_a_mismatch_is_an_error(monkeypatch):
    monkeypatch.setattr("hap.runtime.hardware.hardware", lambda device: V100)
    with pytest.raises(
        RuntimeMismatchError, match=r"rank 0 runs on Tesla V100-SXM2-16GB, planned for as P100; devices"
    ):
        hap.parallelize(torch.nn.Linear(2, 2), devices=["P100"])

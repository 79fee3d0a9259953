"""Warnings of element types that a device lacks."""

import logging

import pytest
import torch
from torch import nn

import hap


class Model(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).to(dtype)

    def forward(self, x):
        return self.layers(x).float().square().mean()


def warnings_of(caplog, dtype, *devices, all_work=True):
    active = range(len(devices)) if all_work else None
    with caplog.at_level(logging.WARNING, logger="hap"):
        inputs = (torch.randn(4096, 512, dtype=dtype),)
        plan = hap.plan(Model(dtype), devices=devices, example_inputs=inputs, active=active)
    return plan, [record.message for record in caplog.records]


@pytest.mark.parametrize(
    ("dtype", "device", "other"),
    [(torch.bfloat16, "V100", "float16"), (torch.float16, "GTX 1080", "float32"), (torch.bfloat16, "P100", "float16")],
)
def test_a_missing_type_is_warned_of_with_its_cost(caplog, dtype, device, other):
    plan, (message,) = warnings_of(caplog, dtype, "A100-80GB", device)
    name = str(dtype).removeprefix("torch.")
    assert message.startswith(f"{device}: no fast instructions for {name}. Of the predicted ")
    assert message.endswith(f"would be saved in {other}")
    assert hap.units.seconds_text(plan.predicted_time) in message


def test_the_cost_is_that_of_computing_in_the_other_type(caplog):
    # One device: no plan avoids it. Of 16-bit products, a GTX 1080 computes in float16 at a 64th of its rate.
    plan, (message,) = warnings_of(caplog, torch.float16, "GTX 1080")
    flops = 6 * 2 * 4096 * 512 * 512 - 2 * 4096 * 512 * 512  # the input has no gradient
    slow, fast = flops / (8.9e12 / 64), flops / 8.9e12
    assert f"that costs {hap.units.seconds_text(slow - fast)[:2]}" in message
    assert plan.predicted_time > slow


def test_a_device_that_is_left_out_is_told_of_too(caplog):
    plan, (message,) = warnings_of(caplog, torch.float16, "V100", "GTX 1080", all_work=False)
    assert plan.left_out == (1,)
    seconds = hap.units.seconds_text(plan.predicted_time)
    assert message == f"GTX 1080: no fast instructions for float16, and left out of the predicted {seconds} a step"


def test_a_measured_device_lacks_what_it_was_measured_to_be_slow_in(caplog):
    """As a profile describes it: rates of its own."""
    measured = hap.Device("GTX 1080", flops={"float32": 8e12, "float16": 1e11, "bfloat16": 5e11})
    plan, (message,) = warnings_of(caplog, torch.bfloat16, measured)
    assert message.startswith("GTX 1080: no fast instructions for bfloat16. Of the predicted ")
    assert message.endswith("would be saved in float32")
    assert hap.units.seconds_text(plan.predicted_time) in message


def test_the_step_that_is_told_of_is_that_of_the_plan(caplog):
    """Also where a device is left out, and the message to it counts."""
    slow = hap.Device("P100", flops={"float32": 1e9, "bfloat16": 1e8}, memory_bandwidth=1e9)
    plan, messages = warnings_of(caplog, torch.bfloat16, "V100", "V100", slow, all_work=False)
    assert plan.left_out == (2,)
    assert len(messages) == 2
    assert all(hap.units.seconds_text(plan.predicted_time) in message for message in messages)


@pytest.mark.parametrize("flops", [15e12, {"bfloat16": 50e12}, {"default": 1e12, "float16": 2e12}])
def test_a_device_whose_rates_are_given_is_as_fast_as_they_say(caplog, flops):
    _, messages = warnings_of(caplog, torch.bfloat16, hap.Device("V100", flops=flops), "A100-80GB")
    assert not messages


@pytest.mark.parametrize(
    ("dtype", "device"), [(torch.float32, "GTX 1080"), (torch.float16, "V100"), (torch.bfloat16, "RTX 3090")]
)
def test_nothing_is_said_where_the_type_is_there(caplog, dtype, device):
    _, messages = warnings_of(caplog, dtype, "A100-80GB", device)
    assert not messages

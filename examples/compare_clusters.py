"""Compares clusters before one is bought or rented: how fast each would train a model, and for how much.

Nothing runs but the planner, so that this needs neither the devices nor the memory of the model. It goes by data
sheets, and leaves the optimiser's time out: good to compare clusters by, and too short for each. Name each by its
devices and its price an hour::

    python examples/compare_clusters.py A100-40GB:2=5.90 V100:4=6.40 "RTX 3090:2,P100:2=2.80" --link 25GbE
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch

import hap
from gpt import GPT


class Offer(NamedTuple):
    """Devices that can be had, and their price an hour."""

    name: str
    cluster: hap.Cluster
    price: float


def offer(text: str, link: str | None) -> Offer:
    """Reads ``V100:2,P100:4=6.40``."""
    name, equals, price = text.rpartition("=")
    if not equals or not price.replace(".", "", 1).isdigit():
        raise SystemExit(f"{text}: expected devices and their price an hour, such as V100:2,P100:4=6.40")
    devices: list[str] = []
    for entry in name.split(","):
        device, _, count = entry.partition(":")
        devices += [device] * int(count or 1)
    return Offer(name, hap.Cluster(devices, link=link), float(price))


def main() -> None:
    parser = argparse.ArgumentParser(description="Plans a GPT on several clusters, and compares them.")
    parser.add_argument("offers", nargs="+", metavar="DEVICES=PRICE", help="such as V100:2,P100:4=6.40")
    parser.add_argument("--link", help="what joins the devices, such as 25GbE; PCIe if left out")
    parser.add_argument("--batch", type=int, default=32, help="sequences in a global batch")
    parser.add_argument("--context", type=int, default=1024, help="tokens in a sequence")
    parser.add_argument("--width", type=int, default=768, help="a multiple of 12")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    options = parser.parse_args()

    with torch.device("meta"):
        model = GPT(vocabulary=50304, context=options.context, width=options.width, layers=options.layers, heads=12)
    model.to(getattr(torch, options.dtype))
    tokens = torch.zeros(options.batch, options.context, dtype=torch.int64)
    print(f"{sum(each.numel() for each in model.parameters()):,} parameters, {tokens.numel():,} tokens a step\n")
    print(f"{'cluster':30}{'s/step':>10}{'tokens/s':>12}{'memory':>9}{'price/h':>10}{'per 1e9 tokens':>17}")
    for name, cluster, price in (offer(text, options.link) for text in options.offers):
        try:
            plan = hap.plan(model, devices=cluster, example_inputs=(tokens, tokens))
        except hap.errors.PlanError as error:
            print(f"{name:30}  {str(error).splitlines()[0]}")
            continue
        # Of the device that is fullest.
        memory = max(
            used / device.usable_memory for used, device in zip(plan.predicted_memory, cluster.devices, strict=True)
        )
        speed = tokens.numel() / plan.predicted_time
        cost = price / 3600 / speed * 1e9
        line = f"{name:30}{plan.predicted_time:10.3f}{speed:12,.0f}{memory:9.0%}{price:10.2f}{cost:17.2f}"
        # Paid for all the same.
        idle = f"  idle: ranks {', '.join(map(str, plan.left_out))}" if plan.left_out else ""
        print(line + idle, flush=True)


if __name__ == "__main__":
    main()

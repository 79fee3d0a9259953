"""The namespace ``torch.ops.hap``: operators that do not depend on the device that traces.

PyTorch's own attention, dropout and random operators decompose by device, or draw from a generator that the graph
cannot see. These stand for them in a graph; each rank then runs the kernel that is best for its device.
"""

# torch.library is untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

library = torch.library.Library("hap", "DEF")


def define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Defines ``torch.ops.hap.<name>`` from its schema, its kernel for all devices, and its shape function."""
    name = schema.split("(", 1)[0]
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"hap::{name}", fake, lib=library)

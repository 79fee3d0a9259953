"""Hugging Face transformers: no caches in training, and its machinery for captured outputs made plain."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from torch import nn


class _Collector:
    """Stands for the context variable of ``output_capturing``, which Dynamo cannot read."""

    def __init__(self) -> None:
        self.value: Any = None

    def get(self) -> Any:
        return self.value

    def set(self, value: Any) -> None:
        self.value = value

    def reset(self, token: Any) -> None:
        self.value = None


def is_hidden_side_effect(source: str) -> bool:
    """The plain collector is set and reset in each forward."""
    return "output_capturing" in source


@contextlib.contextmanager
def compatible(module: nn.Module) -> Iterator[None]:
    """Does nothing where transformers is not imported. Hooks that it installs go with ``hap.trace.fakes.preserved``."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    modeling = sys.modules.get("transformers.modeling_utils")
    if capturing is None or modeling is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(capturing, "_active_collector", _Collector()))
        for part in module.modules():
            if isinstance(part, modeling.PreTrainedModel):
                # The model does this itself at its first call.
                capturing.maybe_install_capturing_hooks(part)
            if getattr(getattr(part, "config", None), "use_cache", None) is True:
                stack.enter_context(patch.object(part.config, "use_cache", False))
            if part.__dict__.get("_requires_grad") is True:
                # Some encoders then set requires_grad of their hidden states.
                stack.enter_context(patch.dict(part.__dict__, {"_requires_grad": False}))
        yield

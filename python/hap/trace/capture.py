"""The two steps through PyTorch: Dynamo captures the module's forward, the joint export adds its backward."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.functional_export import dynamo_graph_capture_for_export
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

from hap.trace.decompositions import TABLE
from hap.trace.replacements import replace_targets, replaced
from hap.trace.root import Root

_LOGGER_METHODS = ("debug", "info", "warning", "error", "exception", "critical", "log")


def _ignored_functions() -> set[Any]:
    """Functions that only write messages: capture leaves them out instead of failing on them."""
    ignored: set[Any] = {getattr(logging.Logger, name) for name in _LOGGER_METHODS} | {warnings.warn, print}
    transformers_logging = sys.modules.get("transformers.utils.logging")
    if transformers_logging is not None:
        ignored |= {transformers_logging.warning_once, transformers_logging.warning_advice}
    return ignored


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Dynamo's settings for one static graph. Its caches stay: they hold the user's compiled functions."""
    cached = torch.is_autocast_cache_enabled()
    config = torch._dynamo.config.patch(
        ignore_logging_functions=_ignored_functions(),
        allow_rnn=True,
        assume_static_by_default=True,
        automatic_dynamic_shapes=False,
        capture_scalar_outputs=False,
        capture_dynamic_output_shape_ops=False,
    )
    try:
        # Fakes must not get into the user's cache of weights that autocast has converted.
        torch.set_autocast_cache_enabled(False)
        with config, torch.enable_grad():
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)


def capture(root: Root, tensors: Sequence[Tensor]) -> torch.fx.GraphModule:
    """The joint graph of ``root`` on ATen, with descriptors on its inputs and outputs. ``tensors`` are fakes."""
    with _settings():
        forward = dynamo_graph_capture_for_export(root)(*tensors)
        replace_targets(forward)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch._guards.tracing(forward.meta["tracing_context"]))
            stack.enter_context(forward.meta["fake_mode"])
            stack.enter_context(replaced())
            joint = aot_export_joint_with_descriptors(stack, forward, tuple(tensors), decompositions=TABLE)
    return joint.graph_module

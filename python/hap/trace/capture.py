"""The two steps through PyTorch: Dynamo captures the module's forward, the joint export adds its backward."""

from __future__ import annotations

import ast
import contextlib
import copy
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.functional_export import dynamo_graph_capture_for_export
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

from hap.errors import TraceError
from hap.trace.attributes import Attributes, tensors_read, watched
from hap.trace.compat import is_hidden_side_effect
from hap.trace.decompositions import TABLE
from hap.trace.inspections import Inspector, inspecting
from hap.trace.refusals import check_captured
from hap.trace.replacements import replace_targets, replaced, replaced_for_capture
from hap.trace.root import Root
from hap.trace.sources import dotted, plain_source
from hap.trace.state import Captured, check_settled
from hap.trace.writes import Writes

logger = logging.getLogger("hap")
_SIDE_EFFECTS = re.compile(r"certain side effects happened in the model\.forward.*: (?P<sources>\[.*\])", re.DOTALL)
_LOGGER_METHODS = ("debug", "info", "warning", "error", "exception", "critical", "log")


def _ignored_functions() -> set[Any]:
    """Functions that only write messages: capture leaves them out instead of failing on them."""
    ignored: set[Any] = {getattr(logging.Logger, name) for name in _LOGGER_METHODS} | {warnings.warn, print}
    transformers_logging = sys.modules.get("transformers.utils.logging")
    if transformers_logging is not None:
        ignored |= {transformers_logging.warning_once, transformers_logging.warning_advice}
    return ignored


@contextlib.contextmanager
def _settings(attributes: Attributes) -> Iterator[None]:
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
        # PyTorch logs a traceback of its own where shapes do not fit; hap's error says it in a line.
        with (
            config,
            torch.enable_grad(),
            _silent("torch._subclasses.fake_tensor"),
            _warnings_about_the_module(attributes),
        ):
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    other = logging.getLogger(name)
    before = other.disabled
    other.disabled = True
    try:
        yield
    finally:
        other.disabled = before


@contextlib.contextmanager
def _warnings_about_the_module(attributes: Attributes) -> Iterator[None]:
    """Of Dynamo's warnings only that a side effect is lost concerns the user; the warnings of others pass through."""
    with warnings.catch_warnings(record=True) as caught:
        # Whatever the user ignores: it is decided below, where warnings are given again.
        warnings.simplefilter("always")
        yield
    dynamo = os.path.dirname(torch._dynamo.__file__)
    for warning in caught:
        found = _SIDE_EFFECTS.search(str(warning.message))
        if found:
            for source in ast.literal_eval(found["sources"]):
                # The root module writes back buffers that were made anew.
                if source.endswith("._buffers") or is_hidden_side_effect(source):
                    continue
                paths = attributes.under(source) or [dotted(source) or "parts of the module"]
                changed = [path for path in paths if path not in attributes.settled]
                if not changed:
                    continue
                logger.warning(
                    "the forward changes Python state (%s); such changes are no part of a training step under hap: "
                    "keep what a later call reads in a buffer, or change it outside of the forward",
                    ", ".join(changed),
                )
        elif not warning.filename.startswith(dynamo):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def capture(root: Root, tensors: Sequence[Tensor], inspector: Inspector) -> tuple[torch.fx.GraphModule, dict[str, str]]:
    """The joint graph of ``root`` on ATen, with descriptors on its inputs and outputs. ``tensors`` are fakes.

    With it the plain tensors that it reads, as :func:`hap.trace.sources.plain_source` says it.
    """
    attributes = Attributes(inspector.writes)
    with _settings(attributes):
        first = _captured(root, tensors, inspector, attributes)
        forward = first.forward
        attributes.check()
        check_captured(forward)
        with warnings.catch_warnings(record=True):  # the first capture has given them
            attributes.settled = check_settled(first, lambda: _captured_again(root, tensors, inspector))
        plain = {path: at for node in forward.graph.nodes for path, at in plain_source(node).items()}
        replace_targets(forward)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch._guards.tracing(forward.meta["tracing_context"]))
            stack.enter_context(forward.meta["fake_mode"])
            stack.enter_context(replaced())
            joint = aot_export_joint_with_descriptors(stack, forward, tuple(tensors), decompositions=TABLE)
    return joint.graph_module, {**plain, **inspector.plain}


def _captured_again(root: Root, tensors: Sequence[Tensor], inspector: Inspector) -> Captured:
    """The forward once more, of which the first capture keeps its own notes."""
    other = copy.copy(inspector)
    other.writes = Writes()
    return _captured(root, tensors, other, Attributes(other.writes))


def _captured(root: Root, tensors: Sequence[Tensor], inspector: Inspector, attributes: Attributes) -> Captured:
    """The forward, with what it reads, assigns and inspects noted."""
    try:
        with replaced_for_capture(), watched(attributes), inspecting(inspector):
            forward = dynamo_graph_capture_for_export(root)(*tensors)
    finally:
        if inspector.refusal:
            # Before what PyTorch says about it.
            raise TraceError(inspector.refusal) from None
    return Captured(forward, attributes.changes(root), tensors_read(forward, root), attributes.is_constant)

"""Where an operator comes from: the user's source line and the path of the user's module."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HAP = os.path.dirname(os.path.dirname(__file__)) + os.sep
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+)(?:, in .*)?\n(?:    (?P<code>.*)\n?)?', re.MULTILINE)
_INDEX = re.compile(r"\[['\"]?([^\]'\"]+)['\"]?\]")
_ATTRIBUTE = re.compile(r"getattr\(([^()]+), '([^']+)'\)")


def _chosen(frames: Iterable[tuple[str, int, str]]) -> str:
    """The innermost frame of the user's own, else (all of it is PyTorch's, as in ``nn.Sequential``) the innermost."""
    frames = [frame for frame in frames if not frame[0].startswith(_HAP)]
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    for file, line, code in reversed(own or frames):
        # Without the colon that an ``if`` ends in: messages go on after one.
        return f"{os.path.basename(file)}:{line}: {code.strip().removesuffix(':')}"
    return ""


def source_of_stack(stack: traceback.StackSummary | None) -> str:
    """``model.py:12: x = self.fc(x)`` from frames; empty if there are none."""
    return _chosen((frame.filename, frame.lineno or 0, frame.line or "") for frame in stack or ())


def source_of(node: Node) -> str:
    """``model.py:12: x = self.fc(x)``; empty where nothing is known."""
    text = node.meta.get("stack_trace") or ""
    return _chosen((m["file"], int(m["line"]), m["code"] or "") for m in _FRAME.finditer(text))


def module_of(node: Node) -> str:
    """Path of the user's module, ``transformer.h.0.attn``; empty at the root or where nothing is known."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    return dotted(list(stack.values())[-1][0])


def plain_source(node: Node) -> dict[str, str]:
    """Of an input of a capture that is a plain tensor of the user's: its path, and Dynamo's expression for it."""
    source = getattr(node, "_dynamo_source", None)
    if source is None or node.type is None or issubclass(node.type, FakeTensor):
        return {}  # parameters, buffers and inputs are fakes before capture
    return {dotted(source.name): source.name}


def dotted(path: str) -> str:
    """The user's path of what Dynamo calls ``L['self']._modules['module']._modules['fc']``: ``fc``.

    Some of its paths say ``getattr(L['self'].module.layers, '0')`` instead.
    """
    while (plain := _ATTRIBUTE.sub(r"\1.\2", path)) != path:
        path = plain
    parts = [
        part
        for part in _INDEX.sub(r".\1", path).split(".")
        if part and part not in ("L", "self", "_modules", "__dict__")
    ]
    if parts[:1] == ["G"]:  # a global, of a module that Dynamo imports under a name of its own
        parts = [parts[1].removeprefix("__import_").replace("_dot_", "."), *parts[2:]]
    return ".".join(parts[1:] if parts[:1] == ["module"] else parts)

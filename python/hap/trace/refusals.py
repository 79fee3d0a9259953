"""What cannot be captured: checks before, and PyTorch's errors as messages with the user's source line."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._dynamo import exc
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from hap.errors import TraceError
from hap.trace.overlaps import check_apart
from hap.trace.sources import plain_source, source_of, source_of_stack
from hap.trace.state import changed_state

_FAKE_CALL = re.compile(r"got (?:\w+)\((?P<quote>['\"])(?P<what>.*)(?P=quote)\)", re.DOTALL)
_RAISED = re.compile(r"Developer debug context: raised exception (?P<what>.*)")
_ROOT_ERROR = re.compile(r"^NoGradientError\((?P<quote>['\"])(?P<what>.*)(?P=quote)\)")
_EXPLANATION = re.compile(r"^  Explanation: (?P<what>.*)$", re.MULTILINE)
# What a tensor's value decides, as PyTorch writes it in errors of several classes: a truth value is a number beside 1.
_COMPARED_NUMBER = re.compile(r"data-dependent expression (?:Eq|Ne)\(u\d+, 1\)")
_UNKNOWN_SIZE = re.compile(r"data-dependent expression|unbacked symbols")

_ADVICE = (
    "rewrite this line with PyTorch operators, or compute it outside of the module and pass the result as an input"
)
_SHAPES_ADVICE = (
    "keep every row and weigh it by a mask (torch.where); to route tokens to experts, send them by a one-hot dispatch "
    "tensor of fixed capacity in an einsum, as GShard and Switch do"
)
_INSTEAD = {
    r"pack_padded_sequence|pad_packed_sequence|pack_sequence": (
        "packed sequences mix the samples of a batch, by which hap shares the work: pass the padded tensor to the "
        "recurrent layer, take the last output of each sequence by its length with torch.gather, and leave the padding "
        "out of the loss (ignore_index)"
    ),
    "_compute_mask_indices": (
        "NumPy draws the steps to mask, which a trace would keep: pass `mask_time_indices` as an input, or set "
        "`apply_spec_augment` to False in the configuration"
    ),
    "layerdrop|skip_the_layer": (
        "a random number decides whether a layer runs: set `layerdrop` to 0 in the configuration"
    ),
    r"aten\.(equal|allclose)\.default": (
        "it compares whole tensors in Python: write `(a == b).all()`, or `torch.isclose(a, b).all()`, which a forward "
        "may inspect where it follows from the inputs"
    ),
    r"\.is_nonzero\(": (
        "it makes a truth value of a tensor: write `bool(tensor)`, which a forward may do where it follows from the "
        "inputs"
    ),
    r"StringFormatVariable|builtin operator `(str|repr|format)` with argument types \['Tensor'": (
        "it writes a tensor as text: compare the tensors themselves, as in `(a == b).all()`, or wrap a whole number in "
        "int() before"
    ),
    r"builtin operator `range` with argument types .*Tensor": "wrap the number in int()",
}
"""What to do about what cannot be captured, by a pattern of the functions and lines that lead there."""
_NUMBER_ADVICE = "wrap the number in int(), which a forward may do where it follows from the inputs"
_WHOLE = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_VALUES_ADVICE = (
    "use torch.where, torch.clamp or a mask instead, or pass what decides as an input that is no tensor (a constant of "
    "the trace)"
)


def described(value: Any) -> str:
    """An input in a message: ``float32[3, 4]`` for tensors, else its type's name."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__


def check_module(module: nn.Module) -> None:
    """Refuses what a trace would lose in silence.

    Raises:
        TraceError: hooks on gradients, buffers that require grad, views of the same memory, sparse gradients, scripted
            parts.
    """
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise TraceError(
                f'parameter "{name}" has a tensor hook, which is not part of the graph: remove it and change the '
                "gradient between backward() and the optimiser's step"
            )
    for name, buffer in module.named_buffers():
        if buffer.requires_grad:
            raise TraceError(
                f'buffer "{name}" requires grad, but hap keeps gradients of parameters and inputs only: make it a '
                "parameter (torch.nn.Parameter) that is registered once, or `.detach()` it"
            )
    check_apart(module)
    for path, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            what = f'module "{path}"' if path else f"the module, a {type(part).__name__},"
            raise TraceError(
                f"{what} has a full backward hook, which cannot be captured: remove it, or write it as a "
                "torch.autograd.Function in the forward"
            )
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse:
            raise TraceError(
                f'module "{path}" asks for sparse gradients: hap trains dense ones; make it with sparse=False'
            )
        if isinstance(part, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            raise TraceError(
                f'module "{path}" is a {type(part).__name__}, which shares work out itself: hand hap the module inside '
                "of it (`.module`)"
            )
        if type(part).__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
            raise TraceError(
                f'module "{path}" is a quantised {type(part).__name__}, which cannot be trained: hand hap the module '
                "before it is quantised"
            )
        if isinstance(part, torch.jit.ScriptModule):
            raise TraceError(
                f'module "{path}" is a TorchScript module, which cannot be captured: use the Python module'
            )


def check_call(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> None:
    """Refuses a call that the forward's signature does not take, before capture says it less clearly."""
    try:
        inspect.signature(module.forward).bind(*args, **dict(kwargs or {}))
    except TypeError as error:
        raise TraceError(f"{type(module).__name__}.forward does not take the example inputs: {error}") from None
    except ValueError:
        # Some callables have no signature; capture will tell.
        return


def check_captured(captured: torch.fx.GraphModule) -> None:
    """Refuses what Dynamo lets pass: numbers and shapes that depend on the values of tensors, state in attributes."""
    for node in captured.graph.nodes:
        if node.op == "placeholder":
            _check_unchanged(node)
        values = node.meta.get("example_value")
        for value in values if isinstance(values, (tuple, list)) else (values,):
            sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
            if any(isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) for size in sizes):
                what, advice = ("number", _VALUES_ADVICE)
                if isinstance(value, torch.Tensor):
                    what, advice = ("shape", _NUMBER_ADVICE if _takes_a_number(node) else _SHAPES_ADVICE)
                where = source_of(node) or node.name
                raise TraceError(f"{where}: a {what} depends on the values of tensors: {advice}")
        _check_dense(node)


def _takes_a_number(node: torch.fx.Node) -> bool:
    """Whether a tensor of one whole number stands among what a call is given, as in ``x.narrow(0, 0, count)``."""
    values = [one.meta.get("example_value") for one in node.all_input_nodes]
    return any(isinstance(one, torch.Tensor) and one.dim() == 0 and one.dtype in _WHOLE for one in values)


def _check_unchanged(node: torch.fx.Node) -> None:
    """Refuses changes in place of a tensor that is no parameter, buffer or input."""
    for path in plain_source(node):
        if node.meta["example_value"]._version:
            raise TraceError(changed_state(path))


_SPARSE: dict[Any, tuple[str, int]] = {
    torch.nn.functional.embedding: ("sparse", 6),
    torch.nn.functional.embedding_bag: ("sparse", 7),
}
"""The argument that asks for sparse gradients, and its place."""


def _check_dense(node: torch.fx.Node) -> None:
    """Refuses calls that ask for sparse gradients."""
    name, place = _SPARSE.get(node.target, ("sparse_grad", sys.maxsize))
    if node.args[place] if len(node.args) > place else node.kwargs.get(name, False):
        raise TraceError(f"{source_of(node)}: asks for sparse gradients: hap trains dense ones; use {name}=False")


def translated(error: Exception, inputs: Mapping[str, Any]) -> TraceError:
    """PyTorch's error as one line: the user's source line, what is wrong, what to do."""
    source = source_of_stack(getattr(error, "real_stack", None))
    where = f"{source}: " if source else ""
    text = str(error)
    frames = " ".join(f"{frame.name} {frame.line}" for frame in getattr(error, "real_stack", None) or ())
    for names, advice in _INSTEAD.items():
        if re.search(names, f"{frames} {text}"):
            return TraceError(f"{where}this cannot be captured: {advice}")
    given = ", ".join(f"{name}: {described(value)}" for name, value in inputs.items()) or "none"
    if isinstance(error, exc.TorchRuntimeError) and not _UNKNOWN_SIZE.search(text):
        found = _FAKE_CALL.search(text)
        what = found["what"] if found else text.splitlines()[0]
        return TraceError(f"{where}{_line(what)} (example inputs: {given})")
    if _COMPARED_NUMBER.search(text):
        return TraceError(f"{where}a number depends on the values of tensors: {_VALUES_ADVICE}")
    if isinstance(error, GuardOnDataDependentSymNode) or _UNKNOWN_SIZE.search(text):
        return TraceError(f"{where}a shape depends on the values of tensors: {_SHAPES_ADVICE}")
    title = text.splitlines()[0].rstrip(".") if text else type(error).__name__
    if isinstance(error, exc.Unsupported):
        raised = _RAISED.search(text)
        if raised and title == "Observed exception":
            own = _ROOT_ERROR.search(raised["what"])
            if own:
                return TraceError(own["what"])
            return TraceError(f"{where}the forward raises {_line(raised['what'])} (example inputs: {given})")
        if title.startswith("Data-dependent"):
            return TraceError(f"{where}the forward branches on the values of tensors: {_VALUES_ADVICE}")
        if "torch.autograd.grad" in title:
            return TraceError(f"{where}torch.autograd.grad inside the forward cannot be captured: {_ADVICE}")
        explanation = _EXPLANATION.search(text)
        detail = f" ({_line(explanation['what'])})" if explanation else ""
        return TraceError(f"{where}this cannot be captured: {_line(title)}{detail}: {_ADVICE}")
    return TraceError(
        f"{where}the module cannot be captured: {type(error).__name__}: {_line(title)} (example inputs: {given})"
    )


def _line(text: str) -> str:
    """One line of at most 300 characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= 300 else flat[:297] + "..."

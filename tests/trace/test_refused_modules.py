"""Modules and inputs that are refused before anything is captured."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BatchEncoding

import hap
from hap.errors import TraceError
from hap.runtime.signature import Call
from tests.trace.refused import Module, linear


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((torch.ones(3, 5),), {}, r"got \[3, 5\] X \[4, 4\].*example inputs: args\.0: float32\[3, 5\]"),
        ((torch.ones(3, 4), 1), {}, r"Module\.forward does not take the example inputs: too many positional arguments"),
        ((), {"y": torch.ones(3, 4)}, r"does not take the example inputs: .*'x'"),
        (torch.ones(3, 4), {}, r"example_inputs: expected a tuple of arguments, got Tensor"),
        ((torch.ones(3, 4).to_sparse(),), {}, r'"args\.0" has layout torch\.sparse_coo'),
    ],
)
def test_inputs_that_do_not_fit(args: Any, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        hap.trace(Module(linear), args, kwargs)


class Adaptive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.AdaptiveLogSoftmaxWithLoss(4, 10, [3, 6], div_value=2.0)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.loss(x, target).loss
        return loss


@pytest.mark.parametrize(
    ("shape", "target_shape"), [((3, 4), (2,)), ((3, 4), (3, 1)), ((4,), (1,)), ((1, 4), ()), ((3, 3, 4), (3,))]
)
def test_targets_that_do_not_fit(shape: tuple[int, ...], target_shape: tuple[int, ...]) -> None:
    x, target = torch.ones(shape), torch.zeros(target_shape, dtype=torch.int64)
    with pytest.raises(RuntimeError):
        Adaptive()(x, target)
    with pytest.raises(TraceError, match=r"the forward raises RuntimeError.*AdaptiveLogSoftmaxWithLoss: expected"):
        hap.trace(Adaptive(), (x, target))


@dataclasses.dataclass
class Batch:
    x: Any


class Bag:
    """Neither a mapping nor a dataclass."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (Bag(torch.ones(3, 4)), r'input "args\.0" is a Bag.*pass its tensors in tuples, lists, dicts or dataclasses'),
        ([{"batch": Batch(Bag(torch.ones(3, 4)))}], r'input "args\.0\.0\.batch\.x" is a Bag'),
        (BatchEncoding({"x": Bag(torch.ones(3, 4))}), r'input "args\.0\.x" is a Bag'),
        (types.SimpleNamespace(x=torch.ones(3, 4)), r'input "args\.0" is a SimpleNamespace'),
        (slice(torch.ones(3)), r'input "args\.0" is a slice'),
        (torch.nn.functional.relu, r'input "args\.0" is a function'),
    ],
)
def test_inputs_that_may_hide_tensors(batch: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        hap.trace(Module(lambda self, batch: self.fc(batch.x).sum()), (batch,))
    with pytest.raises(TraceError, match=message):
        Call((batch,), {}, torch.device("cpu"))


class Colour(enum.Enum):
    RED = "red"


def test_constants_of_every_kind_are_inputs() -> None:
    constants: list[Any] = [None, True, 1, 1.5, 2j, "mean", b"raw", torch.float32, torch.device("cpu"), torch.strided]
    constants += [torch.contiguous_format, range(3), slice(0, 2), Colour.RED, torch.Size([2])]
    x = torch.ones(3, 4)
    call = Call((x, constants), {}, torch.device("cpu"))
    assert list(call.tensors) == ["args.0"]
    assert len(call.key[0]) == 1 + len(constants)


def hooked_parameter() -> nn.Module:
    module = Module(linear)
    module.fc.weight.register_hook(lambda grad: grad * 2)
    return module


def hooked_module() -> nn.Module:
    module = Module(linear)
    module.fc.register_full_backward_hook(lambda module, inputs, outputs: None)
    return module


def meta_attribute() -> nn.Module:
    module = Module(linear)
    module.fc.table = torch.empty(3, device="meta")  # type: ignore[assignment]
    return module


def module_of(part: nn.Module) -> nn.Module:
    module = Module(linear)
    module.fc = part
    return module


def quantised_layer() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})  # type: ignore[no-any-return, no-untyped-call]


def with_buffer(value: torch.Tensor) -> nn.Module:
    module = Module(linear)
    module.fc.register_buffer("table", value)
    return module


def hooked_before_the_backward() -> nn.Module:
    module = Module(linear)
    module.fc.register_full_backward_pre_hook(lambda module, gradients: None)
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (hooked_before_the_backward, r'module "fc" has a full backward hook'),
        (lambda: module_of(nn.DataParallel(nn.Linear(4, 4))), r'module "fc" is a DataParallel.*the module inside'),
        (lambda: module_of(quantised_layer()), r'module "fc\.0" is a quantised Linear.*before it is quantised'),
        (
            lambda: with_buffer(torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)),
            r'"fc\.table" .*quantised',
        ),
        (lambda: with_buffer(torch.eye(4).to_sparse()), r'"fc\.table" has layout torch\.sparse_coo.*to_dense'),
        (lambda: nn.EmbeddingBag(4, 4, sparse=True), r"asks for sparse gradients"),
        (lambda: module_of(torch.jit.script(nn.Linear(4, 4))), r'module "fc" is a TorchScript module'),
        (lambda: "text", r"expected a torch\.nn\.Module, got str"),
        (hooked_parameter, r'parameter "fc\.weight" has a tensor hook'),
        (hooked_module, r'module "fc" has a full backward hook'),
        (lambda: nn.Embedding(4, 4, sparse=True), r"asks for sparse gradients"),
        (lambda: nn.LazyLinear(3), r'"weight" has no shape yet: run the module once'),
        (meta_attribute, r'attribute "fc\.table" is a plain tensor on the meta device'),
    ],
)
def test_modules_that_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        hap.trace(make(), (torch.ones(3, 4),))


class Views(nn.Module):
    """Registers what ``views`` makes of a matrix, under these names, and changes the buffers among it."""

    def __init__(self, views: Callable[[torch.Tensor], dict[str, torch.Tensor]]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        for name, value in views(torch.ones(4, 4)).items():
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for buffer in self.buffers():
            buffer.add_(1)
        return self.fc(x).sum() * sum(one.sum() for one in (*self.buffers(), *self.parameters()))


@pytest.mark.parametrize(
    "views",
    [
        lambda w: {"a": w, "b": w[:2]},
        lambda w: {"a": w, "b": w.T},
        lambda w: {"a": w, "b": w.detach()},
        lambda w: {"a": w[0], "b": w[:, 0]},
        lambda w: {"a": w, "b": w.view(torch.int32).view(torch.int16)},
        lambda w: {"a": nn.Parameter(w), "b": nn.Parameter(w[2])},
        lambda w: {"a": nn.Parameter(w, requires_grad=False), "b": nn.Parameter(w)},
        lambda w: {"a": nn.Parameter(w, requires_grad=False), "b": w[1:]},
        lambda w: dict(zip("ab", w.to("meta").unfold(0, 3, 1), strict=True)),
    ],
)
def test_views_of_the_same_memory(views: Callable[[torch.Tensor], dict[str, torch.Tensor]]) -> None:
    with pytest.raises(TraceError, match=r'^"a" and "b" are views of the same memory, .*under both names'):
        hap.trace(Views(views), (torch.ones(3, 4),))


@pytest.mark.parametrize(
    "views",
    [
        lambda w: {"a": w, "b": w},
        lambda w: {"a": w[:2], "b": w[2:]},
        lambda w: {"a": w[:, :2], "b": w[:, 2:]},
        lambda w: {"a": w[:0], "b": w},
        lambda w: {"a": nn.Parameter(w[0]), "b": nn.Parameter(w[1:])},
        lambda w: {"a": nn.Parameter(w, requires_grad=False), "b": nn.Parameter(w[1:], requires_grad=False)},
        lambda w: {"a": w.to("meta"), "b": w[1:].to("meta")},
    ],
)
def test_parts_of_one_memory_are_traced(views: Callable[[torch.Tensor], dict[str, torch.Tensor]]) -> None:
    hap.trace(Views(views), (torch.ones(3, 4),))

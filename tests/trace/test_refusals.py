"""What cannot be captured is an error with the user's source line and what to do."""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential
from transformers import BatchEncoding

import hap
from hap.errors import TraceError
from hap.runtime.signature import Call
from tests.trace.comparison import assert_equal_to_eager


class Module(nn.Module):
    """Runs ``body(self, x)``."""

    def __init__(self, body: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.table = torch.ones(4)
        self.fc.cache = torch.ones(4)
        self.register_buffer("total", torch.ones(4))
        self.memory: dict[str, torch.Tensor] = {}
        self.kept = [torch.ones(4)]
        self.fc.step = 0
        self.queue: collections.deque[int] = collections.deque(maxlen=4)
        self.numbers: set[int] = set()
        self.called = False
        self.positions: torch.Tensor | None = None
        self.body = body

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


def branches(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.fc(x).sum() > 0:
        x = x * 2
    return self.fc(x).sum()


def branches_on_a_buffer(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).sum() if self.total.all() else self.fc(x).mean()


def branches_on_noise(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).sum() if torch.rand_like(x).sum() > 6 else self.fc(x).mean()


def branches_on_what_was_written(self: Any, x: torch.Tensor) -> torch.Tensor:
    mask = x > 0
    mask[0] = self.fc(x)[0] > 0
    mask.T[0] |= True
    return self.fc(x).sum() if mask.all() else self.fc(x).mean()


def branches_in_other_precision(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = x @ x.T
    return self.fc(x).sum() if (product > 0).all() else self.fc(x).mean()


def branches_inside_other_precision(self: Any, x: torch.Tensor) -> torch.Tensor:
    product = x @ x.T
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return self.fc(x).sum() if (product > 0).all() else self.fc(x).mean()


def branches_on_what_was_changed(self: Any, x: torch.Tensor) -> torch.Tensor:
    copy = x.clone()
    torch.nn.functional.relu(copy, True)
    return self.fc(x).sum() if (copy >= 0).all() else self.fc(x).mean()


def reads_bytes(self: Any, x: torch.Tensor) -> torch.Tensor:
    return (self.fc(x) * (x.view(torch.int32) > 0)).sum()


def strides_over_a_view(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).T.as_strided((2, 2), (2, 1)).sum()


def strides_from_a_place(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x)[1:].as_strided((1, 2), (2, 1), 1).sum()


def selects(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).sum() + x[x > 0].sum()


def reads_a_number(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).sum() * int(x.max().item())


def differentiates(self: Any, x: torch.Tensor) -> torch.Tensor:
    loss = self.fc(x).sum()
    return loss + torch.autograd.grad(loss, self.fc.weight, create_graph=True)[0].sum()


def raises(self: Any, x: torch.Tensor) -> torch.Tensor:
    raise ValueError(f"no such mode for {x.shape[0]}")


def detaches(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).detach().sum()


def returns_no_tensor(self: Any, x: torch.Tensor) -> int:
    return 3


def changes_its_input(self: Any, x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return self.fc(x).sum()


def changes_a_parameter(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.frozen.add_(1)
    return (self.fc(x) * self.frozen).sum()


def clamps_a_parameter(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        self.fc.weight.clamp_(-1, 1)
    return self.fc(x).sum()


def keeps_a_gradient_in_a_buffer(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.total += self.fc(x).mean(0)
    return (self.fc(x) * self.total).sum()


def changes_an_attribute(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.fc.cache[:2] += x.detach().mean()
    return (self.fc(x) + self.fc.cache).sum()


def reassigns_an_attribute(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.table = self.table + x.detach().mean(0)
    return (self.fc(x) + self.table).sum()


def draws_counts(self: Any, x: torch.Tensor) -> torch.Tensor:
    return (self.fc(x) * torch.poisson(x.abs())).sum()


def looks_up(name: str, **options: Any) -> Callable[..., Any]:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return getattr(torch.nn.functional, name)(x.long(), self.fc.weight, **options).sum()

    return body


def gathers(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc.weight.gather(0, x.long(), sparse_grad=True).sum()


def keeps_its_first_input(self: Any, x: torch.Tensor) -> torch.Tensor:
    if getattr(self, "first", None) is None:
        self.first = x.detach() * 2
    return (self.fc(x) + self.first).sum()


def keeps_noise(self: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(self.fc, "noise"):
        self.fc.noise = torch.zeros(4)
        self.fc.noise += torch.randn(4)
    return (self.fc(x) + self.fc.noise).sum()


def keeps_an_entry(self: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = self.fc(x)
    before = self.memory.get("hidden")
    if before is not None:
        hidden = hidden + before
    self.memory["hidden"] = hidden.detach()
    return hidden.sum()


def keeps_a_list(self: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = self.fc(x)
    for one in self.kept:
        hidden = hidden * one
    self.kept.append(x.mean(0))
    return hidden.sum()


def replaces_an_entry(self: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = self.fc(x) + self.kept[0]
    self.kept[0] = hidden.detach().mean(0)
    return hidden.sum()


def counts_in_an_attribute(self: Any, x: torch.Tensor) -> torch.Tensor:
    scale, self.table = self.table, torch.ones(4)
    self.fc.cache = self.fc.cache + 1
    return (self.fc(x) * scale + self.fc.cache).sum()


def counts(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.fc.step += 1
    return self.fc(x).sum() * self.fc.step


COUNTS = {"calls": 0}
CALLS = 0


def counts_in_a_global(self: Any, x: torch.Tensor) -> torch.Tensor:
    global CALLS
    CALLS += 1
    return self.fc(x).sum() * CALLS


def counts_in_a_container(self: Any, x: torch.Tensor) -> torch.Tensor:
    COUNTS["calls"] += 1
    return self.fc(x).sum() * COUNTS["calls"]


def counts_entries(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.kept.append(x.mean(0))
    return self.fc(x).sum() * len(self.kept)


def counts_in_a_queue(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.queue.append(x.shape[0])
    return self.fc(x).sum() * len(self.queue)


def counts_in_a_set(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.numbers.add(len(self.numbers))
    return self.fc(x).sum() * len(self.numbers)


def keeps_a_queue(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.kept.append(x.mean(0))
    return (self.fc(x) * self.kept.pop(0)).sum()


def begins_otherwise(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.fc.step += 1
    return self.fc(x).sum() if self.fc.step > 1 else self.fc(x).mean()


def counts_beside_a_cache(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.positions is None:
        self.positions = torch.arange(4.0)
    self.fc.step += 1
    return (self.fc(x) * self.positions).sum() * self.fc.step


def computes_once_otherwise(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.called:
        return self.fc(x).sum()
    self.called = True
    return self.fc(x).mean()


def selects_indices(self: Any, x: torch.Tensor) -> torch.Tensor:
    rows = x[:, 0].nonzero().squeeze(1)
    return self.fc(x[rows]).sum()


def finds_the_unique(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).sum() * torch.unique(x).shape[0]


def inspects_its_mask(self: Any, x: torch.Tensor) -> torch.Tensor:
    mask = self.fc(x) > 0
    return self.fc(x if mask.all() else x * mask).sum()


def converts_to_bool(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).sum() if bool((self.fc(x) > 0).all()) else self.fc(x).mean()


def selects_in_its_loss(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(self.fc(x)[x[:, 0] > 0], x[x[:, 0] > 0])


def makes_a_namespace(self: Any, x: torch.Tensor) -> Any:
    return types.SimpleNamespace(loss=self.fc(x).sum())


def checkpoints_a_sequence(self: Any, x: torch.Tensor) -> torch.Tensor:
    layers = nn.Sequential(self.fc, self.fc)
    return checkpoint_sequential(layers, 2, x, use_reentrant=False).sum()


def breaks_the_graph(self: Any, x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return self.fc(x).sum()


UNREGISTERED = torch.ones(4, requires_grad=True)


def reads_a_free_parameter(self: Any, x: torch.Tensor) -> torch.Tensor:
    return (self.fc(x) * UNREGISTERED).sum()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            branches,
            r"test_refusals\.py:\d+: if self\.fc\(x\)\.sum\(\) > 0:: the forward branches on the values .*where",
        ),
        (branches_on_a_buffer, r"test_refusals\.py:\d+: .*total\.all.*: the forward branches on the values"),
        (branches_on_noise, r"test_refusals\.py:\d+: .*rand_like.*: the forward branches on the values"),
        (branches_on_what_was_written, r"test_refusals\.py:\d+: .*mask\.all.*: the forward branches on the values"),
        (branches_in_other_precision, r"test_refusals\.py:\d+: .*product.*: the forward branches on the values"),
        (branches_inside_other_precision, r"test_refusals\.py:\d+: .*product.*: the forward branches on the values"),
        (branches_on_what_was_changed, r"test_refusals\.py:\d+: .*copy.*: the forward branches on the values"),
        (reads_bytes, r"test_refusals\.py:\d+: .*view.*: reads the bytes of a tensor as another element type"),
        (
            strides_over_a_view,
            r"test_refusals\.py:\d+: .*as_strided.*: as_strided reads the memory of a tensor that is",
        ),
        (
            strides_from_a_place,
            r"test_refusals\.py:\d+: .*as_strided.*: as_strided reads the memory of a tensor that is",
        ),
        (selects, r"test_refusals\.py:\d+: .*x\[x > 0\].*: a shape depends on the values .*a mask"),
        (reads_a_number, r"test_refusals\.py:\d+: .*\.item.*: a number depends on the values"),
        (
            selects_indices,
            r"test_refusals\.py:\d+: rows = .*nonzero.*: a shape depends on the values .*a mask",
        ),
        (finds_the_unique, r"test_refusals\.py:\d+: .*unique.*: a shape depends on the values .*a mask"),
        (
            inspects_its_mask,
            r"test_refusals\.py:\d+: .*mask\.all\(\).*: the forward branches on the values .*no tensor",
        ),
        (converts_to_bool, r"test_refusals\.py:\d+: .*bool\(.*: a number depends on the values .*torch\.where"),
        (selects_in_its_loss, r"test_refusals\.py:\d+: .*mse_loss.*: a shape depends on the values .*a mask"),
        (keeps_its_first_input, r'test_refusals\.py:\d+: self\.first = .*changes the attribute "first".*as a buffer'),
        (
            keeps_an_entry,
            r'test_refusals\.py:\d+: self\.memory.*changes the attribute "memory", a container.*as a buffer',
        ),
        (keeps_a_list, r'test_refusals\.py:\d+: self\.kept.*changes the attribute "kept", a container.*as a buffer'),
        (replaces_an_entry, r'test_refusals\.py:\d+: self\.kept.*the attribute "kept", a container.*as a buffer'),
        (keeps_noise, r'the forward changes the attribute "fc\.noise".*register it as a buffer'),
        (counts_in_an_attribute, r'the forward changes the attribute "fc\.cache".*register it as a buffer'),
        (counts, r'changes Python state, "fc\.step" \(from 0 to 1\), by which its next call .*in a buffer'),
        (counts_in_a_global, r'changes Python state, "tests\.trace\.test_refusals\.CALLS" \(from 0 to 1\), by'),
        (counts_in_a_container, r'changes Python state, "tests\.trace\.test_refusals\.COUNTS", by which'),
        (counts_entries, r'test_refusals\.py:\d+: .*changes the attribute "kept", a container.*as a buffer'),
        (counts_in_a_queue, r'changes Python state, "queue", by which'),
        (counts_in_a_set, r'changes Python state, "numbers", by which'),
        (keeps_a_queue, r'test_refusals\.py:\d+: self\.kept.*changes the attribute "kept", a container.*as a buffer'),
        (begins_otherwise, r'changes Python state, "fc\.step" \(from 0 to 1\), by which'),
        (counts_beside_a_cache, r'changes Python state, "fc\.step" \(from 0 to 1\), by which'),
        (computes_once_otherwise, r'changes Python state, "called" \(from False to True\), by which'),
        (makes_a_namespace, r"test_refusals\.py:\d+: .*SimpleNamespace.*cannot be captured"),
        (checkpoints_a_sequence, r"test_refusals\.py:\d+: .*checkpoint_sequential.*cannot be captured"),
        (differentiates, r"test_refusals\.py:\d+: .*: torch\.autograd\.grad inside the forward cannot be captured"),
        (raises, r"test_refusals\.py:\d+: raise .*: the forward raises ValueError\('no such mode for 3'\)"),
        (detaches, r"no output of the module requires grad \(1 tensors.*return the loss"),
        (returns_no_tensor, r"no output of the module requires grad \(0 tensors"),
        (changes_its_input, r'the forward changes input "args\.0" in place: work on a copy'),
        (changes_a_parameter, r'the forward changes parameter "frozen" in place'),
        (clamps_a_parameter, r'test_refusals\.py:\d+: .*clamp_.*the forward changes parameter "fc\.weight" in place'),
        (keeps_a_gradient_in_a_buffer, r'test_refusals\.py:\d+: .*buffer "total" requires grad: `\.detach\(\)` it'),
        (changes_an_attribute, r'the forward changes the attribute "fc\.cache".*register it as a buffer'),
        (reassigns_an_attribute, r'the forward changes the attribute "table".*register it as a buffer'),
        (draws_counts, r"test_refusals\.py:\d+: .*: aten\.poisson\.default draws random numbers"),
        (looks_up("embedding", sparse=True), r"test_refusals\.py:\d+: .*sparse gradients: .*use sparse=False"),
        (looks_up("embedding_bag", mode="sum", sparse=True), r"test_refusals\.py:\d+: .*use sparse=False"),
        (gathers, r"test_refusals\.py:\d+: .*asks for sparse gradients: .*use sparse_grad=False"),
        (breaks_the_graph, r"test_refusals\.py:\d+: .*graph_break.*cannot be captured.*outside of the module"),
        (reads_a_free_parameter, r"test_refusals\.py:\d+: .*is no parameter of the module: register it"),
    ],
)
def test_forwards_that_cannot_be_captured(body: Callable[..., Any], message: str) -> None:
    module = Module(body)
    x = torch.ones(3, 4)
    with pytest.raises(TraceError, match=message) as caught:
        hap.trace(module, (x,))
    assert "\n" not in str(caught.value)
    assert torch.equal(x, torch.ones(3, 4))
    assert type(module.fc.weight) is nn.Parameter
    assert (CALLS, COUNTS, module.fc.step, module.called, len(module.kept)) == (0, {"calls": 0}, 0, False, 1)


def linear(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc(x).sum()


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


def leaves_for_others(self: Any, x: torch.Tensor) -> torch.Tensor:
    hidden = self.fc(x)
    self.memory["hidden"] = hidden
    self.kept.clear()
    self.kept.append(hidden.mean())
    return hidden.sum() + self.kept[0]


def keeps_constants(self: Any, x: torch.Tensor) -> torch.Tensor:
    if "positions" not in self.memory:
        self.memory["positions"] = torch.arange(4.0)
    return (self.fc(x) * self.memory["positions"]).sum()


@pytest.mark.parametrize("body", [leaves_for_others, keeps_constants])
def test_containers_that_hold_no_state(body: Callable[..., Any]) -> None:
    module = Module(body)
    assert_equal_to_eager((module, (torch.randn(3, 4),), {}), 1e-6)
    assert module.memory == {}
    assert len(module.kept) == 1


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


class Routed(nn.Module):
    """A mixture of experts that picks the rows of each expert: ``rows(chosen)`` are those of one of them."""

    def __init__(self, rows: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.router = nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.rows = rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).max(-1)
        answers = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = self.rows(chosen == number)
            answers[rows] = expert(x[rows]) * weights[rows, None]
        return answers.square().sum()


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (lambda chosen: chosen.nonzero(as_tuple=True)[0], r"chosen\.nonzero"),
        (lambda chosen: torch.where(chosen)[0], r"torch\.where\(chosen\)"),
        (lambda chosen: chosen, r"answers\[rows\] = expert"),
    ],
    ids=["nonzero", "where", "mask"],
)
def test_routing_by_values_is_refused_with_what_to_use(rows: Any, line: str) -> None:
    expected = (
        rf"test_refusals\.py:\d+: .*{line}.*: a shape depends on the values of tensors: .*dispatch tensor.*einsum"
    )
    with pytest.raises(TraceError, match=expected):
        hap.trace(Routed(rows), (torch.randn(6, 4),))


def counts_for_others(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.called = True if not self.called else self.called
    self.fc.step += 1
    return self.fc(x).sum()


def test_counters_that_nothing_computes_with_give_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """And flags none."""
    with caplog.at_level("WARNING", "hap"):
        hap.trace(Module(counts_for_others), (torch.ones(3, 4),))
    (record,) = caplog.records
    assert "the forward changes Python state (fc.step); such changes are no part of a training step" in record.message

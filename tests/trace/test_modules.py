"""Properties of modules that a trace must keep: buffers, frozen and unused parameters, inputs, structure of outputs."""

from __future__ import annotations

import copy
import dataclasses
import logging
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hap
from hap.interpret import bind, run
from tests.trace.comparison import assert_equal_to_eager


class Pieces(nn.Module):
    """One module with most of what a graph has to name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(4, 3)
        self.offset = torch.arange(3, dtype=torch.float64)  # a constant, not a buffer
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros(()))
        self.calls = 0

    def forward(self, x: torch.Tensor, *, labels: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.steps += 1
        self.total = self.total + x.detach().mean()
        self.calls += 1
        h = self.norm(self.conv(x)).relu().mean((2, 3))
        h = h + h.var(0) + h.std(1, keepdim=True) + torch.tensor([0.5, 1.0, 1.5, 2.0])
        return F.cross_entropy(self.head(self.frozen(h)) * scale + self.offset, labels, label_smoothing=0.1)


def pieces() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = torch.randn(5, 2, 6, 6, dtype=torch.float64, requires_grad=True)
        return Pieces().double(), (x,), {"labels": torch.tensor([0, 2, -100, 1, 1]), "scale": 0.5}


def test_every_kind_of_input_and_output(caplog: pytest.LogCaptureFixture) -> None:
    module, args, kwargs = pieces()
    with caplog.at_level(logging.WARNING, "hap"):
        graph = hap.trace(module, args, kwargs)
    assert [record.name for record in caplog.records] == ["hap"]
    assert "changes Python state (calls)" in caplog.text
    assert module.calls == 0

    names = {kind: [i.name for i in graph.inputs if i.kind == kind] for kind in ("input", "tangent", "buffer")}
    assert names["input"] == ["args.0", "kwargs.labels"]
    assert names["tangent"] == [""]
    assert names["buffer"] == ["steps", "total", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert len(graph.constants) == 2
    outputs = {(o.kind, o.name): o for o in graph.outputs}
    updates = {
        o.name: graph.tensors[o.tensor].dtype for o in graph.outputs if o.kind == "buffer" and o.tensor is not None
    }
    assert updates == {
        "steps": torch.int64, "total": torch.float64, "norm.num_batches_tracked": torch.int64,
        "norm.running_mean": torch.float64, "norm.running_var": torch.float64,
    }  # fmt: skip
    assert outputs["gradient", "unused.weight"].tensor is None
    assert ("gradient", "frozen.weight") not in outputs
    for output in graph.outputs:
        if output.of is not None and output.tensor is not None:
            assert graph.tensors[output.tensor].shape == graph.tensors[output.of].shape

    got = run(graph, bind(graph, module, args, kwargs))
    twin = copy.deepcopy(module)
    x = args[0].detach().clone().requires_grad_()
    loss = twin(x, **kwargs)
    loss.backward()
    expected = {("loss", ""): loss, ("input_gradient", "args.0"): x.grad}
    expected |= {("gradient", n): p.grad for n, p in twin.named_parameters() if p.requires_grad}
    expected |= {("buffer", n): b for n, b in twin.named_buffers()}
    assert set(got) == set(expected)
    for key, value in expected.items():
        if value is None:
            assert got[key] is None
        else:
            torch.testing.assert_close(got[key], value, rtol=1e-12, atol=1e-14)


def test_means_and_batch_norm_are_sums_and_literal_counts() -> None:
    graph = hap.trace(*pieces())
    assert not {o.target.overloadpacket for o in graph.operators} & {
        torch.ops.aten.mean, torch.ops.aten.var, torch.ops.aten.var_mean, torch.ops.aten.std,
        torch.ops.aten.native_batch_norm, torch.ops.aten.native_batch_norm_backward,
        torch.ops.aten.nll_loss_forward, torch.ops.aten.nll_loss_backward,
    }  # fmt: skip


def test_the_module_is_left_as_it_was() -> None:
    module, args, kwargs = pieces()
    module.head.cached = torch.ones(2)  # type: ignore[assignment]
    module.frozen.eval()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    before = {name: dict(part.__dict__) for name, part in module.named_modules()}
    tables = {name: {k: dict(v) for k, v in d.items() if isinstance(v, dict)} for name, d in before.items()}
    hap.trace(module, args, kwargs)
    assert torch.equal(torch.get_rng_state(), state)
    for name, part in module.named_modules():
        assert part.__dict__.keys() == before[name].keys()
        assert all(part.__dict__[key] is value for key, value in before[name].items())
        assert all(dict(part.__dict__[key]) == value for key, value in tables[name].items() if "hooks" in key)
        for key in ("_parameters", "_buffers", "_modules"):
            assert all(part.__dict__[key][k] is v for k, v in tables[name][key].items())
    assert all(p.grad is None for p in module.parameters())
    assert args[0].grad is None
    for parameter in list(module.parameters()):
        torch.utils.swap_tensors(parameter, nn.Parameter(torch.zeros_like(parameter)))
    assert all((p == 0).all() for p in module.parameters())


def test_eval_mode_uses_the_running_statistics() -> None:
    module, args, kwargs = pieces()
    module.norm.running_var.mul_(2)
    graph = hap.trace(module.eval(), args, kwargs)
    assert [o.name for o in graph.outputs if o.kind == "buffer"] == ["steps", "total"]
    got = run(graph, bind(graph, module, args, kwargs))
    torch.testing.assert_close(got["loss", ""], copy.deepcopy(module)(*args, **kwargs), rtol=1e-12, atol=0)


@dataclasses.dataclass
class Result:
    first: torch.Tensor
    note: str
    rest: dict[str, Any]


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.opaque = range(3)

    def forward(self, batch: dict[str, Any]) -> Result:
        y = self.fc(batch["x"]) * batch["by"]
        opaque = self.opaque
        return Result(
            y, "note", {"pair": Pair(y, y.detach()), "infinite": float("inf"), "none": None, "opaque": opaque}
        )


def test_structured_inputs_and_outputs_without_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    module, args = Structured(), ({"x": torch.randn(2, 3), "by": 2},)
    with caplog.at_level(logging.WARNING, "hap"):
        graph = hap.trace(module, args)
    assert 'the output "rest.opaque" is a range, which hap does not rebuild' in caplog.text
    assert [i.name for i in graph.inputs if i.kind == "input"] == ["args.0.x"]
    # Both differentiable outputs are the same tensor, yet each has a tangent of its own.
    assert [(o.kind, o.name) for o in graph.outputs[:3]] == [
        ("loss", "first"), ("loss", "rest.pair.left"), ("output", "rest.pair.right"),
    ]  # fmt: skip
    assert [i.name for i in graph.inputs if i.kind == "tangent"] == ["first", "rest.pair.left"]
    tangents = {"first": torch.randn(2, 3), "rest.pair.left": torch.randn(2, 3)}
    got = run(graph, bind(graph, module, args, tangents=tangents))
    values = [got[o.kind, o.name] for o in graph.outputs[:3]]
    built, expected = graph.output_spec.build(values), module(*args)
    assert type(built) is Result
    assert built.note == "note"
    assert type(built.rest["pair"]) is Pair
    assert built.rest | {"pair": 0} == {"pair": 0, "infinite": float("inf"), "none": None, "opaque": None}
    torch.testing.assert_close(built.rest["pair"].right, expected.first)
    expected.first.backward(tangents["first"] + tangents["rest.pair.left"])
    torch.testing.assert_close(got["gradient", "fc.weight"], module.fc.weight.grad)


class Attention(nn.Module):
    """PyTorch's own attention layer, which Dynamo leaves whole, behind a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def block(x: torch.Tensor) -> torch.Tensor:
            return x + self.attention(x, x, x, need_weights=False)[0]

        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).pow(2).sum()


def test_attention_is_replaced_inside_whole_functions_and_checkpoints() -> None:
    call = (Attention().double(), (torch.randn(2, 3, 8, dtype=torch.float64),), {})
    graph = assert_equal_to_eager(call, 1e-12)
    assert any(o.target is torch.ops.hap.sdpa.default for o in graph.operators)


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(50, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.fc(x)
        h = h + torch.randn_like(h) * torch.rand(40) + torch.bernoulli(torch.full_like(h, 0.25))
        return (h * torch.empty_like(h).uniform_(1, 2)).sum()


def test_random_numbers_are_a_function_of_seed_and_step() -> None:
    module, args = Noise(), (torch.randn(30, 50),)
    graph = hap.trace(module, args)
    indices = [o.args[2] for o in graph.operators if str(o.target).startswith("hap.")]
    assert indices == [0, 1, 2, 3]
    assert not any(torch.Tag.nondeterministic_seeded in o.target.tags for o in graph.operators)
    losses = [run(graph, bind(graph, module, args, rng=rng))["loss", ""].item() for rng in ((5, 0), (5, 0), (5, 1))]
    assert losses[0] == losses[1] != losses[2]


class Sums(nn.Module):
    """Gradients that are the tangent itself, or the same tensor for two parameters; outputs that are inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(3, 2)
        self.right = nn.Linear(3, 2)
        self.offset = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.left(x) + self.right(x)).sum() + self.offset, x, self.offset.detach()


def test_each_output_has_a_tensor_of_its_own() -> None:
    module, args = Sums(), (torch.randn(4, 3),)
    graph = hap.trace(module, args)
    tensors = [output.tensor for output in graph.outputs]
    assert len(set(tensors)) == len(tensors) == 8
    assert not set(tensors) & {item.tensor for item in graph.inputs}
    got = run(graph, bind(graph, module, args))
    assert got["output", "1"].equal(args[0])
    assert got["gradient", "offset"] == 1
    torch.testing.assert_close(got["gradient", "left.bias"], torch.full((2,), 4.0))
    torch.testing.assert_close(got["gradient", "left.weight"], got["gradient", "right.weight"])


class Draws(nn.Module):
    """Draws with and without naming the generator."""

    def __init__(self, **generator: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.generator = generator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.fc(x) * torch.rand(3, 4, **self.generator) + torch.randn(3, 4, **self.generator)).sum()


def test_the_generator_may_be_given_as_none() -> None:
    graphs = [hap.trace(module, (torch.ones(3, 4),)) for module in (Draws(), Draws(generator=None))]
    targets = [[str(operator.target) for operator in graph.operators] for graph in graphs]
    assert targets[0] == targets[1]
    assert "hap.rand.default" in targets[0]


def test_paths_of_modules_are_the_users() -> None:
    """Dynamo has several words for them, the plainest not for batch norm in a container."""
    norms = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.BatchNorm1d(4))
    module = nn.Sequential(norms, nn.ModuleDict({"last": nn.BatchNorm1d(4)})["last"])
    graph = hap.trace(module, (torch.randn(3, 4, requires_grad=True),))
    assert {one.module for one in graph.operators} <= {"", *(name for name, _ in module.named_modules())}
    assert {"0.0.0", "0.0.1", "0.1", "1"} <= {one.module for one in graph.operators}

"""Random operators in a traced graph: those of PyTorch all become hap's, with the distributions that they have."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import hap
from hap.errors import TraceError
from hap.graph import Graph
from hap.interpret import bind, run
from hap.trace import random as replaced
from hap.trace.random_decompositions import TABLE

aten = torch.ops.aten
SHAPE = (40, 500)


def probabilities(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(1, 501, dtype=torch.float64).div(501).expand(SHAPE)


def chosen(x: torch.Tensor, count: int, replacement: bool) -> torch.Tensor:
    """Numbers of categories with probabilities 0.1 to 0.4."""
    return torch.multinomial(x.new_tensor([1.0, 2.0, 3.0, 4.0]).expand(2000, 4), count, replacement)


# What draws, and the mean and variance of what it draws where the input is one.
CASES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "dropout": (lambda x: F.dropout(x, 0.2), 1.0, 0.25),
    "dropout in place": (lambda x: F.dropout(x * 1, 0.2, inplace=True), 1.0, 0.25),
    "native dropout": (lambda x: torch.native_dropout(x, 0.2, True)[0], 1.0, 0.25),
    "dropout mask": (lambda x: torch.native_dropout(x, 0.2, True)[1].to(x.dtype), 0.8, 0.16),
    "no dropout": (lambda x: torch.native_dropout(x, 0.2, False)[0], 1.0, 0.0),
    "dropout of all": (lambda x: F.dropout(x, 1.0), 0.0, 0.0),
    "rand": (lambda x: torch.rand(SHAPE), 1 / 2, 1 / 12),
    "rand_like": (lambda x: torch.rand_like(x), 1 / 2, 1 / 12),
    "uniform": (lambda x: torch.empty_like(x).uniform_(-1, 3), 1.0, 16 / 12),
    "randn": (lambda x: torch.randn(SHAPE), 0.0, 1.0),
    "normal": (lambda x: torch.empty_like(x).normal_(1, 2), 1.0, 4.0),
    "normal filled": (lambda x: torch.normal(1.0, 2.0, SHAPE), 1.0, 4.0),
    "normal of tensors": (lambda x: torch.normal(x.detach(), 2 * x.detach()), 1.0, 4.0),
    "normal of means": (lambda x: torch.normal(x.detach(), 2.0), 1.0, 4.0),
    "normal of deviations": (lambda x: torch.normal(1.0, x.detach()), 1.0, 1.0),
    "bernoulli": (lambda x: torch.bernoulli(0.3 * x), 0.3, 0.21),
    "bernoulli in place": (lambda x: torch.empty_like(x).bernoulli_(0.3), 0.3, 0.21),
    "bernoulli by element": (lambda x: torch.bernoulli(probabilities(x)) - probabilities(x), 0.0, 1 / 6),
    "bernoulli in half precision": (lambda x: torch.bernoulli(torch.full(SHAPE, 0.001).bfloat16()), 0.001, 0.001),
    "exponential": (lambda x: torch.empty_like(x).exponential_(2.0), 1 / 2, 1 / 4),
    "geometric": (lambda x: torch.empty_like(x).geometric_(0.25), 4.0, 12.0),
    "log normal": (lambda x: torch.empty_like(x).log_normal_(0.0, 0.5).log(), 0.0, 0.25),
    "cauchy": (lambda x: torch.empty_like(x).cauchy_(1.0, 2.0).sub(1).div(2).atan(), 0.0, math.pi**2 / 12),
    "gumbel": (lambda x: -torch.empty_like(x).exponential_().log(), 0.5772157, math.pi**2 / 6),
    "randint": (lambda x: torch.randint(-2, 8, SHAPE).to(x.dtype), 2.5, 99 / 12),
    "randint_like": (lambda x: torch.randint_like(x, 10), 4.5, 99 / 12),
    "multinomial": (lambda x: chosen(x, 1, False).to(x.dtype), 2.0, 1.0),
    "multinomial with replacement": (lambda x: chosen(x, 10, True).to(x.dtype), 2.0, 1.0),
    "rrelu": (lambda x: F.rrelu(-x, 0.2, 0.6, training=True), -0.4, 0.16 / 12),
    "no rrelu": (lambda x: F.rrelu(-x, 0.2, 0.6, training=False), -0.4, 0.0),
    "alpha dropout": (lambda x: F.alpha_dropout(x * torch.randn_like(x), 0.3, training=True), 0.0, 1.0),
}


# What drops channels, and the shape that it takes: 4,000 of them with five elements each.
CHANNELS: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...]]] = {
    "dropout1d": (F.dropout1d, (800, 5, 5)),
    "dropout2d": (F.dropout2d, (800, 5, 5, 1)),
    "dropout3d": (F.dropout3d, (800, 5, 5, 1, 1)),
    "feature_alpha_dropout": (F.feature_alpha_dropout, (800, 5, 5)),
}


class Drawing(nn.Module):
    """All of them, as outputs beside a loss that reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(SHAPE, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        x = x * self.weight
        drawn = {name: draw(x) for name, (draw, _, _) in CASES.items()}
        drawn |= {name: drop(x.view(-1, *shape[1:]), 0.3, training=True) for name, (drop, shape) in CHANNELS.items()}
        drawn["permutations"] = torch.stack([torch.randperm(500) for _ in range(3)]).to(x.dtype)
        loss = sum(value.to(x.dtype).sum() * self.weight.sum() for value in drawn.values())
        assert isinstance(loss, torch.Tensor)
        return loss, {name: value.detach() for name, value in drawn.items()}


@functools.cache
def traced() -> tuple[Graph, dict[str, torch.Tensor]]:
    module, args = Drawing(), (torch.ones(SHAPE, dtype=torch.float64),)
    graph = hap.trace(module, args)
    outputs = run(graph, bind(graph, module, args, rng=(3, 1)))
    return graph, {name.split(".", 1)[1]: value.double() for (kind, name), value in outputs.items() if kind == "output"}


@pytest.mark.parametrize("name", CASES)
def test_distributions(name: str) -> None:
    _, mean, variance = CASES[name]
    value = traced()[1][name]
    # Five standard deviations of a mean; of a variance as where the tails are heavy (a kurtosis of 12).
    count = value.numel()
    assert abs(float(value.mean()) - mean) <= 5 * (variance / count) ** 0.5 + 1e-9
    assert abs(float(value.var()) - variance) <= 5 * variance * (11 / count) ** 0.5 + 1e-9


@pytest.mark.parametrize("name", CHANNELS)
def test_whole_channels_are_dropped(name: str) -> None:
    rows = traced()[1][name].reshape(4000, 5)
    assert bool((rows == rows[:, :1]).all())
    assert len(rows[:, 0].unique()) == 2
    assert 0.66 < float((rows[:, 0] == rows.max()).double().mean()) < 0.74


def test_permutations() -> None:
    rows = traced()[1]["permutations"]
    for row in rows:
        assert torch.equal(row.sort()[0], torch.arange(500, dtype=torch.float64))
    # Uncorrelated with one another and with the order: five standard deviations of a rank correlation.
    both = torch.cat([rows, torch.arange(500, dtype=torch.float64)[None]])
    assert float((torch.corrcoef(both) - torch.eye(4)).abs().max()) < 5 / 500**0.5


def test_no_operator_draws_from_a_generator() -> None:
    graph, _ = traced()
    drawing = [o for o in graph.operators if any(a.name == "rng" for a in o.target._schema.arguments)]
    assert {str(o.target) for o in drawing} == {
        f"hap.{x}.default" for x in ("dropout", "rand", "randn", "bernoulli", "randint")
    }
    assert not [o for o in graph.operators if torch.Tag.nondeterministic_seeded in o.target.tags]


# Drawn by rejection: how many numbers an element takes depends on them. And kernels of one kind of device.
REFUSED = {
    "_cudnn_init_dropout_state", "_fused_dropout", "_sample_dirichlet", "_standard_gamma", "binomial", "poisson",
    "_nested_tensor_softmax_with_shape",
}  # fmt: skip
# Replaced as a whole before (attention, recurrent layers), or taken apart by PyTorch whatever the table says.
BEFORE = ("attention", "sdp", "lstm", "gru", "rnn")


def test_every_random_operator_of_pytorch_is_known() -> None:
    known = {*TABLE, *replaced.FILLS, aten.native_dropout.default}
    unknown = []
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::") or not hasattr(getattr(aten, packet, None), overload or "default"):
            continue
        operator = getattr(getattr(aten, packet), overload or "default")
        if torch.Tag.nondeterministic_seeded not in operator.tags or operator._schema.is_mutable:
            continue
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
        if operator not in known and not composite and packet not in REFUSED and not any(x in packet for x in BEFORE):
            unknown.append(str(operator))
    # ``random_`` cannot be captured; ``randint_like`` with a tensor as its limit is refused.
    assert sorted(unknown) == [
        "aten.randint_like.Tensor", "aten.randint_like.Tensor_generator", "aten.random.default", "aten.random.from",
        "aten.random.to",
    ]  # fmt: skip


def checkpointed(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.tanh(F.dropout(x, 0.2)), 0.3)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.attention = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.attention(self.linear(x))
        return checkpoint(checkpointed, y, use_reentrant=False).square().sum()  # type: ignore[no-any-return]


def test_forward_and_backward_share_their_numbers() -> None:
    """Each forward has one backward with its number; no two forwards share one, and a second trace has the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, args = Checkpointed(), (torch.randn(3, 4, 6),)
        graph, again = hap.trace(module, args), hap.trace(module, args)

    def numbers(graph: Graph, phase: str) -> list[int]:
        found = []
        for operator in graph.operators:
            names = [argument.name for argument in operator.target._schema.arguments]
            if "rng" in names and operator.phase == phase:
                found.append(operator.args[names.index("index")])
        return found

    forward = numbers(graph, "forward")
    assert forward == list(range(6))
    assert sorted(numbers(graph, "backward")) == forward
    assert (numbers(again, "forward"), numbers(again, "backward")) == (forward, numbers(graph, "backward"))


def test_generators_are_refused() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)
            self.generator = torch.Generator()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            return (y * torch.empty_like(y).uniform_(generator=self.generator)).sum()

    with pytest.raises(TraceError, match=r"test_random\.py:\d+: .*generator=self\.generator.* cannot be captured"):
        hap.trace(Own(), (torch.randn(3, 6),))

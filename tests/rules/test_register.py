"""``hap.register_rule``: users' operators, their errors, and the proof on registration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import hap
from hap.errors import RuleError
from hap.program import Compute
from hap.rules import annotate
from hap.rules.families import REGISTERED, rule_of
from hap.rules.proof import single


@torch.library.custom_op("hap_test::outer_sum", mutates_args=())
def outer_sum(x: torch.Tensor, weight: torch.Tensor, power: int = 1) -> torch.Tensor:
    """Rows [b, i] times weights [i, j], each to a power."""
    return (x @ weight) ** power


@outer_sum.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, power: int = 1) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@torch.library.custom_op("hap_test::outer_sum_backward", mutates_args=())
def outer_sum_backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return grad @ weight.T, x.T @ grad


@outer_sum_backward.register_fake
def _(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    return (*outer_sum_backward(grad, *ctx.saved_tensors), None)


outer_sum.register_autograd(_backward, setup_context=_save)
LINE = "~b i, ~i j -> b j when power=1"
BACKWARD = "~b j, b i, i j -> b i{0 2}, i j{0 1}"


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    REGISTERED.clear()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 48).reshape(8, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return outer_sum(torch.tanh(x), self.weight).square().sum()


DEVICES = [hap.Device(flops=flops, memory=1e9, memory_bandwidth=1e11) for flops in (1e10, 2e10, 1e9)]


def test_a_model_with_a_custom_operator_is_sharded_and_right() -> None:
    hap.register_rule(outer_sum, LINE, debug=True)
    hap.register_rule("hap_test::outer_sum_backward", BACKWARD, debug=True)
    x = torch.linspace(-2, 2, 40).reshape(5, 8)
    for forbidden in ((), ("batch",)):
        result = hap.check(
            Net(), devices=DEVICES, example_inputs=(x,), count=6, splits="random", forbidden_axes=forbidden
        )
        assert result.error < 1e-10
        assert result.replicated == ()
    plan = hap.plan(Net(), devices=hap.Cluster(DEVICES, link=hap.Link(latency=0, bandwidth=1e12)), example_inputs=(x,))
    shared = {i.target: i.axis for i in plan.program.instructions if isinstance(i, Compute) and "hap_test" in i.target}
    assert len(shared) == 2
    assert None not in shared.values()


def test_without_a_rule_it_is_replicated() -> None:
    result = hap.check(Net(), devices=DEVICES, example_inputs=(torch.ones(5, 8),))
    assert len(result.replicated) == 2


@torch.library.custom_op("hap_test::shares", mutates_args=())
def shares(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x * scale / x.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    "line",
    [
        "b i -> b i",  # the sum needs the whole of i
        "~b i! -> b i",  # it is not linear
        "+b i! -> b i",
        "b i! -> i b",  # other shapes
    ],
)
def test_a_wrong_rule_is_refused(line: str) -> None:
    def example() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.rand(3, 4, dtype=torch.float64), 0.5), {}

    with pytest.raises(RuleError, match=r"the rule of hap_test\.shares\.default"):
        hap.register_rule(shares, line, proof=example, debug=True)
    assert REGISTERED == {}
    hap.register_rule(shares, "b i! -> b i", proof=example, debug=True)


def test_a_guard_is_proven_with_the_examples_given() -> None:
    def squared() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)), {"power": 2}

    with pytest.raises(RuleError, match="wrong"):
        hap.register_rule(outer_sum, "~b i, ~i j -> b j", proof=squared, debug=True)
    with pytest.raises(RuleError, match="does not fit a call"):
        hap.register_rule(outer_sum, LINE, proof=squared, debug=True)
    hap.register_rule(outer_sum, "b i!, i! j -> b j", proof=squared, debug=True)


def test_the_environment_asks_for_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "+b i, +i j -> b j"
    hap.register_rule(outer_sum, wrong)
    monkeypatch.setenv("HAP_DEBUG", "1")
    with pytest.raises(RuleError, match="wrong"):
        hap.register_rule(outer_sum, wrong, replace=True)
    assert REGISTERED["hap_test.outer_sum.default"].line == wrong  # what was there before
    hap.register_rule(outer_sum, wrong, replace=True, debug=False)


def test_lowering_and_flops_of_ones_own() -> None:
    """An argument that depends on the split: each rank adds its own rows' part of the number."""

    @torch.library.custom_op("hap_test::rows", mutates_args=())
    def rows(x: torch.Tensor, count: int) -> torch.Tensor:
        assert count == x.shape[0]
        return x * 2

    def example() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(5, 2, dtype=torch.float64), 5), {}

    with pytest.raises(RuleError, match="refuses its part"):
        hap.register_rule("hap_test::rows", "~b i -> b i", proof=example, debug=True)
    hap.register_rule("hap_test::rows", "~b i -> b i size count=b", proof=example, debug=True)
    hap.register_rule(
        "hap_test::rows",
        "~b i -> b i",
        lower=lambda call, local: (call.operator.target, {"count": local.size("b")}),
        flops=lambda x, count, out_val: 7.0 * x[0],
        proof=example,
        replace=True,
        debug=True,
    )
    graph, _ = single(torch.ops.hap_test.rows.default, *example())
    assert annotate(graph).flops == (35.0,)


@pytest.mark.parametrize(
    ("op", "line", "message"),
    [
        ("hap_test::nothing", "b -> b", 'there is no operator "hap_test::nothing"'),
        ("nothing", "b -> b", 'there is no operator "nothing"'),
        (3, "b -> b", "or its name, not 3"),
        (torch.ops.aten.mul, "b -> b", "name one of aten.mul.Tensor, aten.mul.Scalar"),
        ("hap_test::outer_sum", "b i -> b", "has 1 operands, but the operator takes 2 tensors: x, weight"),
        ("hap_test::outer_sum", "b i, i j -> b j, b", "has 2 outputs, but the operator returns 1"),
        ("hap_test::outer_sum", "b i, i j -> b j)", "does not follow the notation"),
        ("hap_test::outer_sum", "b i, i j -> b j when n=1", "names the argument 'n'; there are x, weight, power"),
        ("aten::mul_.Tensor", "b, b -> b", "only functional operators have rules"),
        ("aten::_foreach_abs", "b -> b", "a list of tensors"),
        ("aten::mm", "i k, k j -> i j", "of its own in hap: pass replace=True"),
    ],
)
def test_mistakes_are_named(op: Any, line: str, message: str) -> None:
    with pytest.raises(RuleError) as caught:
        hap.register_rule(op, line)
    assert message in str(caught.value)
    assert REGISTERED == {}


def test_a_rule_is_registered_once_and_taken_back() -> None:
    hap.register_rule(outer_sum, LINE)
    with pytest.raises(RuleError, match="already: pass replace=True"):
        hap.register_rule(outer_sum, LINE)
    hap.register_rule(outer_sum, LINE, replace=True)
    hap.unregister_rule("hap_test::outer_sum")
    assert rule_of(outer_sum._opoverload) is None
    with pytest.raises(RuleError, match=r"registered for hap_test\.outer_sum\.default"):
        hap.unregister_rule(outer_sum)


def test_a_rule_of_haps_own_may_be_replaced() -> None:
    own = rule_of(torch.ops.aten.mm.default)
    hap.register_rule("aten::mm", "~i k!, ~k! j -> i j", replace=True, debug=True)
    assert rule_of(torch.ops.aten.mm.default) is not own
    hap.unregister_rule("aten::mm")
    assert rule_of(torch.ops.aten.mm.default) is own


def test_a_proof_without_examples_asks_for_them() -> None:
    with pytest.raises(RuleError, match=r"a value for its argument 'scale': pass proof="):
        hap.register_rule(shares, "b i! -> b i", debug=True)

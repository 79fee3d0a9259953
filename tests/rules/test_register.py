"""``hap.register_rule``: users' operators, their errors, and the proof on registration."""

from __future__ import annotations

import itertools
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
    torch.manual_seed(0)
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
    targets = [entry.target for entry in result.replicated]
    assert targets == ["hap_test.outer_sum.default", "hap_test.outer_sum_backward.default"]


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
    with pytest.raises(RuleError, match="does not fit the example"):
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

    with pytest.raises(RuleError, match="its part fails with"):
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
        ("hap_test::outer_sum", None, "must be a line of text such as"),
        ("hap_test::outer_sum", "b i, i j -> b j size x=result", "sizes for its argument 'x', a Tensor"),
        ("hap_test::outer_sum", "b i, i j -> b j size power=result", "expected a list of integers for a shape"),
        ("hap_test::shares", "b i -> b i size scale=b", "'scale', a float: expected an integer"),
        ("hap_test::shares", "(a b) i -> (a b) i", "does not say the sizes of a and b in (a b)"),
        ("hap_test::shares", "(a | b) i -> (a | b) i", "has a sum of indices"),
    ],
)
def test_mistakes_are_named(op: Any, line: Any, message: str) -> None:
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


@torch.library.custom_op("hap_test::single_precision", mutates_args=())
def single_precision(x: torch.Tensor, scale: int = 2) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise TypeError("only float32")
    return x * scale


def floats() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(3, 4),), {}


def fails(*_: Any, **__: Any) -> Any:
    raise KeyError("zzz")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"fails for the example \(float64\[., .\], 2\) \(pass proof=.* other types.*TypeError: only float32"),
        ({"proof": fails}, r"proof= of the rule of .* fails: KeyError: 'zzz'"),
        ({"proof": lambda: torch.ones(3)}, r"must return \(args, kwargs\).*not Tensor"),
        ({"proof": lambda: ((), {"scale": 3})}, r"fails for the example \(scale=3\): .*missing"),
        (
            {"proof": floats, "lower": fails},
            r"its part fails with KeyError: 'zzz', for the example \(float32\[3, 4\]\)",
        ),
        ({"proof": floats, "lower": lambda call, local: None}, "its part fails with TypeError"),
        ({"proof": floats, "flops": fails}, r"cannot be applied to the example .*: KeyError: 'zzz'"),
        ({"proof": floats, "flops": 3}, "flops= of the rule of .* must be a function, not 3"),
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_whatever_the_proof_raises_leaves_what_was_registered(
    options: dict[str, Any], message: str, before: bool
) -> None:
    if before:
        hap.register_rule(single_precision, "*d -> *d")
    kept = dict(REGISTERED)
    with pytest.raises(RuleError, match=message):
        hap.register_rule(single_precision, "~*d -> *d", debug=True, replace=True, **options)
    assert kept == REGISTERED
    hap.register_rule(single_precision, "~*d -> *d", debug=True, replace=True, proof=floats)


def test_an_interrupted_proof_leaves_nothing_registered() -> None:
    def interrupted() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hap.register_rule(single_precision, "~*d -> *d", debug=True, proof=interrupted)
    assert REGISTERED == {}


@torch.library.custom_op("hap_test::plus", mutates_args=())
def plus(x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
    return x.clone() if y is None else x + y


@pytest.mark.parametrize(
    ("line", "example", "message"),
    [
        ("i j, i j -> i j", lambda: ((torch.rand(1, 4), torch.rand(1, 4)), {}), "could be split along i of its rule"),
        ("*d, *d -> *d", lambda: ((torch.rand(4, 1), torch.rand(4, 1)), {}), "could be split along d1 of its rule"),
        ("*d, *d -> *d", lambda: ((torch.tensor(1.0), torch.tensor(2.0)), {}), "could be split along d of its rule"),
        ("i, i -> i", lambda: ((torch.rand(4) < 0.5, torch.rand(4)), {}), None),
        ("+i, +i -> i", lambda: ((torch.rand(4) < 0.5, torch.rand(4)), {}), "could have partial sums as x, y, which"),
        ("+i, +i -> i", lambda: ((torch.rand(4),), {}), "could have partial sums as y, which"),
        ("+i, +i -> i", lambda: ((torch.full((4,), torch.inf), torch.rand(4)), {}), "could have partial sums as x, "),
        ("+i, +i -> i", lambda: ((torch.zeros(4), torch.rand(4)), {}), None),
    ],
)
def test_all_that_a_rule_says_must_have_been_tried(line: str, example: Any, message: str | None) -> None:
    if message is None:
        hap.register_rule(plus, line, proof=example, debug=True)
    else:
        with pytest.raises(RuleError, match=message):
            hap.register_rule(plus, line, proof=example, debug=True)
        assert REGISTERED == {}


def test_examples_may_try_a_rule_together() -> None:
    shapes = itertools.cycle([(1, 4), (4, 1)])

    def example() -> tuple[tuple[Any, ...], dict[str, Any]]:
        shape = next(shapes)
        return (torch.randn(shape), torch.randn(shape)), {}

    hap.register_rule(plus, "+i j, +i j -> i j", proof=example, debug=True)


@torch.library.custom_op("hap_test::clamped", mutates_args=())
def clamped(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(min=-1e3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_is_linear_only_near_the_example_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(RuleError, match=r"P -> P, result 0 .* differs"):
        hap.register_rule(clamped, "~*d -> *d", proof=lambda: ((torch.randn(3, 4, dtype=dtype),), {}), debug=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex64])
def test_rounding_of_large_summands_is_no_mistake(dtype: torch.dtype) -> None:
    def example() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(3, 64, dtype=dtype), torch.randn(64, 2, dtype=dtype)), {}

    hap.register_rule(outer_sum, LINE, proof=example, debug=True)


@torch.library.custom_op("hap_test::heads", mutates_args=())
def heads(x: torch.Tensor, count: int) -> torch.Tensor:
    """Softmax within each of ``count`` parts of the last dimension."""
    return x.unflatten(-1, (count, -1)).softmax(-1).flatten(-2)


def test_an_argument_gives_the_sizes_of_a_product() -> None:
    hap.register_rule(heads, "b (h d!) -> b (h d!) size count=h", debug=True)
    with pytest.raises(RuleError, match="wrong"):
        hap.register_rule(heads, "b (h d) -> b (h d) size count=h", debug=True, replace=True)

"""hap's own operators against PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import hap.operators  # noqa: F401

ops = torch.ops.hap
RNG = torch.tensor([7, 3])


def attention_inputs(case: str) -> tuple[list[torch.Tensor], torch.Tensor | None, bool, bool]:
    """Query, key, value (of different strides), mask, causal, grouped queries."""
    torch.manual_seed(0)
    heads = 2 if case == "grouped" else 4
    features = 3 if case == "narrow values" else 6
    q = torch.randn(2, 5, 4, 6, dtype=torch.float64).transpose(1, 2)
    k, v = (torch.randn(2, heads, 7, size, dtype=torch.float64) for size in (6, features))
    mask: torch.Tensor | None = None
    if case == "boolean mask":
        mask = torch.rand(2, 1, 5, 7) < 0.6
        mask[..., 0] = True
    elif case == "row without keys":
        mask = torch.ones(5, 7, dtype=torch.bool)
        mask[2] = False
    elif case in ("mask", "learned mask"):
        mask = torch.randn(1, 4, 5, 7, dtype=torch.float64, requires_grad=case == "learned mask")
    elif case == "three dimensions":
        q, k, v = (x[0] for x in (q, k, v))
    return [x.requires_grad_() for x in (q, k, v)], mask, case == "causal", case == "grouped"


CASES = [
    "plain", "causal", "boolean mask", "row without keys", "mask", "learned mask", "grouped", "narrow values",
    "three dimensions",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_attention_equals_pytorch(case: str) -> None:
    (q, k, v), mask, causal, gqa = attention_inputs(case)
    leaves = [q, k, v] + ([mask] if case == "learned mask" else [])
    out, lse = ops.sdpa(q, k, v, mask, None, 0.0, causal, 0.3, gqa, 0)
    expected = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=0.3, enable_gqa=gqa)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-14)
    assert lse.is_contiguous()
    grad = torch.randn_like(out)
    got = torch.autograd.grad(out, leaves, grad)
    for mine, theirs, leaf in zip(got, torch.autograd.grad(expected, leaves, grad), leaves, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)
        assert mine.stride() == leaf.stride()


@pytest.mark.parametrize("order", ["features apart", "one row for all"])
@pytest.mark.parametrize("which", ["q", "k", "v", "grad", "all"])
def test_attention_of_tensors_in_any_memory_order(which: str, order: str) -> None:
    torch.manual_seed(1)

    def tensor(name: str) -> torch.Tensor:
        if which not in (name, "all"):
            return torch.randn(2, 3, 40, 4)
        if order == "features apart":
            return torch.randn(2, 3, 4, 40).transpose(-1, -2)
        return torch.randn(2, 3, 1, 4).expand(2, 3, 40, 4)

    leaves = [tensor(name).requires_grad_() for name in ("q", "k", "v")]
    grad = tensor("grad")
    out = ops.sdpa(*leaves, None, None, 0.0, False, 0.3, False, 0)[0]
    q, k, v = leaves
    expected = (q @ k.mT * 0.3).softmax(-1) @ v
    torch.testing.assert_close(out, expected)
    for mine, theirs in zip(*(torch.autograd.grad(x, leaves, grad) for x in (out, expected)), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("case", ["plain", "learned mask", "grouped"])
def test_attention_is_a_well_formed_operator(case: str) -> None:
    (q, k, v), mask, causal, gqa = attention_inputs(case)
    torch.library.opcheck(ops.sdpa.default, (q, k, v, mask, RNG, 0.5, causal, 0.3, gqa, 1))
    torch.library.opcheck(ops.dropout.default, (q, RNG, 0.5, 1))


def test_attention_with_dropout_has_the_gradient_of_its_forward() -> None:
    (q, k, v), mask, causal, gqa = attention_inputs("plain")
    assert torch.autograd.gradcheck(lambda *x: ops.sdpa(*x, mask, RNG, 0.4, causal, 0.3, gqa, 2)[0], (q, k, v))


def window(sizes: list[int], dim: int, start: int, length: int) -> tuple[list[int], list[int], list[int]]:
    """The box of a tensor narrowed along one dimension."""
    starts, lengths = [0] * len(sizes), list(sizes)
    starts[dim], lengths[dim] = start, length
    return sizes, starts, lengths


def test_attention_split_by_heads_or_batch_drops_the_same_weights() -> None:
    (q, k, v), *_ = attention_inputs("plain")
    attributes = (0.4, False, 0.3, False, 6)
    with torch.no_grad():
        out, lse = ops.sdpa(q, k, v, None, RNG, *attributes)
        grads = ops.sdpa_backward(out, q, k, v, out, lse, None, RNG, *attributes, False)
        for dim, offset, units in ((0, 1, 1), (1, 1, 2)):
            box = window([2, 4, 5, 7], dim, offset, units)
            part = [x.narrow(dim, offset, units) for x in (q, k, v)]
            local, local_lse = ops.sdpa(*part, None, RNG, *attributes, *box)
            torch.testing.assert_close(local, out.narrow(dim, offset, units), rtol=1e-13, atol=1e-15)
            got = ops.sdpa_backward(local, *part, local, local_lse, None, RNG, *attributes, False, *box)
            for mine, whole in zip(got[:3], grads[:3], strict=True):
                torch.testing.assert_close(mine, whole.narrow(dim, offset, units), rtol=1e-12, atol=1e-14)


def test_flops_are_those_of_pytorch() -> None:
    def counted(call: Any) -> int:
        with FlopCounterMode(display=False) as counter:
            call().sum().backward()
        return counter.get_total_flops()

    (q, k, v), *_ = attention_inputs("plain")
    mine = counted(lambda: ops.sdpa(q, k, v, None, None, 0.0, False, 0.3, False, 0)[0])
    # PyTorch's attention as plain mathematics keeps the weights: its backward has one multiplication fewer.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        theirs = counted(lambda: F.scaled_dot_product_attention(q, k, v))
    assert mine - theirs == 2 * 2 * 4 * 5 * 7 * 6

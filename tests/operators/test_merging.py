"""Attention over parts of the keys, put together, against attention over all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hap.operators.merging import merged, summand
from hap.operators.stretch import elements, positions

sdpa = torch.ops.hap.sdpa
PARTS = ([3, 4], [0, 5, 2], [1, 1, 5])
LARGE = [(dtype, number) for dtype in (torch.float64, torch.float32) for number in (-1e4, -1e9)]
LARGE += [(dtype, torch.finfo(lowest).min) for dtype, lowest in (
    (torch.float64, torch.float64), (torch.float64, torch.float32), (torch.float32, torch.float32),
)]  # fmt: skip


def mask(dtype: torch.dtype, large: float) -> torch.Tensor:
    """Rows: all keys seen, none; all masked by the number, some of each part, one part, all or some beside infinity."""
    mask = torch.zeros(8, 7, dtype=dtype)
    mask[1] = -torch.inf
    mask[2] = large
    mask[3, ::2] = large
    mask[4, :3] = -torch.inf
    mask[5, 3:] = large
    mask[6] = large
    mask[6, 4:6] = -torch.inf
    mask[7, 1:] = large
    mask[7, 0] = -torch.inf
    return mask


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(("dtype", "large"), LARGE)
def test_parts_add_up_to_the_whole(parts: list[int], dtype: torch.dtype, large: float) -> None:
    torch.manual_seed(1)
    q, k, v, grad = (torch.randn(2, 3, n, f, dtype=dtype) for n, f in ((8, 4), (7, 4), (7, 5), (8, 5)))
    bias = mask(dtype, large)
    tolerance: dict[str, Any] = (
        {"rtol": 1e-11, "atol": 1e-13} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-6}
    )

    leaves = [x.clone().requires_grad_() for x in (q, k, v, bias)]
    nothing = (bias == -torch.inf).all(-1, keepdim=True)
    scores = (leaves[0] @ leaves[1].mT * 0.5 + leaves[3]).masked_fill(nothing, 0.0)
    expected = scores.softmax(-1).masked_fill(nothing, 0.0) @ leaves[2]
    expected_grads = torch.autograd.grad(expected, leaves, grad)

    each = [(k, v, bias), *zip(k.split(parts, 2), v.split(parts, 2), bias.split(parts, 1), strict=True)]
    (whole, whole_lse), *each_out = [sdpa(q, *ours, None, 0.0, False, 0.5, False, 0) for ours in each]
    torch.testing.assert_close(whole, expected.detach(), **tolerance)
    assert torch.all(whole_lse[:, :, 1, 0] == -torch.inf)
    assert torch.all(whole[:, :, 1] == 0)

    rows = torch.stack([lse for _, lse in each_out])
    summands = [summand(out, rows, part) for part, (out, _) in enumerate(each_out)]
    out, lse = each_out[0]
    for other in each_out[1:]:
        out, lse = merged(out, lse, *other)
    for total, total_lse in ((sum(out for out, _ in summands), summands[0][1]), (out, lse)):
        torch.testing.assert_close(total, whole, **tolerance)
        torch.testing.assert_close(total_lse[..., 0], whole_lse[..., 0], **tolerance)
        # The log-sum-exp is the sum of the two: how it is divided may differ by a rounding.
        seen = whole_lse[..., 0] != -torch.inf
        gap = (total_lse - whole_lse).sum(-1)[seen]
        torch.testing.assert_close(gap, torch.zeros_like(gap), **tolerance)

    for given, pieces in ((whole_lse, each[:1]), (lse, each[1:])):
        grads = [
            torch.ops.hap.sdpa_backward(
                grad, q, *ours[:2], whole, given, ours[2], None, 0.0, False, 0.5, False, 0, True
            )
            for ours in pieces
        ]
        every_q, every_k, every_v, every_mask = zip(*grads, strict=True)
        got = (sum(every_q), torch.cat(every_k, 2), torch.cat(every_v, 2), torch.cat(every_mask, 1))
        for mine, theirs in zip(got, expected_grads, strict=True):
            torch.testing.assert_close(mine, theirs, **tolerance)


@pytest.mark.parametrize("masked", [False, True])
def test_a_share_of_the_queries_sees_the_keys_up_to_its_positions(masked: bool) -> None:
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, 3, 12, 4, dtype=torch.float64) for _ in range(3))
    bias = torch.randn(12, 12, dtype=torch.float64) if masked else None
    out, lse = sdpa(q, k, v, bias, None, 0.0, True, 0.5, False, 0)
    grad = torch.randn_like(out)
    whole = torch.ops.hap.sdpa_backward(grad, q, k, v, out, lse, bias, None, 0.0, True, 0.5, False, 0, False)
    sums = [torch.zeros_like(k), torch.zeros_like(v)]
    for stretch in ([2, 3, 2, 0, 1], [2, 3, 2, 1, 2]):
        at = positions(stretch)
        assert len(at) == elements(stretch)
        own = None if bias is None else bias[at]
        part = sdpa(q[:, :, at], k, v, own, None, 0.0, True, 0.5, False, 0, queries=stretch)
        torch.testing.assert_close(part[0], out[:, :, at], rtol=1e-12, atol=1e-14)
        grads = torch.ops.hap.sdpa_backward(
            grad[:, :, at], q[:, :, at], k, v, *part, own, None, 0.0, True, 0.5, False, 0, False, queries=stretch
        )
        torch.testing.assert_close(grads[0], whole[0][:, :, at], rtol=1e-11, atol=1e-13)
        sums = [total + grad for total, grad in zip(sums, grads[1:3], strict=True)]
    for total, expected in zip(sums, whole[1:3], strict=True):
        torch.testing.assert_close(total, expected, rtol=1e-11, atol=1e-13)

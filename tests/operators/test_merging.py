"""Attention over parts of the keys, put together, against attention over all of them."""

from __future__ import annotations

import pytest
import torch

from hap.operators.merging import merged, summand
from hap.operators.stretch import elements, positions

sdpa = torch.ops.hap.sdpa
LOWEST = torch.finfo(torch.float64).min
PARTS = ([3, 4], [0, 5, 2], [1, 1, 5])


def mask() -> torch.Tensor:
    """Rows: all keys seen, none, all masked by the lowest number, some of each part masked, one part masked."""
    mask = torch.zeros(6, 7, dtype=torch.float64)
    mask[1] = -torch.inf
    mask[2] = LOWEST
    mask[3, ::2] = LOWEST
    mask[4, :3] = -torch.inf
    mask[5, 3:] = LOWEST
    return mask


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("features", [4, 3])  # the flash kernel, and plain mathematics
def test_parts_add_up_to_the_whole(parts: list[int], features: int) -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 3, n, f, dtype=torch.float64) for n, f in ((6, 4), (7, 4), (7, features)))
    whole = sdpa(q, k, v, mask(), None, 0.0, False, 0.5, False, 0)
    each = [
        sdpa(q, *ours, None, 0.0, False, 0.5, False, 0)
        for ours in zip(k.split(parts, 2), v.split(parts, 2), mask().split(parts, 1), strict=True)
    ]
    rows = torch.stack([lse for _, lse in each])
    summands = [summand(out, rows, parts, part) for part, (out, _) in enumerate(each)]
    torch.testing.assert_close(sum(out for out, _ in summands), whole[0], rtol=1e-12, atol=1e-14)
    for _, lse in summands:
        torch.testing.assert_close(lse, whole[1], rtol=1e-12, atol=1e-14)
    out, lse = each[0]
    for part in range(1, len(parts)):
        out, lse = merged(out, lse, sum(parts[:part]), *each[part], parts[part])
    torch.testing.assert_close(out, whole[0], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(lse, whole[1], rtol=1e-12, atol=1e-14)
    assert torch.all(whole[1][:, :, 1] == -torch.inf)
    assert torch.all(whole[0][:, :, 1] == 0)


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

"""Random operators: distributions, independence, and parts that are parts of the whole."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import hap.operators  # noqa: F401
from hap.operators import random as operators
from hap.operators.philox import words_by_operators

ops = torch.ops.hap
CPU = torch.device("cpu")
RNG = torch.tensor([7, 3])
COUNT = 100_000
FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
FILLS: dict[str, tuple[Any, ...]] = {"rand": (), "randn": (), "bernoulli": (0.3,), "randint": (-2, 9)}


def filled(name: str, shape: list[int], *window: list[int], index: int = 5, rng: torch.Tensor = RNG,
           dtype: torch.dtype = torch.float32) -> torch.Tensor:  # fmt: skip
    result: torch.Tensor = getattr(ops, name)(rng, shape, *FILLS[name], index, dtype, CPU, *window)
    return result


def boxes(seed: int) -> list[tuple[list[int], list[int], list[int]]]:
    """Boxes of tensors of [4, 6, 5, 7], viewed as more dimensions too; some narrow several dimensions, some none."""
    generator = random.Random(seed)
    found = []
    for sizes in ([4, 6, 5, 7], [2, 2, 3, 2, 5, 7], [4, 6, 35]):
        for _ in range(4):
            starts = [generator.choice([0, generator.randrange(size)]) for size in sizes]
            lengths = [generator.randint(0, size - start) for size, start in zip(sizes, starts, strict=True)]
            found.append((sizes, starts, lengths))
        found.append((sizes, [0] * len(sizes), sizes))
    return found


def part(whole: torch.Tensor, sizes: list[int], starts: list[int], lengths: list[int]) -> torch.Tensor:
    whole = whole.view(sizes)
    for dim, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        whole = whole.narrow(dim, start, length)
    return whole


@pytest.mark.parametrize("name", FILLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_part_is_that_part_of_the_whole(name: str, dtype: torch.dtype) -> None:
    whole = filled(name, [4, 6, 5, 7], dtype=dtype)
    for box in boxes(1):
        local = filled(name, box[2], *box, dtype=dtype)
        # A vectorised logarithm may round in another way at the end of a run.
        torch.testing.assert_close(local, part(whole, *box), rtol=1e-15 if name == "randn" else 0, atol=0)


def test_a_part_of_dropout_has_that_part_of_the_mask() -> None:
    whole = ops.dropout(torch.ones(4, 6, 5, 7), RNG, 0.3, 4)
    for box in boxes(2):
        strided = torch.ones([*box[2][::-1]]).permute(*range(len(box[2]) - 1, -1, -1))
        assert torch.equal(ops.dropout(strided, RNG, 0.3, 4, *box), part(whole, *box))


@pytest.mark.parametrize("name", FILLS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_other_devices_draw_the_same(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = filled(name, [50, 7], dtype=dtype)
    monkeypatch.setattr(operators, "words", words_by_operators)
    assert torch.equal(filled(name, [50, 7], dtype=dtype), expected)


@pytest.mark.parametrize("p", [0.0, 1e-4, 0.25, 0.9, 1 - 1e-12, 1.0])
def test_dropout_keeps_the_right_share(p: float) -> None:
    kept = ops.dropout(torch.ones(COUNT, dtype=torch.bfloat16), RNG, p, 0)
    share = (kept != 0).double().mean().item()
    # Five standard deviations of a binomial share.
    assert abs(share - (1 - p)) <= 5 * (p * (1 - p) / COUNT) ** 0.5
    if p < 1:
        assert kept.max().item() in (0.0, torch.tensor(1 / (1 - p)).bfloat16().item())
    if p in (0.0, 1.0):
        assert bool((kept == 1 - p).all())


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_numbers(dtype: torch.dtype) -> None:
    drawn = filled("rand", [COUNT], dtype=dtype)
    assert drawn.dtype == dtype
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) < 1
    # As many digits as the type has, and no more.
    scaled = drawn.double() * 2.0 ** {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}[dtype]
    assert torch.equal(scaled, scaled.round())
    assert bool((scaled % 2 == 1).any())
    # Chi-square over 64 cells: mean 63, standard deviation sqrt(126).
    counts = torch.bincount((drawn.double() * 64).long(), minlength=64).double()
    assert abs(float(((counts - COUNT / 64) ** 2 / (COUNT / 64)).sum()) - 63) < 5 * 126**0.5


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal_numbers(dtype: torch.dtype) -> None:
    drawn = filled("randn", [COUNT], dtype=dtype)
    assert drawn.dtype == dtype
    # Equally likely cells, by the distribution function, wider than the steps of half precision.
    cells = (torch.special.ndtr(drawn.double()) * 16).long()
    counts = torch.bincount(cells, minlength=16).double()
    assert abs(float(((counts - COUNT / 16) ** 2 / (COUNT / 16)).sum()) - 15) < 5 * 30**0.5
    assert 4 < float(drawn.abs().max()) < 6


def test_whole_numbers_cover_their_range() -> None:
    drawn = filled("randint", [COUNT], dtype=torch.int64)
    counts = torch.bincount(drawn + 2, minlength=11).double()
    assert len(counts) == 11
    assert abs(float(((counts - COUNT / 11) ** 2 / (COUNT / 11)).sum()) - 10) < 5 * 20**0.5
    large = ops.randint(RNG, [1000], 0, 2**63 - 1, 5, torch.int64, CPU)
    assert len(large.unique()) == 1000
    assert int(large.max()) > 2**62


def test_independent_of_operators_steps_seeds_and_positions() -> None:
    """No pair of streams is correlated, nor a stream with itself at another position."""
    first = filled("rand", [COUNT])
    others = [filled("rand", [COUNT], index=index) for index in (0, 4, 6, 5 + 2**16)]
    others += [filled("rand", [COUNT], rng=torch.tensor([7, step])) for step in (2, 4, 5, 3 + 2**16)]
    others += [filled("rand", [COUNT], rng=torch.tensor([seed, 3])) for seed in (6, 8, -8, 7 + 2**32, 3)]
    others += [filled("rand", [COUNT], rng=torch.tensor([7, 5]), index=3)]
    others += [first.roll(lag) for lag in (1, 2, 3, 4, 5, 8, 64, 100, 1000, 1024)]
    correlations = torch.corrcoef(torch.stack([first, *others]).double())
    assert float((correlations - torch.eye(len(correlations))).abs().max()) < 5 / COUNT**0.5
    # Masks too: as often kept by both as chance has it.
    masks = torch.stack([ops.dropout(torch.ones(COUNT), torch.tensor([7, step]), 0.5, index) for step in (0, 1, 2)
                         for index in (0, 1, 2)]) / 2  # fmt: skip
    both = (masks @ masks.T) / COUNT
    assert float((both - 0.25 - 0.25 * torch.eye(9)).abs().max()) < 5 * (3 / 16 / COUNT) ** 0.5

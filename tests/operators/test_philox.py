"""Random words: published answers, two implementations that agree, and windows that hold what stands in the whole."""

from __future__ import annotations

import random

import pytest
import torch

from hap import _core
from hap.operators.philox import words, words_by_operators

# Counter, key and answer of Philox4x32-10, as published with Random123 (kat_vectors).
KNOWN_ANSWERS = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def signed(word: int, bits: int) -> int:
    return word - (1 << bits) if word >> (bits - 1) else word


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]) -> None:
    block, step, index = counter[0] + (counter[1] << 32), counter[2], counter[3]
    rng = torch.tensor([signed(key[0] + (key[1] << 32), 64), step])
    expected = [signed(word, 32) for word in answer]
    if block < 1 << 61:  # positions are counted by 64 bits
        assert words(rng, index, [4 * block + 4], [4 * block], [4]).tolist() == expected
        assert words_by_operators(rng, index, [4 * block + 4], [4 * block], [4]).tolist() == expected
    else:
        from hap.operators.philox import _philox

        drawn = _philox(torch.tensor([signed(block, 64)]), rng, index)
        assert [signed(int(word), 32) for word in drawn] == expected


@pytest.mark.parametrize("large", [1, 1 << 20, 1 << 40])
def test_the_two_implementations_agree_on_windows_of_any_tensor(large: int) -> None:
    generator = random.Random(large)
    for _ in range(60):
        sizes = [large, *(generator.randint(1, 7) for _ in range(generator.randint(0, 3))), generator.randint(1, 40)]
        starts = [generator.randrange(size + 1) for size in sizes]
        lengths = [generator.randint(0, min(9, size - start)) for size, start in zip(sizes, starts, strict=True)]
        for dim in range(generator.randint(1, len(sizes)), len(sizes)):  # whole, so that runs are long
            starts[dim], lengths[dim] = 0, sizes[dim]
        rng = torch.tensor([signed(generator.getrandbits(64), 64), generator.getrandbits(32)])
        index = generator.getrandbits(32)
        drawn = words(rng, index, sizes, starts, lengths)
        assert torch.equal(drawn, words_by_operators(rng, index, sizes, starts, lengths)), (sizes, starts, lengths)
        for position in ([0] * len(sizes), [length - 1 for length in lengths]):
            if drawn.numel():
                at = [start + one for start, one in zip(starts, position, strict=True)]
                assert torch.equal(words(rng, index, sizes, at, [1] * len(sizes)).view(()), drawn[tuple(position)])


def test_words_far_apart_differ() -> None:
    """Positions, steps, operators and seeds of which only high bits differ give other words."""
    rng = torch.tensor([7, 3])
    first = words(rng, 5, [1 << 60], [0], [64])
    for bit in (2, 31, 32, 33, 34, 59):
        assert not torch.equal(words(rng, 5, [1 << 60], [(1 << bit) - 64 * (bit == 59)], [64]), first)
    for bit in (0, 31):
        assert not torch.equal(words(torch.tensor([7, 3 ^ 1 << bit]), 5, [64], [0], [64]), first)
        assert not torch.equal(words(rng, 5 ^ 1 << bit, [64], [0], [64]), first)
    for seed in (6, 7 + (1 << 32), -7):
        assert not torch.equal(words(torch.tensor([seed, 3]), 5, [64], [0], [64]), first)


def test_wrong_windows_are_errors() -> None:
    with pytest.raises(ValueError, match="1 sizes, 2 starts and 1 lengths"):
        _core.random_words(0, 0, 0, [3], [0, 0], [3])
    with pytest.raises(ValueError, match="dimension 1 of the window has 2 units from 3 on, but the tensor has 4"):
        _core.random_words(0, 0, 0, [2, 4], [0, 3], [2, 2])
    with pytest.raises(ValueError, match="more positions than 64 bits can count"):
        _core.random_words(0, 0, 0, [1 << 40, 1 << 40], [0, 0], [1, 1])
    with pytest.raises(OverflowError):
        _core.random_words(0, 1 << 32, 0, [3], [0], [3])

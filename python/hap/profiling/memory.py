"""Where the operands of heavy operators lie.

Where addresses clash in the caches, some kernels take several times as long. So in each lot of rounds operands lie at
other distances from each other. Their memory is the same in all lots: were it freed, larger results would sometimes lie
there, and sometimes in memory that the system had to clear first, as in training.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TypeAlias

import torch

# Addresses clash where they are the same within a page of so many bytes, cut in lines of so many.
PAGE, LINE = 4096, 64
# Lines between one operand and the next in the first lot, and how many more they are from lot to lot.
FIRST, STEP = 5, 13

Values: TypeAlias = Callable[..., torch.Tensor]
"""Makes an operand of some shape."""


class Operands:
    """The operands of one family in one element type, made in the same order in each lot.

    Args:
        pool: the numbers that they hold, more than the largest operand and a page.
    """

    def __init__(self, pool: torch.Tensor) -> None:
        self._pool = pool.view(-1)
        self._memory: list[torch.Tensor] = []

    def lot(self, number: int) -> Values:
        """The operands of a lot, from 0: each call makes the next one."""
        counter = itertools.count()

        def values(*shape: int) -> torch.Tensor:
            position, size = next(counter), math.prod(shape)
            if position == len(self._memory):
                self._memory.append(self._pool[: size + PAGE // self._pool.itemsize].clone())
            line = (position + 1) * (FIRST + STEP * number) % (PAGE // LINE)
            start = line * LINE // self._pool.itemsize
            return self._memory[position][start : start + size].view(shape)

        return values

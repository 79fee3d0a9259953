"""Operands of heavy operators: the same memory in all lots, at other distances from each other."""

import itertools

import torch

from hap.profiling.memory import LINE, PAGE, Operands
from hap.profiling.operators import LOTS

POOL = torch.arange(4096.0)
SHAPES = ((3, 5), (64, 2), (7,))


def lots():
    operands = Operands(POOL)
    made = [operands.lot(lot) for lot in range(LOTS)]
    return [[values(*shape) for shape in SHAPES] for values in made]


def test_operands_hold_numbers_of_the_pool():
    for operands in lots():
        assert [tuple(each.shape) for each in operands] == list(SHAPES)
        for each in operands:
            assert each.is_contiguous()
            assert each.dtype == POOL.dtype
            first = int(each.view(-1)[0])
            assert torch.equal(each.view(-1), POOL[first : first + each.numel()])


def test_all_lots_have_the_same_memory():
    first, *others = lots()
    for operands in others:
        for one, other in zip(first, operands, strict=True):
            assert one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def test_distances_within_a_page_differ_by_lot():
    distances = []
    for operands in lots():
        assert all(each.data_ptr() % LINE == 0 for each in operands)
        pairs = itertools.pairwise(each.storage_offset() * each.itemsize for each in operands)
        distances.append([(behind - before) % PAGE for before, behind in pairs])
    for by_lot in zip(*distances, strict=True):
        assert len(set(by_lot)) == LOTS
        assert 0 not in by_lot

"""The union-find of axes."""

from __future__ import annotations

from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from hap.rules.axes import Factor, inner_products, leaves, unify


def factors(*sizes: int) -> list[Factor]:
    return [Factor(size) for size in sizes]


def sizes(*dims: list[Factor]) -> list[int]:
    return [leaf.size for dim in dims for leaf in leaves(dim)]


def test_flatten_keeps_batch_and_sequence_apart() -> None:
    batch, sequence = factors(4), factors(6)
    flat = factors(24)
    assert unify(flat, batch + sequence)
    assert leaves(flat) == leaves(batch + sequence)
    assert sizes(flat) == [4, 6]


def test_fused_projection_becomes_three_heads_and_features() -> None:
    weight = factors(2304)
    assert unify(weight, factors(3, 12, 64))
    heads = factors(12, 64)
    assert inner_products(factors(768), weight) == [1]  # a whole leaf that is not refined yet shares nothing
    assert inner_products(heads, weight) == [1, 64, 768]


def test_grouped_queries_meet_rotary() -> None:
    """Llama's queries are seen as [kv * rep, 64] by the projection, as [kv, rep] by attention, as [2, 32] by rotary."""
    queries = factors(1024)
    unify(queries, factors(16, 64))
    unify(queries, factors(4, 4, 64))
    unify(queries, factors(16, 2, 32))
    assert sizes(queries) == [4, 4, 2, 32]


def test_one_axis_twice() -> None:
    """A residual layer's weight is [H, H]: both dimensions are one axis, and stay two occurrences."""
    rows, columns = factors(8), factors(8)
    assert unify(rows, columns)
    assert leaves(rows) == leaves(columns)
    assert len(leaves(rows + columns)) == 2


def test_refining_one_occurrence_refines_the_other() -> None:
    axis = factors(8)
    twice = axis + axis
    assert unify(twice, factors(2, 4, 2, 4))
    assert sizes(axis) == [2, 4]
    assert sizes(twice) == [2, 4, 2, 4]


def test_only_the_middle_is_cut() -> None:
    left, right = factors(5, 4, 6, 7), factors(5, 6, 4, 7)
    assert not unify(left, right)
    first, second = leaves(left), leaves(right)
    assert [leaf.size for leaf in first] == [5, 4, 6, 7]
    assert first[0] is second[0]
    assert first[3] is second[3]
    assert set(first[1:3]).isdisjoint(second[1:3])


def test_equal_sizes_are_not_the_same_axis() -> None:
    a, b = factors(6), factors(6)
    assert leaves(a) != leaves(b)


def test_sizes_zero_and_one_are_no_axis() -> None:
    assert sizes(factors(1, 3, 1)) == [3]
    assert unify(factors(0, 3), factors(0, 5))
    assert sizes(factors(1), factors(0)) == []


def test_inner_products_do_not_refine_the_smaller_side() -> None:
    large = factors(7680)  # 40 query, 10 key and 10 value heads of 128
    unify(large, factors(60, 128))
    assert inner_products(factors(40, 128), large) == [1, 128]
    assert sizes(large) == [60, 128]


def test_inner_products_refine_only_where_few_pieces_remain() -> None:
    assert inner_products(factors(4), factors(12)) == [1, 4]
    assert inner_products(factors(4), factors(400)) == [1]


sizes_of_products = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(product=sizes_of_products, groups=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_factorings_of_one_product_unify(product: list[int], groups: list[int]) -> None:
    """Grouping neighbours and back again ends in the finest factoring, without a cut."""
    fine = factors(*product)
    coarse, rest = [], list(product)
    for count in groups:
        if rest:
            coarse.append(prod(rest[:count]))
            rest = rest[count:]
    coarse += rest
    grouped = factors(*coarse)
    assert unify(grouped, fine)
    assert leaves(grouped) == leaves(fine)
    assert sizes(grouped) == [size for size in product if size > 1]


@settings(max_examples=100, deadline=None)
@given(left=sizes_of_products, right=sizes_of_products)
def test_any_factorings_stay_consistent(left: list[int], right: list[int]) -> None:
    """Products are kept whatever is cut, and a second time finds the same."""
    a, b = factors(*left, prod(right)), factors(*right, prod(left))
    whole = unify(a, b)
    assert prod(sizes(a)) == prod(sizes(b)) == prod(left) * prod(right)
    assert whole == (leaves(a) == leaves(b))
    before = (leaves(a), leaves(b))
    assert unify(a, b) == whole
    assert (leaves(a), leaves(b)) == before

"""The order of merges: one expression for a number of segments, however they arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrff.sweeps.merge_order import OrderedMerge, chains, n_waiting_sums


def bracketed(first, second):
    return f"({first}+{second})"


def merged(order):
    merge = OrderedMerge(len(order), bracketed)
    for index in order:
        merge.add(index, str(index))
    return merge.result()


@given(n=st.integers(1, 300), data=st.data())
def test_any_order_of_arrival_gives_the_same_expression(n, data):
    order = data.draw(st.permutations(range(n)))
    expression = merged(order)
    assert expression == merged(range(n))
    # Every sum once, in order: addition that is associative but not commutative gets its due.
    names = expression.replace("(", "").replace(")", "").split("+")
    assert names == [str(i) for i in range(n)]


def test_small_expressions():
    assert merged(range(1)) == "0"
    assert merged(range(2)) == "(0+1)"
    assert merged(range(3)) == "((0+1)+2)"
    assert merged(range(5)) == "(((0+1)+(2+3))+4)"
    assert merged([6, 5, 4, 3, 2, 1, 0]) == "(((0+1)+(2+3))+((4+5)+6))"


@given(n=st.integers(1, 2000))
def test_the_tree_is_no_deeper_than_it_must_be(n):
    expression = merged(range(n))
    depth = deepest = 0
    for character in expression:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    assert deepest == (n - 1).bit_length()


@given(n_segments=st.integers(1, 10_000))
def test_in_order_one_sum_a_level_waits(n_segments):
    n_chains = len(chains(n_segments))
    merge = OrderedMerge(n_chains, lambda a, b: a + b)
    most = 0
    for index in range(n_chains):
        merge.add(index, 1)
        if index < n_chains - 1:
            most = max(most, merge.n_waiting)
    assert most <= n_waiting_sums(n_segments)
    assert most == 0 or most >= n_waiting_sums(n_segments) - 1  # what the plan counts is not more than that
    assert merge.n_waiting == 1
    assert merge.result() == n_chains


@given(n_segments=st.integers(1, 10_000))
def test_chains_cover_the_segments(n_segments):
    parts = chains(n_segments)
    assert [segment for part in parts for segment in part] == list(range(n_segments))
    lengths = set(map(len, parts))
    assert max(lengths) - min(lengths) <= 1
    assert min(lengths) >= 1
    assert max(lengths) <= 8
    assert len(parts) >= min(n_segments, 16)
    assert len(parts) <= max(16, n_segments / 8 + 1)


@pytest.mark.parametrize("n", [2, 5, 16])
def test_a_missing_sum_is_noticed(n):
    for missing in range(n):
        merge = OrderedMerge(n, bracketed)
        for index in range(n):
            if index != missing:
                merge.add(index, str(index))
        with pytest.raises(RuntimeError, match="were not merged"):
            merge.result()

"""The order of merges: one expression for a number of segments, however they arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrff.engine.reduction import OrderedMerge, n_levels


def bracketed(expression, neighbours):
    for neighbour, is_before in neighbours:
        first, second = (neighbour, expression) if is_before else (expression, neighbour)
        expression = f"({first}+{second})"
    return expression


def added(number, neighbours):
    return number + sum(neighbour for neighbour, _ in neighbours)


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
    # Every partial once, in order: addition need not be commutative.
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


@given(n=st.integers(1, 3000))
def test_in_order_one_partial_a_level_waits(n):
    merge, most = OrderedMerge(n, added), 0
    for index in range(n - 1):
        merge.add(index, 1)
        most = max(most, merge.n_waiting)
    assert n_levels(n) == (n - 1).bit_length()
    # No more than the plan counts, and no less than all but one of it.
    assert n_levels(n) - 1 <= most <= n_levels(n)
    merge.add(n - 1, 1)
    assert merge.n_waiting == 1
    assert merge.result() == n


@given(n=st.integers(2, 500), data=st.data())
def test_behind_a_late_one_two_a_level_wait(n, data):
    late = data.draw(st.integers(0, n - 1))
    merge, most = OrderedMerge(n, added), 0
    for index in [*range(late), *range(late + 1, n)]:
        merge.add(index, 1)
        most = max(most, merge.n_waiting)
    assert most <= 2 * n_levels(n)
    merge.add(late, 1)
    assert merge.result() == n


@pytest.mark.parametrize("n", [2, 5, 16])
def test_a_missing_partial_is_noticed(n):
    for missing in range(n):
        merge = OrderedMerge(n, bracketed)
        for index in range(n):
            if index != missing:
                merge.add(index, str(index))
        with pytest.raises(RuntimeError, match="were not merged"):
            merge.result()


@given(n=st.integers(2, 300), data=st.data())
def test_what_one_arrival_makes_possible_is_one_merge(n, data):
    merges = []

    def merging(number, neighbours):
        merges.append(1)
        return added(number, neighbours)

    merge = OrderedMerge(n, merging)
    for index in data.draw(st.permutations(range(n))):
        before = len(merges)
        merge.add(index, 1)
        assert len(merges) <= before + 1
    assert merge.result() == n

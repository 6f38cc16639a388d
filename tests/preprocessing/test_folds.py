"""Folds: a function of row number and seed, even over every regular order of rows."""

from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from distrff.errors import InputError
from distrff.preprocessing.folds import (
    FOLD_RULES,
    ContiguousFolds,
    HashFolds,
    Keys,
    OneHeldOut,
    folds_by,
    group_hashes,
)
from distrff.utils.random import row_hash
from tests.support.draws import of_rows, seed_of

# A chi-square test at a level that all comparisons of a test pass in all but 1e-9 of the runs.
LEVEL = 1e-12


def fold_of(folds, start, stop):
    """The fold of each of some rows of a partition."""
    return folds.held_out(Keys(np.arange(start, stop))).numbers


def assert_even(counts, shares=None):
    expected = counts.sum() * (np.full(len(counts), 1 / len(counts)) if shares is None else shares)
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert chi2.sf(statistic, len(counts) - 1) > LEVEL


@pytest.mark.parametrize("n_folds", [2, 5, 7, 10])
def test_hashed_folds_are_balanced(rng, n_folds):
    fold = fold_of(HashFolds(n_folds, seed_of(rng)), 0, 200_000)
    assert fold.dtype == np.int64
    assert_even(np.bincount(fold, minlength=n_folds))


def test_hashed_folds_are_even_over_regular_orders(rng):
    """Rows of every phase of a raster or a daily rhythm, neighbours, and rows of other seeds."""
    seed = seed_of(rng)
    fold, other = (fold_of(HashFolds(5, s), 0, 200_000) for s in (seed, seed + 1))
    for period in (2, 3, 5, 8, 64, 1000):
        for phase in (0, period // 2, period - 1):
            assert_even(np.bincount(fold[phase::period], minlength=5))
    for lag in (1, 2, 5, 1000):
        pairs = 5 * fold[:-lag] + fold[lag:]
        # Pairs that share no row; with all of them the statistic would not be chi-square.
        pairs = pairs[np.arange(len(pairs)) // lag % 2 == 0]
        assert_even(np.bincount(pairs, minlength=25))
    assert_even(np.bincount(5 * fold + other, minlength=25))


@given(
    by=st.sampled_from(FOLD_RULES),
    n_rows=st.integers(1, 2000),
    n_folds=st.integers(2, 9),
    seed=st.integers(0, 2**70),
    data=st.data(),
)
def test_a_fold_does_not_depend_on_the_run_of_rows_it_is_asked_in(by, n_rows, n_folds, seed, data):
    folds = of_rows(folds_by(by, n_folds, seed), n_rows)
    whole = fold_of(folds, 0, n_rows)
    start = data.draw(st.integers(0, n_rows))
    stop = data.draw(st.integers(start, n_rows))
    np.testing.assert_array_equal(fold_of(folds, start, stop), whole[start:stop])
    assert whole.min() >= 0
    assert whole.max() < n_folds


@given(n_rows=st.integers(1, 3000), n_folds=st.integers(2, 20))
def test_contiguous_folds_are_runs_of_nearly_equal_length(n_rows, n_folds):
    fold = fold_of(ContiguousFolds(n_folds, n_rows), 0, n_rows)
    assert np.all(np.diff(fold) >= 0)
    counts = np.bincount(fold, minlength=n_folds)
    assert counts.sum() == n_rows
    assert counts.max() - counts.min() <= 1


def test_one_fold_held_out_is_the_first_of_five_and_numbers_may_be_large(rng):
    seed, n = seed_of(rng), 10_000
    keys = Keys(np.arange(100, n))
    judges = OneHeldOut(1, seed).held_out(keys)
    assert judges.numbers.dtype == np.int64
    np.testing.assert_array_equal(judges.rows, HashFolds(5, seed).held_out(keys).of(0))
    assert set(judges.numbers) == {0}
    n_rows, start = 10**13, 9 * 10**12
    for by in FOLD_RULES:
        fold = fold_of(of_rows(folds_by(by, 10, seed), n_rows), start, start + 100)
        assert np.all(fold == 9) if by == "contiguous" else len(set(fold)) > 3


def test_the_hash_has_64_even_bits(rng):
    bits = np.unpackbits(row_hash(np.arange(100_000, dtype=np.uint64), seed_of(rng)).view(np.uint8))
    ones = bits.reshape(100_000, 64).sum(axis=0)
    # Each bit is set in half of the rows: eight deviations of √n/2.
    assert np.abs(ones.astype(float) - 50_000).max() <= 8 * np.sqrt(100_000) / 2
    # Folds of Grams that are added must be the same rows; the values are SplitMix64's own for seed 0.
    assert row_hash(np.arange(2, dtype=np.uint64), 0).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


@pytest.mark.parametrize(
    "values",
    [
        [np.array([3, 1, 2]), np.array([3, 1, 2.0]), np.array([3, 1.0, True + 1], dtype=object)],
        [np.array(["b", "aa"]), np.array(["b", "aa"], dtype=object), np.array([b"b", b"aa"])],
        [np.array([2**63, 2**64 - 2048], np.uint64), np.array([2.0**63, 2.0**64 - 2048])],
        [np.array([2.5, 1e20, -1e30]), np.array([Decimal("2.5"), 10**20, np.float64(-1e30)], object)],
        [np.array([3, 2**53 + 1]), np.array([Decimal(3), Decimal(2**53 + 1)]), np.array([3, 2**53 + 1], "O")],
        [
            np.array(["2026-01-02"], "M8[D]"),
            np.array(["2026-01-02"], "M8[us]"),
            np.array([pd.Timestamp("2026-01-02")], object),
            np.array([pd.Timestamp("2026-01-02T01:00+01:00")], object),
            np.array([date(2026, 1, 2)], object),
        ],
        [np.array([36], "m8[h]"), np.array([pd.Timedelta("36h")], object)],
    ],
)
def test_equal_groups_have_equal_hashes_whatever_holds_them(values):
    first, *others = map(group_hashes, values)
    assert len(set(first.tolist())) == len(first)
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("kind", [object, "U", "S"])
def test_text_of_few_groups_and_of_many_has_the_same_hashes(kind):
    values = np.array(["b", "aa", "c"]).astype(kind)
    rows = np.array([2, 0, 0, 1, 2])
    np.testing.assert_array_equal(group_hashes(values[rows]), group_hashes(values)[rows])
    assert len(group_hashes(np.array([b"\xff", b"a"]))) == 2


def test_lists_are_no_groups():
    values = np.empty(3, object)
    values[:] = [[1], [2], [1]]
    with pytest.raises(InputError, match=r"groups must be numbers, text or times, got \[1\]"):
        group_hashes(values)


def test_the_hash_of_a_group_does_not_hang_on_the_rows_beside_it():
    values = np.array([1, "a", 2.5, "1", 7, 2**60 + 1, 2**70 + 1, True, pd.Timestamp(3)], dtype=object)
    apart = [group_hashes(np.array([value], dtype=object)) for value in values]
    np.testing.assert_array_equal(group_hashes(values), np.concatenate(apart))

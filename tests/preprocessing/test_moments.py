"""Weighted moments against two passes in a wider format, for any cuts and any layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from distrff.preprocessing.scaling import Moments

UNIT = 2.0**-53
WIDE = np.longdouble if np.finfo(np.longdouble).eps < 2.0**-60 else np.float64


def two_passes(X, s):
    """Weight, mean and squared deviations in long double; where that is float64, errors below double."""
    X, s = X.astype(WIDE), s.astype(WIDE)
    weight = s.sum()
    mean = (s[:, None] * X).sum(axis=0) / weight
    return weight, mean, (s[:, None] * (X - mean) ** 2).sum(axis=0)


def bounds(X, mean, weight, deviations, n_parts):
    """Rounding errors of mean and deviations after n rows and n_parts merges, each below its bound.

    One part: its mean is corrected by that of n deviations, each sum of which is off by n units of
    itself, and is rounded once; a merge adds a step that is a share of the spread and rounds four
    times. The deviations are sums of positive numbers, n + 10 units an element and merge, of
    quantities that depend on the means: (x − m)² moves by 2·spread·δ + δ² where m moves by δ.
    Doubled where there is no wider format to compare with.
    """
    n = len(X) + 10 * n_parts
    spread = np.abs(X - mean).max(axis=0)
    of_mean = UNIT * (2 * n * spread + 4 * (n_parts + 1) * np.abs(X).max(axis=0))
    of_deviations = n * UNIT * deviations + (n_parts + 1) * weight * of_mean * (2 * spread + of_mean)
    factor = 1 if WIDE is np.longdouble else 2
    return factor * of_mean, factor * of_deviations


def merged(X, s, ends):
    total = Moments.empty(X.shape[1])
    for part in np.split(np.arange(len(X)), ends):
        total = total.merge(Moments.of(X[part], None if s is None else s[part]))
    return total


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 300),
    ends=st.lists(st.integers(0, 300), max_size=8),
    offset=st.sampled_from([0.0, 1.0, -1e6, 1e12]),
    weighted=st.booleans(),
)
def test_merged_moments_are_those_of_two_passes(seed, n, ends, offset, weighted):
    rng = np.random.default_rng(seed)
    X = offset + rng.standard_normal((n, 3)) * [1e-3, 1.0, 1e3]
    s = np.where(rng.random(n) < 0.2, 0.0, rng.exponential(size=n)) if weighted else np.ones(n)
    s[rng.integers(n)] += 1.0
    weight, mean, deviations = two_passes(X, s)
    found = merged(X, s, sorted(ends))
    of_mean, of_deviations = bounds(X, mean, weight, deviations, len(ends) + 1)
    assert found.weight == pytest.approx(float(weight), rel=2 * n * UNIT)
    assert np.all(np.abs(found.mean - mean) <= of_mean)
    assert np.all(np.abs(found.deviations - deviations) <= of_deviations)
    assert np.all(found.deviations >= 0)


def test_no_rows_and_rows_without_weight_change_nothing(rng):
    X = rng.standard_normal((50, 2))
    some = Moments.of(X, None)
    for nothing in (Moments.empty(2), Moments.of(X[:0], None), Moments.of(7 + X, np.zeros(50))):
        for total in (some.merge(nothing), nothing.merge(some)):
            assert total.weight == some.weight
            np.testing.assert_array_equal(total.mean, some.mean)
            np.testing.assert_array_equal(total.deviations, some.deviations)
    both = Moments.empty(2).merge(Moments.empty(2))
    assert both.weight == 0
    np.testing.assert_array_equal(both.standard_deviation(), 0.0)


def test_integer_weights_are_repetitions(rng):
    X, times = rng.standard_normal((40, 3)), rng.integers(0, 4, 40)
    times[0] = 1
    weighted, repeated = Moments.of(X, times.astype(float)), Moments.of(np.repeat(X, times, axis=0), None)
    assert weighted.weight == repeated.weight
    # Both are off by fewer than 2·(40 + 10) units of numbers of the spread, squared in the deviations.
    np.testing.assert_allclose(weighted.mean, repeated.mean, rtol=0, atol=200 * UNIT * np.abs(X).max())
    np.testing.assert_allclose(weighted.deviations, repeated.deviations, rtol=1e4 * UNIT)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e6 + 0.1, -7.3e-5, 123456.789, 0.0, 1e-300])
@pytest.mark.parametrize("n_columns", [1, 3])
def test_long_constant_columns_are_constant(value, n_columns):
    """A running sum of equal numbers drifts by thousands of units: every addition rounds to the same side."""
    total = Moments.empty(n_columns)
    for n in (2**17, 1, 1000):
        total = total.merge(Moments.of(np.full((n, n_columns), value), None))
    assert total.is_constant().all()
    # One rounding for each of three means, and one each for their merges.
    assert np.all(np.abs(total.mean - value) <= 12 * UNIT * abs(value))


def test_columns_that_move_in_their_last_digits_are_not_constant():
    X = 1.0 + 2.0**-40 * np.arange(1000.0)[:, None]
    assert not Moments.of(X, None).is_constant().any()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16])
@pytest.mark.parametrize("n_columns", [1, 2, 7])
def test_the_layout_in_memory_changes_no_bit(rng, dtype, n_columns):
    """Tiles are views of what was decoded, or copies where they straddle chunks."""
    X, s = (100 * rng.standard_normal((3001, n_columns))).astype(dtype), rng.random(3001)
    wide = np.zeros((3001, n_columns + 3), dtype)
    wide[:, 1:-2] = X
    for other in (np.asfortranarray(X), wide[:, 1:-2], np.repeat(X, 2, axis=0)[::2]):
        for weights, their_weights in ((None, None), (s, s), (s, np.repeat(s, 2)[::2])):
            expected, found = Moments.of(X, weights), Moments.of(other, their_weights)
            np.testing.assert_array_equal(found.mean, expected.mean)
            np.testing.assert_array_equal(found.deviations, expected.deviations)


def test_deviations_are_those_of_numpy(rng):
    X, s = rng.standard_normal((200, 2)), rng.random(200)
    centred = X - np.average(X, axis=0, weights=s)
    expected = np.sqrt(np.average(centred**2, axis=0, weights=s))
    # Two sums of 200 positive terms.
    np.testing.assert_allclose(Moments.of(X, s).standard_deviation(), expected, rtol=500 * UNIT)


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("power", [-1040, -1000, -600, -540, -401, -399, 300, 480])
def test_deviations_of_columns_of_any_size(rng, power, is_sparse):
    """A power of two changes nothing else, whatever becomes of the squares; blocks of one value included."""
    X = np.round(rng.standard_normal((300, 3)) * 2.0**30) / 2.0**30  # whose digits stay above 2⁻¹⁰⁷⁴
    X[100:200] = X[100]
    s = rng.random(300)
    s[[0, 150]] = 0.0
    as_stored = csr_array if is_sparse else np.asarray
    of_one, of_other = (
        [Moments.of(as_stored(np.ldexp(X[a : a + 100], p)), s[a : a + 100]) for a in (0, 100, 200)]
        for p in (0, power)
    )
    one, other = (a.merge(b).merge(Moments.empty(3)).merge(c) for a, b, c in (of_one, of_other))
    scaled = np.ldexp(one.standard_deviation(), power)
    # A number near 2⁻¹⁰⁷⁴ is itself off by half of that.
    np.testing.assert_allclose(other.standard_deviation(), scaled, rtol=1e-14, atol=2.0**-1073)
    np.testing.assert_array_equal(other.is_constant(), [False] * 3)
    np.testing.assert_array_equal(other.min, np.ldexp(X[s > 0].min(axis=0), power))
    np.testing.assert_array_equal(other.max, np.ldexp(X[s > 0].max(axis=0), power))


@pytest.mark.parametrize("is_sparse", [False, True])
def test_one_value_is_one_value_to_the_last_bit(is_sparse):
    X = np.full((6, 4), 1e15)
    X[4, 1] = np.nextafter(1e15, 0)
    X[5, 2] = X[5, 3] = 7.0
    X[:, 3] *= 0.0
    as_stored = csr_array if is_sparse else np.asarray
    for s in (None, np.array([1.0, 1, 1, 1, 1, 0])):
        parts = [Moments.of(as_stored(X[a:b]), None if s is None else s[a:b]) for a, b in ((0, 3), (3, 6))]
        expected = [True, False, s is not None, True]
        assert parts[0].merge(parts[1]).has_one_value().tolist() == expected
        assert Moments.empty(4).merge(parts[0]).has_one_value().all()

"""Columns to mean 0 and deviation 1 before any cast, by moments of any cuts; sorted rows are noticed."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from distrff.preprocessing.coding import Moments, Scaling, drift_message, drift_shares, drifting

UNIT = 2.0**-53


@pytest.mark.parametrize("shape", [(3000, 50), (3, 40_000)], ids=["many strips", "rows beyond a strip"])
@pytest.mark.parametrize("stored", [np.float64, np.float32, np.int64, np.uint16, np.bool_])
def test_a_large_offset_costs_no_digits_of_a_float32_model(rng, stored, shape):
    X = (1e4 + rng.standard_normal(shape) * rng.choice([1, 10, 100, 0.5], shape[1])).astype(stored)
    X[0] = 0
    shift, scale = rng.uniform(9_000, 11_000, shape[1]), rng.uniform(0.1, 10, shape[1])
    exact = (X.astype(np.float64) - shift) / scale
    scaling = Scaling(shift, scale)
    np.testing.assert_array_equal(scaling.apply(X, np.dtype(np.float64)), exact)
    np.testing.assert_array_equal(scaling.apply(X, np.dtype(np.float32)), exact.astype(np.float32))
    assert scaling.apply(X, np.dtype(np.float32)).dtype == np.float32
    unshifted = Scaling(None, scale).apply(X, np.dtype(np.float64))
    np.testing.assert_array_equal(unshifted, X.astype(np.float64) / scale)


WIDE = np.longdouble if np.finfo(np.longdouble).eps < 2.0**-60 else np.float64


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
    # In long double; where that is float64, its own errors count as well.
    wide, S = X.astype(WIDE), s.astype(WIDE)[:, None]
    weight = S.sum()
    mean = (S * wide).sum(axis=0) / weight
    deviations = (S * (wide - mean) ** 2).sum(axis=0)
    parts = [Moments.of(X[i], s[i]) for i in np.split(np.arange(n), sorted(ends))]
    found = reduce(Moments.merge, parts, Moments.empty(3))
    of_mean, of_deviations = bounds(X, mean, weight, deviations, len(ends) + 1)
    assert found.weight == pytest.approx(float(weight), rel=2 * n * UNIT)
    assert np.all(np.abs(found.mean - mean) <= of_mean)
    assert np.all(np.abs(found.deviations - deviations) <= of_deviations)
    assert np.all(found.deviations >= 0)
    for nothing in (Moments.empty(3), Moments.of(X[:0], None), Moments.of(7 + X, np.zeros(n))):
        for total in (found.merge(nothing), nothing.merge(found)):
            assert total.weight == found.weight
            np.testing.assert_array_equal(total.mean, found.mean)
            np.testing.assert_array_equal(total.deviations, found.deviations)
        assert not nothing.merge(nothing).standard_deviation().any()


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
    assert total.has_one_value().all()  # to the last bit
    other = np.full((2, 1), [[1e15], [np.nextafter(1e15, 0)]])
    for as_stored in (np.asarray, csr_array):
        assert not Moments.of(as_stored(other), None).has_one_value().any()
        assert Moments.of(as_stored(other), np.array([1.0, 0])).has_one_value().all()
    moving = 1.0 + 2.0**-40 * np.arange(1000.0)[:, None]  # in its last digits
    assert not Moments.of(moving, None).is_constant().any()


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


@pytest.mark.parametrize("m", [100, 1000, 16384])
def test_shuffled_rows_do_not_drift(rng, m):
    X = np.column_stack([
        rng.standard_normal((m, 20)), rng.standard_t(3, (m, 5)), rng.random((m, 5)) < 0.02, np.full(m, 0.1)
    ])  # fmt: skip
    shares = drift_shares(X, rng.uniform(0.5, 2, m))
    assert not drifting(shares, m).any()
    assert shares[-1] == 0
    assert drift_message(shares, drift_shares(X[:, :1]), m) is None


def test_sorted_rows_drift(rng):
    m = 2000
    X = rng.standard_normal((m, 4))
    X[:, 2] = np.sort(X[:, 2])
    X[:, 3] += np.linspace(0, 2, m)
    shares = drift_shares(X)
    assert drifting(shares, m).tolist() == [False, False, True, True]
    assert shares[2] > 0.9
    assert 0.1 < shares[3] < 0.5
    y = np.repeat([-1.0, 1.0], m // 2)[:, None]
    message = drift_message(shares, drift_shares(y), m)
    assert message is not None
    assert "needs shuffled" in message
    assert "y, column 2 of X, column 3 of X" in message
    assert "100% of the variance" in message
    days = np.repeat(rng.permutation(8), 200)[:, None].astype(float)
    assert drifting(drift_shares(days), 1600).all()
    assert not drift_shares(np.arange(20.0)[:, None]).any()  # few rows show none
    first = (np.arange(640) < 40).astype(float)
    assert not drift_shares(5.0 * first[:, None], 1 - first).any()  # nor rows without weight

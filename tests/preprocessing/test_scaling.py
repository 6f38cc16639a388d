"""Columns to mean 0 and deviation 1, in float64 and before any cast."""

from __future__ import annotations

import numpy as np
import pytest

from distrff.preprocessing.scaling import Moments, Scaling

UNIT = 2.0**-53


def standard(X, s=None):
    return Scaling.standard(Moments.of(X, s))


@pytest.mark.parametrize("weighted", [False, True])
def test_scaled_columns_have_mean_zero_and_deviation_one(rng, weighted):
    n = 1000
    X = [1e6, -3.0, 0.0] + rng.standard_normal((n, 3)) * [2.0, 1e-4, 1e5]
    s = rng.random(n) if weighted else np.ones(n)
    Z = standard(X, s if weighted else None).apply(X, np.dtype(np.float64))
    # Means and deviations are sums of n terms; a rounding of the mean moves z by its units of
    # |mean|/deviation, which is 5e5 at most.
    tolerance = UNIT * (4 * n + 4 * 5e5)
    np.testing.assert_allclose(np.average(Z, axis=0, weights=s), 0, atol=tolerance * np.abs(Z).max())
    np.testing.assert_allclose(np.average(Z**2, axis=0, weights=s), 1, atol=4 * tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.1, -1e8 / 3, 0.0, 65504.0])
def test_constant_columns_are_divided_by_one(rng, value, dtype):
    n, value = 2**17 + 3, float(dtype(value))
    X = np.column_stack([np.full(n, value), rng.standard_normal(n)]).astype(dtype)
    scaling = standard(X)
    assert scaling.scale[0] == 1.0
    assert scaling.scale[1] != 1.0
    Z = scaling.apply(X, np.dtype(dtype))
    assert np.all(np.abs(Z[:, 0]) <= 8 * UNIT * abs(value))
    # A new value keeps its distance instead of being blown up.
    new = np.array([[value + 2.0, 0.0]])
    assert scaling.apply(new, np.dtype(np.float64))[0, 0] == pytest.approx(
        2.0, abs=16 * UNIT * (2 + abs(value))
    )


@pytest.mark.parametrize("stored", [np.float64, np.float32, np.int64, np.uint16, np.bool_])
def test_a_large_offset_costs_no_digits_of_a_float32_machine(rng, stored):
    X = (1e4 + rng.standard_normal((500, 4)) * [1, 10, 100, 0.5]).astype(stored)
    X[0] = 0
    shift, scale = rng.uniform(9_000, 11_000, 4), rng.uniform(0.1, 10, 4)
    exact = (X.astype(np.float64) - shift) / scale
    scaling = Scaling(shift, scale)
    np.testing.assert_array_equal(scaling.apply(X, np.dtype(np.float64)), exact)
    np.testing.assert_array_equal(scaling.apply(X, np.dtype(np.float32)), exact.astype(np.float32))
    assert scaling.apply(X, np.dtype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("scaling", [Scaling(), Scaling(np.ones(3), np.full(3, 2.0))], ids=["none", "both"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_come_out_contiguous_whatever_their_layout(rng, scaling, dtype):
    X = rng.standard_normal((20, 3)).astype(np.float32)
    expected = scaling.apply(X, np.dtype(dtype))
    X.flags.writeable = False
    for rows in (np.asfortranarray(X), np.repeat(X, 2, axis=0)[::2], X):
        Z = scaling.apply(rows, np.dtype(dtype))
        assert Z.flags.c_contiguous
        assert Z.dtype == dtype
        np.testing.assert_array_equal(Z, expected)


def test_no_scaling_changes_nothing_and_copies_nothing(rng):
    X = rng.standard_normal((5, 2))
    assert np.shares_memory(Scaling().apply(X, np.dtype(np.float64)), X)
    np.testing.assert_array_equal(Scaling().apply(X > 0, np.dtype(np.float32)), X > 0)
    assert Scaling().arrays() == {}


def test_scalings_are_equal_by_their_bits():
    one = Scaling(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    assert one.equals(Scaling(np.array([0.0, 1.0]), np.array([1.0, 2.0])))
    assert not one.equals(Scaling(np.array([0.0, np.nextafter(1.0, 2)]), np.array([1.0, 2.0])))
    assert not one.equals(Scaling(np.array([0.0, 1.0]), np.array([1.0, 2.0 + 1e-15])))
    assert not one.equals(Scaling())
    assert not Scaling().equals(one)
    assert Scaling().equals(Scaling())

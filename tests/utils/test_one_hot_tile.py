"""Tiles of one entry a block: their products are those of the dense matrix."""

from __future__ import annotations

import numpy as np
import pytest

from distrff.solvers.ridge import ridge_moments
from distrff.utils.products import OneHotTile, squared, transposed_product, values_of

R, D = 30, 12


@pytest.fixture
def tile(rng):
    """Three blocks of four columns, in each of which some rows have no entry."""
    within = rng.integers(-1, 4, (3, R))
    columns = np.where(within < 0, -1, within + 4 * np.arange(3)[:, None]).astype(np.int32)
    return OneHotTile(columns, 0.3, D)


def dense(tile):
    Z = np.zeros(tile.shape)
    for columns in tile.columns:
        rows = np.flatnonzero(columns >= 0)
        Z[rows, columns[rows]] = tile.value
    return Z


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_values(tile, rng, dtype, k):
    coef = rng.standard_normal((D, k)).astype(dtype)
    found = values_of(tile, coef)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, dense(tile) @ coef, atol=1e-14)


@pytest.mark.parametrize("m", [0, 1, 3])
def test_weighted_sums_of_rows_in_any_layout(tile, rng, m):
    S = rng.standard_normal((m, R))
    expected = S @ dense(tile)
    np.testing.assert_allclose(transposed_product(S, tile), expected, atol=1e-14)
    for sums in (np.ones((m, D)), np.ones((D, m)).T, np.ones((m + 2, 2 * D))[1:-1, ::2]):
        tile.add_transposed_product(sums, S)
        np.testing.assert_allclose(sums, 1 + expected, atol=1e-14)


def test_squares_and_some_of_the_rows(tile, rng):
    np.testing.assert_allclose(dense(squared(tile)), dense(tile) ** 2)
    some = np.flatnonzero(rng.random(R) < 0.5)
    np.testing.assert_array_equal(dense(tile[some]), dense(tile)[some])
    assert len(tile[some]) == len(some)


def test_moments_are_those_of_the_dense_rows(tile, rng):
    Y, E, s = rng.standard_normal((R, 2)), rng.standard_normal((R, 2)), rng.uniform(0.5, 2, R)
    found, expected = ridge_moments(tile, Y, E, s), ridge_moments(dense(tile), Y, E, s)
    for name in ("weight", "z", "zz", "y", "yy", "zy", "e", "ze"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-12)
